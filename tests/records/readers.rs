//! What the readers of records do with bytes that anyone may have made: an error that changes nothing, or a state that the next
//! step can use. No panic.
//!
//! The bytes are a script of changes to an honest record, which is sealed again afterwards, or a record themselves. Run by proptest
//! here, for some seconds, and by `cargo fuzz` in `fuzz/`, for as long as one likes.

use burn_amp_tests::{prelude::*, small::*};

use crate::forge::seal;

/// The choices that the bytes make. At their end, the first of each.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn next(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn below(&mut self, count: usize) -> usize {
        usize::from(self.next()) % count.max(1)
    }

    fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// Of a list in JSON.
    fn of(&mut self, list: &str) -> Value {
        let values: Vec<Value> = serde_json::from_str(list).unwrap();
        self.pick(&values)
    }

    fn name(&mut self, names: Vec<&String>) -> Option<String> {
        (!names.is_empty()).then(|| self.pick(&names).clone())
    }
}

/// Makes a record of the bytes.
fn record(honest: &Bytes, data: &[u8]) -> Bytes {
    let mut script = Script(data);
    let way = script.below(8);
    if way == 0 {
        return Bytes::from_bytes_vec(script.0.to_vec());
    }
    let mut contents = pack(honest.clone());
    for _ in 0..=script.below(4) {
        match script.below(6) {
            0 | 1 => change_state(&mut contents.metadata, &mut script),
            2 | 3 => change_tensor(&mut contents, &mut script),
            4 => change_scalar(&mut contents, &mut script),
            _ => {
                if let Some(name) = script.name(contents.metadata.keys().collect()) {
                    let value = contents.metadata.remove(&name).unwrap();
                    if script.below(2) == 1 {
                        let name = script.pick(&["burn_amp.window", "burn_amp.later", "1001", "x"]);
                        contents.metadata.insert(name.to_string(), value);
                    }
                }
            }
        }
    }
    let mut bytes = match way {
        1 => contents.into_bytes().to_vec(),
        _ => seal(contents).to_vec(),
    };
    if way == 2 {
        for _ in 0..=script.below(3) {
            let at = usize::from(script.next()) << 8 | usize::from(script.next());
            let at = at % bytes.len();
            bytes[at] ^= 1 << script.below(8);
        }
        bytes.truncate(bytes.len() - script.below(2) * script.below(256));
    }
    Bytes::from_bytes_vec(bytes)
}

/// What may stand in the JSON of a state.
const VALUES: &str = r#"[
    0, -0.0, 1, -1, 0.5, 1.0, 65536.0, 1e-45, 3.4e38, 1e39, 1e300,
    4294967295, 18446744073709551615, -9223372036854775808, 1099511627776,
    null, true, "Skipped", "Accumulated", [], {}
]"#;

/// Another value, or another name, somewhere in the JSON of a state.
fn change_state(metadata: &mut BTreeMap<String, String>, script: &mut Script) {
    let states = metadata.keys();
    let states = states.filter(|name| metadata[*name].starts_with('{'));
    let Some(name) = script.name(states.collect()) else {
        return;
    };
    let mut state: Value = serde_json::from_str(&metadata[&name]).unwrap_or_default();
    let mut pointers = Vec::new();
    collect(&state, String::new(), &mut pointers);
    let pointer = script.pick(&pointers);
    let value = script.of(VALUES);
    match (script.below(8), state.pointer_mut(&pointer)) {
        (0, Some(Value::Object(object))) => {
            object.insert("later".to_string(), value);
        }
        (1, Some(Value::Object(object))) => {
            let name = script.name(object.keys().collect());
            name.and_then(|name| object.remove(&name));
        }
        (_, Some(old)) => *old = value,
        (_, None) => {}
    }
    metadata.insert(name, state.to_string());
}

fn collect(value: &Value, at: String, found: &mut Vec<String>) {
    if let Value::Object(object) = value {
        for (name, value) in object {
            collect(value, format!("{at}/{name}"), found);
        }
    }
    found.push(at);
}

/// Of tensors that the record does not have.
const FIELDS: &str = r#"[
    "master", "burn_amp.sum", "burn_amp.average", "burn_amp.hook.ema", "burn_amp.x",
    "momentum.velocity", "inner.x", ""
]"#;

/// Such as no parameter has, beside those that one has.
const SHAPES: &str = r#"[
    [], [0], [1], [3], [1, 1], [1, 3], [3, 1], [3, 3], [0, 3], [1, 1, 3],
    [1, 1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
]"#;

