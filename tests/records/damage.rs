//! Any damage to a record is an error that leaves the state, or goes by without a trace: every byte flipped, every length cut off, random changes
//! under a checksum that holds, and those that were thought of.

use crate::support::*;
use burn_amp_tests::forge::{change, sealed, tree};
use burn_amp_tests::readers::{self, KINDS, Kind, Reader, read, scaler};
use proptest::{
    collection::vec,
    prelude::any,
    test_runner::{Config, TestRunner},
};

/// Bits that turn a number, a letter or a length into a near one, and all bits.
const MASKS: [u8; 5] = [1, 2, 4, 128, 255];

/// The distance between two bytes that are damaged, and by which masks.
type Way = (usize, &'static [u8]);

/// Reads `bytes`, damaged in every way, each day at others of them; `loaded` judges what a read that succeeded has made of a reader.
fn every_byte(
    (stride, masks): Way,
    bytes: &[u8],
    new: impl Fn() -> Box<dyn Reader>,
    loaded: impl Fn(&mut dyn Reader, usize),
) {
    let (mut reader, mut refused) = (new(), 0);
    let before = reader.state();
    for at in (seed() as usize % stride..bytes.len()).step_by(stride) {
        // In the padding between the parts one is enough.
        let padding = bytes[at..].iter().take(8).all(|byte| *byte == 0);
        let masks = if padding {
            &masks[masks.len() - 1..]
        } else {
            masks
        };
        let flipped = masks.iter().map(|mask| {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= mask;
            damaged
        });
        for damaged in flipped.chain([bytes[..at].to_vec()]) {
            match read(&mut *reader, &before, Bytes::from_bytes_vec(damaged)) {
                Ok(()) => {
                    loaded(&mut *reader, at);
                    reader = new();
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 300, "{refused}");
}

/// A sealed record, without a window and averages, and a reader that has another state.
fn short<O: ModuleOptim + Clone + 'static>(
    new: fn() -> ScaledOptimizer<O>,
    dtype: DType,
) -> (Bytes, Box<dyn Reader>) {
    let bytes = trained(new(), dtype, 0..9, &[2, 7]).into_bytes();
    let reader = trained(new(), dtype, 20..23, &[21]);
    (bytes.unwrap(), Box::new((reader, dtype)))
}

/// What is read is what was saved.
fn exact(way: Way, kind: Kind) {
    let (bytes, mut reader) = kind();
    let saved = pack(bytes.clone());
    assert_ne!(reader.state(), saved);
    let loaded = |reader: &mut dyn Reader, at| assert_eq!(reader.state(), saved, "byte {at}");
    every_byte(way, &bytes, || kind().1, loaded);
}

/// Records of optimizers in one way, and those of scalers, which are short, in another.
fn every_record(of_optimizers: Way, of_scalers: Way) {
    exact(of_optimizers, || short(momentum, DType::F32));
    exact(of_scalers, scaler);
    // Burn's own files have no checksum. What is read as a state must at least be one that the next step can use.
    let optim = trained(adam(), DType::F32, 0..9, &[]);
    let bytes = optim.optimizer().into_bytes().unwrap();
    let new = || -> Box<dyn Reader> { Box::new((adam(), DType::F32)) };
    every_byte(of_optimizers, &bytes, new, |reader, _| {
        quietly(|| reader.go_on()).expect("no panic");
    });
    // A scaler's record has no tensors: what is left of it must not read as the file of an optimizer that has not stepped yet.
    let new = || -> Box<dyn Reader> { Box::new((momentum(), DType::F32)) };
    every_byte(of_scalers, &scaler().0, new, |_, at| {
        panic!("byte {at}: a scaler's file was loaded as an optimizer's")
    });
}

#[test]
fn bytes() {
    every_record((5, &[1]), (3, &MASKS));
    // What an earlier run has found: no tensors, and a head that ends before the section.
    let mut empty = short(adam, DType::F32).0.to_vec();
    empty[19] = 0xa0;
    empty[6..10].copy_from_slice(&256u32.to_le_bytes());
    let error = AmpRecord::from_bytes(Bytes::from_bytes_vec(empty)).unwrap_err();
    is_error(&error, "DamagedRecord", []);
}

#[test]
#[ignore = "slow"]
fn sweep_of_bytes() {
    every_record((1, &MASKS), (1, &MASKS));
    exact((1, &MASKS), || short(master_adam, DType::F16));
}

type Read = fn(&[u8]);

/// Random changes, by every reader.
fn drawn(share: u32) {
    let readers: [(u32, Read); 2] = [(3500, readers::records), (2000, readers::state)];
    for (cases, read) in readers {
        let mut runner = TestRunner::new(Config {
            failure_persistence: None,
            ..Config::with_cases(cases / share)
        });
        let read = |data: Vec<u8>| {
            read(&data);
            Ok(())
        };
        runner.run(&vec(any::<u8>(), 0..48), read).unwrap();
    }
}

#[test]
fn drawn_damage() {
    drawn(20);
}

#[test]
#[ignore = "slow"]
fn sweep_of_drawn_damage() {
    drawn(1);
}

/// Of whom the record is, what is changed in it (`state/` is the scaler's) to what, who refuses it, with which error, and what that names. A later release
/// says so by its version. A rank that its tensors do not have: Burn rebuilds a state with that which is stored beside it,
/// and panics at the next step if the parameter has another.
const CRAFTED: &str = r#"
adam > state/counters/ > {"steps": 3, "skipped": 4} > reader > DamagedRecord > 4 skipped steps of 3
adam > state/counters/ > {"steps": 1099511627776, "skipped": 549755813888} > nobody > - > -
adam > state/counters/steps > 18446744073709551615 > reader > DamagedRecord > 18446744073709551615
adam > state/counters/consecutive_skips > 18446744073709551615 > reader > DamagedRecord > 18446744073709551615
adam > state/counters/discarded > 18446744073709551615 > reader > DamagedRecord > 18446744073709551615
adam > state/schedule/scale > -0.0 > reader > DamagedRecord > `scale` is -
adam > state/schedule/scale > -1.0 > reader > DamagedRecord > `scale` is -
adam > state/schedule/scale > 0.5 > nobody > - > -
adam > state/ > {"pending": "Stepped", "seen": {"max_abs": 0.5, "elements": 2, "above": 0}} > nobody > - > -
adam > state/pending > "Skipped" > nobody > - > -
adam > state/pending > "Accumulated" > reader > DamagedRecord > its iteration is
adam > state/cooldown > 3 > reader > DamagedRecord > cooldown
adam > state/counters/cooldown > 3 > reader > DamagedRecord > cooldown
adam > state/schedule/cooldown > 3 > reader > DamagedRecord > cooldown
adam > state/schedule/config/cooldown > 3 > reader > DamagedRecord > cooldown
region > state/regions/region/schedule/scale > 0.0 > reader > DamagedRecord > `scale` is 0
adam > /index/states/hook.ema/updates > 18446744073709551615 > optimizer > DamagedRecord > updates
averages > /index/states/hook.ema/updates > 0 > optimizer > DamagedRecord > averages of no updates
averages > /tensors/SECTION.hook.ema.1001/dtype > "F64" > nobody > - > -
averages > /tensors/SECTION.hook.ema.1001/dtype > "F16" > reader > DamagedRecord > must be f32 or f64
window > /index/states/window/len > 0 > reader > DamagedRecord > sums of no micro-batches
window > /index/states/window/scale > 0.5 > nobody > - > -
window > /index/states/window/scale > 0.0 > reader > DamagedRecord > loss scale of its window is 0
window > /tensors/SECTION.window.1001/dtype > "F64" > nobody > - > -
window > /tensors/SECTION.window.1001/dtype > "F16" > reader > DamagedRecord > .window.1001
window > /tensors/SECTION.window.1001/dtype > "I32" > reader > DamagedRecord > must be f32 or f64
adam > /index/kind > "sam" > reader > DamagedRecord > `kind`
adam > /index/states/sam > {} > reader > DamagedRecord > `sam`: this release does not know it
adam > /index/tensors/hook.ema > [1001, 1002, 1003] > reader > DamagedRecord > .hook.ema.1003` is missing
adam > /index/tensors/hook.ema > [1001] > reader > DamagedRecord > .hook.ema.1002` is unknown
adam > /scalars/SECTION.rho > {"Float": 0.5} > reader > DamagedRecord > .rho` is unknown
adam > /tensors/SECTION.sam > {"id": 1001, "dtype": "F32", "shape": [3], "values": []} > reader > DamagedRecord > .sam` is unknown
adam > /scalars/SECTION.version > {"UInt": 0} > reader > DamagedRecord > version is
adam > /scalars/SECTION.version > {"Int": 1} > reader > DamagedRecord > version is
adam > /scalars/SECTION.version > {"UInt": 2} > reader > NewerRecord > memory has record version 2, this release reads up to 1: update burn-amp
scaler > /scalars/SECTION.version > {"UInt": 1000} > reader > NewerRecord > version 1000
adam > /scalars/1001.__rank > {"UInt": 0} > reader > DamagedRecord > rank 0
momentum > /scalars/1001.__rank > {"UInt": 1} > reader > DamagedRecord > rank 1
masters > /scalars/1001.__rank > {"UInt": 9} > reader > DamagedRecord > rank 9
masters > /tensors/1001.master/dtype > "F64" > optimizer > ForeignRecord > `1001.
masters > /tensors/1001.master/shape > [3] > reader > DamagedRecord > 1001.master
masters > /tensors/1001.master/shape > [1, 3] > nobody > - > -
"#;

#[test]
fn what_no_run_has_stored() {
    let kinds = BTreeMap::from(KINDS);
    for [kind, place, value, by, variant, part] in rows(CRAFTED) {
        println!("{kind}, {place}, {value}");
        let (honest, mut reader) = kinds[kind]();
        let mut tree = tree(&honest);
        let value: Value = serde_json::from_str(value).unwrap();
        let place = place.replace("state/", "/index/states/scaler/");
        let place = place.replace("SECTION", &SECTION.to_string());
        change(&mut tree, &place, value);
        let (bytes, before) = (sealed(&tree), reader.state());
        let error = read(&mut *reader, &before, bytes.clone()).err();
        assert_eq!(error.is_none(), by == "nobody", "{error:?}");
        if let Some(error) = &error {
            is_error(error, variant, [part]);
        }
        let by_reader = error.filter(|_| by == "reader");
        assert_eq!(AmpRecord::from_bytes(bytes).err(), by_reader);
    }
}

/// Nothing in the record has the parameter's shape: the first step sees it, before it changes anything.
#[test]
fn moments_of_another_parameter_are_refused_by_the_step() {
    let small = Small::new(DType::F32);
    let before = parameters(&small);
    for (mut optim, shape, rank, part) in [
        (adam(), json!([3, 1]), 2, "[3, 1]"),
        (adam().with_accumulation(2), json!([3, 1]), 2, "[3, 1]"),
        (adam(), json!([3]), 1, "rank 1"),
    ] {
        let mut tree = tree(&short(adam, DType::F32).0);
        change(&mut tree, "/scalars/1001.__rank", json!({"UInt": rank}));
        for moment in ["moment_1", "moment_2"] {
            let place = format!("/tensors/1001.momentum.{moment}/shape");
            change(&mut tree, &place, shape.clone());
        }
        optim.from_bytes(sealed(&tree)).unwrap();
        let error = refused(&mut optim, |optim| {
            let grads = small.gradients(0, 1.0, false);
            let stepped = optim.try_step(0.1, small.clone(), grads);
            stepped.map(drop).map_err(AmpError::from)
        });
        is_error(&error, "ForeignRecord", ["`weight`", part]);
        assert_eq!(parameters(&small), before);
    }
}
