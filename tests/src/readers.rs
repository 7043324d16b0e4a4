//! What the readers of records do with bytes that anyone may have made: an error that changes nothing, or a state that the next
//! step can use. No panic.
//!
//! The bytes are a script of changes to an honest record, which is sealed again afterwards, or a record themselves. Run by proptest
//! here, for some seconds, and by `cargo fuzz` in `fuzz/`, for as long as one likes.

use crate::{prelude::*, small::*};

use crate::forge::{planted, sealed, tree};

/// Who reads records.
pub trait Reader {
    /// Takes over what is in the record.
    ///
    /// # Errors
    ///
    /// If that cannot be; nothing has changed then.
    fn read(&mut self, bytes: Bytes) -> Result<(), AmpError>;

    /// All of the state.
    fn state(&mut self) -> Pack;

    /// Uses what was read, which must be a state.
    fn go_on(&mut self);
}

/// An optimizer of the small model in this dtype.
impl<O: ModuleOptim + Clone + 'static> Reader for (ScaledOptimizer<O>, DType) {
    fn read(&mut self, bytes: Bytes) -> Result<(), AmpError> {
        self.0.from_bytes(bytes)
    }

    fn state(&mut self) -> Pack {
        contents(&mut self.0)
    }

    fn go_on(&mut self) {
        let small = Small::new(self.1);
        let shapes = |small: &Small| (small.weight.shape(), small.bias.shape());
        for step in 0..4 {
            let grads = small.gradients(step, 1.0, false);
            if let Ok(stepped) = self.0.try_step(0.1, small.clone(), grads) {
                assert_eq!(shapes(&stepped), shapes(&small));
                assert_eq!(parameters(&stepped).len(), parameters(&small).len());
            }
        }
        // A file that is saved can be loaded.
        if let Ok(bytes) = self.0.into_bytes() {
            self.0.from_bytes(bytes).unwrap();
        }
    }
}

macro_rules! alone {
    ($($owner:ty: $go_on:expr,)*) => {
        $(
            impl Reader for $owner {
                fn read(&mut self, bytes: Bytes) -> Result<(), AmpError> {
                    self.from_bytes(bytes)
                }

                fn state(&mut self) -> Pack {
                    pack(self.bits())
                }

                fn go_on(&mut self) {
                    $go_on(self);
                }
            }
        )*
    };
}

alone! {
    GradScaler: steps,
    AccumulationWindow: fills,
    Ema: |ema: &mut Ema| {
        let updated = ema.update(Small::new(DType::F32));
        ema.module(&updated);
    },
}

fn steps(scaler: &mut GradScaler) {
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

fn fills(window: &mut AccumulationWindow) {
    let (small, mut scaler, len) = (Small::new(DType::F32), default_scaler(), window.len());
    let grads = small.gradients(1, 1.0, false);
    if scaler.accumulate(window, grads, &small).is_err() {
        assert_eq!(window.len(), len);
    }
    let flushed = scaler.try_flush(window, &small);
    assert_eq!(window.is_empty(), flushed.is_ok());
}

/// An honest record, and a reader that has another state.
pub type Kind = fn() -> (Bytes, Box<dyn Reader>);

/// Four steps, one of them skipped, a window of two, and averages; read into one that is elsewhere.
fn around<O: ModuleOptim + Clone + 'static>(
    optim: ScaledOptimizer<O>,
    dtype: DType,
) -> (Bytes, Box<dyn Reader>) {
    let optim = optim.with_accumulation(3).with_ema(EmaConfig::new());
    let mut honest = trained(optim.clone(), dtype, 0..14, &[4]);
    let reader = trained(optim, dtype, 20..27, &[]);
    (honest.into_bytes().unwrap(), Box::new((reader, dtype)))
}

/// Whose records there are. Optimizers have all that can be in one.
pub const KINDS: [(&str, Kind); 9] = [
    ("adam", || around(adam(), DType::F32)),
    ("momentum", || around(momentum(), DType::F32)),
    ("fused", || around(fused_adam(), DType::F32)),
    ("fused f16", || around(fused_adam(), DType::F16)),
    ("masters", || around(master_adam(), DType::F16)),
    ("region", || around(at_border(), DType::F32)),
    ("scaler", scaler),
    ("window", window),
    ("averages", averages),
];

/// With a region whose factor moves.
fn at_border() -> ScaledOptimizer {
    let amp = MixedPrecision::f16();
    let region = Rescale::dynamic("region");
    let one = Tensor::<1>::ones([1], &flex());
    drop(amp.autocast(one, |x| rescaled(region, x, |x| x)));
    ScaledOptimizer::new(AdamConfig::new().init(), &amp)
}

/// A scaler alone.
pub fn scaler() -> (Bytes, Box<dyn Reader>) {
    let honest = trained(adam(), DType::F32, 0..9, &[2, 7]);
    let fresh: GradScaler = adam().scaler().clone().into();
    (honest.scaler().bits(), Box::new(fresh))
}