/// Another name, parameter, dtype, shape or value of a tensor.
fn change_tensor(contents: &mut Pack, script: &mut Script) {
    let Some(mut name) = script.name(contents.tensors.keys().collect()) else {
        return;
    };
    let (mut id, (mut dtype, mut shape, mut bytes)) = match script.below(3) {
        0 => contents.tensors[&name].clone(),
        _ => contents.tensors.remove(&name).unwrap(),
    };
    match script.below(6) {
        0 => return,
        1 => {
            let owner = script.pick(&["1001", "1002", "7", "x"]);
            name = format!("{owner}.{}", script.of(FIELDS).as_str().unwrap());
        }
        2 => id = script.pick(&[None, Some(1001), Some(1002), Some(7), Some(u64::MAX)]),
        3 => {
            use DType::{BF16, F16, F32, F64, I32, U8};
            dtype = script.pick(&[F16, BF16, F32, F64, I32, U8]);
        }
        4 => shape = serde_json::from_value(script.of(SHAPES)).unwrap(),
        _ => {
            let value: f32 = script.pick(&[f32::NAN, f32::INFINITY, -0.0, f32::MAX, 1e-45]);
            bytes = value.to_le_bytes().repeat(bytes.len() / 4);
        }
    }
    bytes.resize(dtype.size() * shape.iter().product::<usize>(), 0);
    contents.tensors.insert(name, (id, (dtype, shape, bytes)));
}

/// Another value or name of a scalar.
fn change_scalar(contents: &mut Pack, script: &mut Script) {
    let Some(mut name) = script.name(contents.scalars.keys().collect()) else {
        return;
    };
    let change = script.below(4);
    if change == 0 {
        contents.scalars.remove(&name);
        return;
    }
    if change == 1 {
        let names = ["7.__rank", "1001.__rank", "x", "burn_amp.later"];
        name = script.pick(&names).to_string();
    }
    let mut values = [0, 1, 2, 9, u64::MAX].map(Scalar::UInt).to_vec();
    values.extend([Scalar::Int(-1), Scalar::Float(f64::NAN)]);
    values.extend([Scalar::Float(2.0), Scalar::Bool(true)]);
    contents.scalars.insert(name, script.pick(&values));
}

/// Reads a record into an optimizer with all that can be in one, and steps.
pub fn optimizer(data: &[u8]) {
    let (kind, data) = data.split_first().unwrap_or((&0, &[]));
    match kind % 5 {
        0 => read_into(adam(), DType::F32, data),
        1 => read_into(momentum(), DType::F32, data),
        2 => read_into(fused_adam(), DType::F32, data),
        3 => read_into(fused_adam(), DType::F16, data),
        _ => read_into(master_adam(), DType::F16, data),
    }
}

/// Whatever the bytes are, it does not panic.
fn calmly<R>(action: impl FnOnce() -> R) -> R {
    quietly(action).expect("no panic")
}

fn read_into<O: ModuleOptim + Clone>(optim: ScaledOptimizer<O>, dtype: DType, data: &[u8]) {
    let optim = optim.with_accumulation(3);
    let mut optim = optim.with_ema(EmaConfig::new());
    let mut honest = optim.clone();
    // Four steps, one of them skipped, and a window of two.
    let small = Small::new(dtype).train(&mut honest, 0..14, &[4]);
    let bytes = record(&honest.into_bytes().unwrap(), data);

    Small::new(dtype).train(&mut optim, 20..27, &[]);
    let before = contents(&mut optim);
    if calmly(|| optim.from_bytes(bytes)).is_err() {
        assert_eq!(contents(&mut optim), before);
    }
    for step in 0..4 {
        let grads = small.gradients(step, 1.0, false);
        if let Ok(stepped) = calmly(|| optim.try_step(0.1, small.clone(), grads)) {
            let shapes = |small: &Small| (small.weight.shape(), small.bias.shape());
            assert_eq!(shapes(&stepped), shapes(&small));
            assert_eq!(parameters(&stepped).len(), parameters(&small).len());
            assert_eq!(stepped.num_params(), small.num_params());
        }
    }
    // A file that is saved can be loaded.
    if let Ok(bytes) = optim.into_bytes() {
        optim.from_bytes(bytes).unwrap();
    }
}

