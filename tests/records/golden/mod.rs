//! Files that earlier releases have written, in `tests/golden/{version}/`: this release must read all of them.
//!
//! A new release adds its own: `cargo test --workspace --test records write_golden -- --ignored`. Files that are
//! there are never written again.

pub mod recipe;

use crate::support::*;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// Every version's folder.
fn versions() -> Vec<PathBuf> {
    let entries = fs::read_dir(root()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.is_dir()).collect()
}

#[test]
#[ignore = "writes the files of a new release"]
fn write_golden() {
    let folder = root().join(env!("CARGO_PKG_VERSION"));
    if !folder.exists() {
        recipe::write(&folder);
    }
}

#[test]
fn this_release_has_its_files() {
    let version = root().join(env!("CARGO_PKG_VERSION"));
    let written = versions().contains(&version);
    assert!(written, "run `write_golden`, see above");
}

/// Seven steps, the overflows 1, 2 and 6: the first is tolerated, the second is not, four finite ones grow twice.
fn assert_seven(schedule: &LossScale, counters: StepCounters) {
    assert_eq!(*schedule.config(), recipe::settings());
    let trackers = (schedule.growth_tracker(), schedule.hysteresis_tracker());
    assert_eq!((schedule.scale(), trackers), (1024.0, (0, 1)));
    assert_eq!((counters.steps(), counters.skipped()), (7, 3));
    assert_eq!(counters.consecutive_skips(), 1);
}

#[test]
fn settings_schedules_and_counters() {
    for folder in versions() {
        println!("{}", folder.display());
        let config = GradScalerConfig::load(folder.join("config.json")).unwrap();
        assert_eq!(config, recipe::config());
        let scaled = ScaledOptimizerConfig::load(folder.join("scaled.json")).unwrap();
        assert_eq!(scaled.to_string(), recipe::scaled_config().to_string());

        let fixed: LossScale = json(folder.join("loss_scale.static.json"));
        let expected = at_scale(96.0).with_dynamic(false).schedule().unwrap();
        assert_eq!(fixed, expected);
        let counters = json(folder.join("counters.json"));
        assert_seven(&json(folder.join("loss_scale.dynamic.json")), counters);
        let record = AmpRecord::load(folder.join("scaler.bpk")).unwrap();
        assert_seven(record.schedule().unwrap(), record.counters().unwrap());

        let text = fs::read_to_string(folder.join("state.json")).unwrap();
        let mut scaler = default_scaler();
        scaler.load_state_dict(&text).unwrap();
        let factors = (scaler.growth_factor(), scaler.backoff_factor());
        assert_eq!((scaler.loss_scale(), factors), (1024.0, (4.0, 0.25)));
        assert_eq!((scaler.growth_interval(), scaler.growth_tracker()), (2, 0));
    }
}

/// What is stored of an optimizer, loaded into this one, and the model beside it, as plain Burn reads it.
fn loaded<O: ModuleOptim>(stem: &Path, optim: &mut ScaledOptimizer<O>) -> (Pack, Small) {
    let file = stem.with_extension("optimizer.bpk");
    optim.load(&file).unwrap();
    let mut small = Small::new(DType::F32);
    small.weight.id = ParamId::from(1);
    let small = small.load_file(stem.with_extension("model.bpk"));
    assert_eq!(small.weight.id.val(), 1001);
    let stored = Bytes::from_bytes_vec(fs::read(file).unwrap());
    (pack(stored), small)
}

/// Makes one more step: where both parameters are then, and a tensor of the state in the file, in bits.
fn go_on<O: ModuleOptim>(
    file: &str,
    new: fn() -> ScaledOptimizer<O>,
    (tensor, values): (&str, &[u32]),
    parameters: [&[u32]; 2],
) {
    for folder in versions() {
        let mut optim = new();
        let (mut stored, small) = loaded(&folder.join(file), &mut optim);
        let (id, (dtype, _, bytes)) = stored.tensors.remove(tensor).unwrap();
        assert!(tensor.starts_with(&id.unwrap().to_string()));
        assert_eq!(bits((dtype, bytes)), values);
        assert_seven(&optim.scaler().schedule(), optim.scaler().counters());
        let small = small.train(&mut optim, recipe::NEXT..recipe::NEXT + 1, &[]);
        assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Stepped));
        assert_eq!(parameters_of(&small), parameters);
    }
}

/// The bits of each value.
fn bits((dtype, bytes): (DType, Vec<u8>)) -> Vec<u32> {
    let bits = |value: &[u8]| (value.iter().rev()).fold(0, |all, byte| all << 8 | u32::from(*byte));
    bytes.chunks(dtype.size()).map(bits).collect()
}

/// Those of both parameters.
fn parameters_of(small: &Small) -> Vec<Vec<u32>> {
    stored(small).into_iter().map(bits).collect()
}

/// Bit patterns, as an f32 computation of Adam outside Burn gives them too: nothing in them can round in two ways.
const WEIGHT_OF_ADAM: [u32; 3] = [0x3d3181f8, 0xbf0bf3d3, 0xbe59c129];

#[test]
fn optimizers() {
    let moment = [0x3a9f8988, 0x3b050069, 0x3a9f5b76];
    let moment = ("1001.momentum.moment_2", &moment[..]);
    let parameters = [&WEIGHT_OF_ADAM[..], &[0x3fc39112]];
    go_on("adam", recipe::adam, moment, parameters);
    // These are f16.
    let master = [0x3e070704, 0xbf23acd6, 0xbdfa49d2];
    let parameters = [&[0x298c, 0xb860, 0xb2ce][..], &[0x3e1d]];
    let master = ("1001.master", &master[..]);
    go_on("masters", recipe::masters, master, parameters);
    let velocity = ("1002.momentum.velocity", &[0x3ffebc69][..]);
    let parameters = [&WEIGHT_OF_ADAM[..], &[0x3fa6d0f0]];
    go_on("groups", recipe::groups, velocity, parameters);
}

/// An open window and averages: what is in the file, and where the run goes from it. And without a stop.
#[test]
fn around() {
    let mut runs = vec![(recipe::around(), Small::new(DType::F32), 0)];
    for folder in versions() {
        let mut optim = recipe::around();
        let (_, small) = loaded(&folder.join("around"), &mut optim);
        let (window, ema) = (optim.window().unwrap(), optim.ema().unwrap());
        let counters = optim.scaler().counters();
        assert_eq!((window.len(), ema.updates()), (2, 1));
        assert_eq!((counters.steps(), counters.skipped()), (2, 1));
        runs.push((optim, small, recipe::NEXT_MICRO_BATCH));
    }
    for (mut optim, small, from) in runs {
        let rest = from..recipe::LAST_MICRO_BATCH + 1;
        let small = small.train(&mut optim, rest, &[5]);
        assert!(optim.window().unwrap().is_empty());
        let ema = optim.ema().unwrap();
        assert_eq!(ema.updates(), 2);
        // After the third window.
        let expected = [&[0x3e999a89, 0xbf4ccdcc, 0x3d4cd44a][..], &[0x3fe666af]];
        assert_eq!(parameters_of(&small), expected);
        let expected = [&[0x3ec00091, 0xbf60009d, 0x3e000123][..], &[0x3ff0002c]];
        assert_eq!(parameters_of(&ema.module(&small)), expected);
    }
}