fn window() -> (Bytes, Box<dyn Reader>) {
    let window = AccumulationConfig::new(3).init().unwrap();
    let (small, mut honest) = (Small::new(DType::F32), window.clone());
    let grads = small.gradients(0, 1.0, false);
    let full = default_scaler().accumulate(&mut honest, grads, &small);
    assert!(full.unwrap().is_none());
    (honest.bits(), Box::new(window))
}

fn averages() -> (Bytes, Box<dyn Reader>) {
    let averages = EmaConfig::new().init().unwrap();
    let mut honest = averages.clone();
    honest.update(Small::new(DType::F32));
    (honest.bits(), Box::new(averages))
}

/// Has one in this state read a record: an error leaves the state, and says what is wrong with which record.
///
/// # Errors
///
/// What it refuses.
pub fn read(reader: &mut dyn Reader, before: &Pack, bytes: Bytes) -> Result<(), AmpError> {
    let result = quietly(|| reader.read(bytes)).expect("no panic");
    if let Err(error) = &result {
        assert_eq!(reader.state(), *before, "{error}");
        let known = ["DamagedRecord", "ForeignRecord", "NewerRecord"];
        let variant = format!("{error:?}");
        let is_known = known.iter().any(|known| variant.starts_with(known));
        assert!(
            is_known && error.to_string().starts_with("memory "),
            "{variant}"
        );
    }
    result
}

/// Reads a record of the kind that the first byte says, and goes on.
pub fn records(data: &[u8]) {
    let (kind, data) = data.split_first().unwrap_or((&0, &[]));
    let (honest, mut reader) = KINDS[usize::from(*kind) % KINDS.len()].1();
    let before = reader.state();
    // Refused or not, what is there must do for the next step.
    let _ = read(&mut *reader, &before, record(&honest, data));
    quietly(|| reader.go_on()).expect("no panic");
}

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
}

/// Makes a record of the bytes.
fn record(honest: &Bytes, data: &[u8]) -> Bytes {
    let mut script = Script(data);
    let way = script.below(8);
    if way == 0 {
        return Bytes::from_bytes_vec(script.0.to_vec());
    }
    let mut tree = tree(honest);
    for _ in 0..=script.below(4) {
        change(&mut tree, &mut script);
    }
    let mut bytes = match way {
        1 => planted(&tree).into_bytes().to_vec(),
        _ => sealed(&tree).to_vec(),
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

/// What may stand anywhere: in a state, as a scalar, or as a part of a tensor.
const VALUES: &str = r#"[
    0, -0.0, 1, -1, 0.5, 1.0, 65536.0, 1e-45, 3.4e38, 1e39, 1e300, 7, 1002, "NaN", "inf",
    4294967295, 18446744073709551615, -9223372036854775808, 1099511627776,
    null, true, "Skipped", "Accumulated", [], {}, "F16", "BF16", "F64", "I32", "U8",
    [0], [1], [3], [1, 1], [1, 3], [3, 1], [3, 3], [0, 3], [1, 1, 3], [1, 1, 1, 1, 1, 1, 1, 1, 1],
    {"UInt": 0}, {"UInt": 2}, {"UInt": 9}, {"UInt": 18446744073709551615}, {"Int": -1},
    {"Float": 2.0}, {"Bool": true}
]"#;

/// Names that are used elsewhere, or nowhere.
const NAMES: [&str; 12] = [
    "later",
    "x",
    "1001",
    "window",
    "8101238367212172642.later",
    "1001.master",
    "8101238367212172642.window.1002",
    "8101238367212172642.hook.ema.1001",
    "7.momentum.velocity",
    "x.inner.x",
    "7.__rank",
    "1001.__rank",
];

/// Changes one place of a tree, or adds, drops or renames one.
fn change(tree: &mut Value, script: &mut Script) {
    let mut places = Vec::new();
    collect(tree, String::new(), &mut places);
    let place = script.pick(&places);
    let values: Vec<Value> = serde_json::from_str(VALUES).unwrap();
    let (value, name) = (script.pick(&values), script.pick(&NAMES).to_string());
    let at = tree.pointer_mut(&place).expect("it was collected");
    let Value::Object(object) = at else {
        *at = value;
        return;
    };
    let names: Vec<String> = object.keys().cloned().collect();
    let old = script.pick(&[&names[..], &["x".to_string()]].concat());
    match script.below(6) {
        0 => drop(object.insert(name, value)),
        1 => drop(object.remove(&old)),
        2 | 3 => drop(object.remove(&old).map(|value| object.insert(name, value))),
        4 => drop(
            object
                .get(&old)
                .cloned()
                .map(|value| object.insert(name, value)),
        ),
        _ if place.matches('/').count() > 1 => *at = value,
        _ => drop(object.insert(old, value)),
    }
}

fn collect(value: &Value, at: String, found: &mut Vec<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        collect(value, format!("{at}/{name}"), found);
    }
    found.push(at);
}

/// Reads PyTorch's state as JSON.
pub fn state(data: &[u8]) {
    let mut scaler = default_scaler();
    let mut script = Script(data);
    let mut state: Value = serde_json::from_str(&scaler.state_dict()).unwrap();
    for _ in 0..=script.below(3) {
        change(&mut state, &mut script);
    }
    let before = scaler.bits();
    for text in [&state.to_string(), &*String::from_utf8_lossy(data)] {
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