/// Reads a record into a scaler, which goes on.
pub fn scaler(data: &[u8]) {
    let honest = trained(adam(), DType::F32, 0..9, &[2, 7]);
    let bytes = record(&honest.scaler().bits(), data);
    let mut scaler = default_scaler();
    let before = scaler.bits();
    if calmly(|| scaler.from_bytes(bytes)).is_err() {
        assert_eq!(scaler.bits(), before);
        return;
    }
    let small = Small::new(DType::F32);
    for step in 0..4 {
        let scale = scaler.loss_scale();
        assert!(scale.is_sign_positive() && scale.is_finite(), "{scale}");
        let grads = small.gradients(step, 1.0, step % 2 == 0);
        let mut window = AccumulationConfig::new(1).init().unwrap();
        let grads = scaler.accumulate(&mut window, grads, &small);
        let Ok(Some(grads)) = grads else { continue };
        let mut optim = SgdConfig::new().init();
        let _ = scaler.try_step(&mut optim, 0.1, small.clone(), grads);
        scaler.update().unwrap();
    }
    let read = AmpRecord::from_bytes(scaler.bits()).unwrap();
    assert_eq!(read.bits(), scaler.bits());
}

/// Reads a record into a window, which is filled and flushed.
pub fn window(data: &[u8]) {
    let (small, mut scaler) = (Small::new(DType::F32), default_scaler());
    let mut window = AccumulationConfig::new(3).init().unwrap();
    let mut honest = window.clone();
    let grads = |step| small.gradients(step, 1.0, false);
    scaler.accumulate(&mut honest, grads(0), &small).unwrap();
    let bytes = record(&honest.bits(), data);
    if calmly(|| window.from_bytes(bytes)).is_ok() {
        let len = window.len();
        if calmly(|| scaler.accumulate(&mut window, grads(1), &small)).is_err() {
            assert_eq!(window.len(), len);
        }
        let flushed = calmly(|| scaler.try_flush(&mut window, &small));
        assert_eq!(window.is_empty(), flushed.is_ok());
    }
}

/// Reads a record into averages, which are updated.
pub fn averages(data: &[u8]) {
    let mut averages = EmaConfig::new().init().unwrap();
    let mut honest = averages.clone();
    let small = honest.update(Small::new(DType::F32));
    let bytes = record(&honest.bits(), data);
    if calmly(|| averages.from_bytes(bytes)).is_ok() {
        let updated = calmly(|| averages.update(small));
        averages.module(&updated);
    }
}

/// Reads PyTorch's state as JSON.
pub fn state(data: &[u8]) {
    let mut scaler = default_scaler();
    let mut script = Script(data);
    let mut metadata = BTreeMap::from([("state".to_string(), scaler.state_dict())]);
    for _ in 0..=script.below(3) {
        change_state(&mut metadata, &mut script);
    }
    let before = scaler.bits();
    for text in [&metadata["state"], &*String::from_utf8_lossy(data)] {
        if scaler.load_state_dict(text).is_err() {
            assert_eq!(scaler.bits(), before);
            continue;
        }
        let scale = scaler.loss_scale();
        assert!(scale > 0.0 && scale.is_finite(), "{scale}");
        let before = AmpRecord::from_bytes(before.clone()).unwrap();
        scaler.load_record(before.with_settings()).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use proptest::{
        collection::vec,
        prelude::any,
        test_runner::{Config, TestRunner},
    };

    fn run(cases: u32, read: fn(&[u8])) {
        let mut runner = TestRunner::new(Config {
            failure_persistence: None,
            ..Config::with_cases(cases)
        });
        let read = |data: Vec<u8>| {
            read(&data);
            Ok(())
        };
        runner.run(&vec(any::<u8>(), 0..48), read).unwrap();
    }

    /// Of every record.
    fn read(share: u32) {
        run(500 / share, super::optimizer);
        run(1000 / share, super::scaler);
        run(1000 / share, super::window);
        run(1000 / share, super::averages);
        run(2000 / share, super::state);
    }

    #[test]
    fn of_every_record() {
        read(20);
    }

    #[test]
    #[ignore = "slow"]
    fn sweep_of_every_record() {
        read(1);
    }

    /// What an earlier run has found.
    #[test]
    fn of_an_optimizer_with_a_state_of_another_rank() {
        super::optimizer(&[
            146, 3, 122, 128, 152, 0, 26, 0, 112, 0, 153, 145, 9, 188, 32, 7, 30,
        ]);
    }
}
