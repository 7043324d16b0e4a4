//! Records with contents that no run has made, under a checksum that holds: refused when they are loaded, not later.

use crate::{forge::forged, support::*};

/// What is changed in an honest record.
type Change = Box<dyn Fn(&mut Pack)>;

/// Other values in the JSON under `key`, in the object at this place.
fn json_in(key: &'static str, pointer: &'static str, values: Value) -> Change {
    Box::new(move |pack| {
        let text = pack.metadata.get_mut(key).expect("such a state");
        let mut state: Value = serde_json::from_str(text).unwrap();
        let object = state.pointer_mut(pointer).unwrap();
        for (name, value) in values.as_object().unwrap() {
            object[name] = value.clone();
        }
        *text = state.to_string();
    })
}

/// Other values in the scaler's state.
fn state(pointer: &'static str, values: Value) -> Change {
    json_in("burn_amp.state", pointer, values)
}

fn metadata(name: &'static str, value: &'static str) -> Change {
    Box::new(move |pack| {
        pack.metadata.insert(name.into(), value.into());
    })
}

fn scalar(name: &'static str, value: Scalar) -> Change {
    Box::new(move |pack| {
        pack.scalars.insert(name.into(), value);
    })
}

/// Another dtype or shape of a tensor, with as many values as that needs.
fn tensor(name: impl Into<String>, dtype: DType, shape: &'static [usize]) -> Change {
    let name = name.into();
    Box::new(move |pack| {
        let (_, values) = pack.tensors.get_mut(&name).expect("such a tensor");
        let bytes = dtype.size() * shape.iter().product::<usize>();
        *values = (dtype, shape.to_vec(), vec![0; bytes]);
    })
}

/// What becomes of the record.
enum Fate {
    Loads,
    /// Damaged, as it says when it is read.
    Unreadable(&'static str),
    /// By the optimizer, with an error of this variant.
    Refused(&'static str, &'static str),
    /// Nobody knows what this is.
    Unknown(&'static str),
}

use Fate::{Loads, Refused, Unknown, Unreadable};

/// Each change of a record of this optimizer, and what becomes of it.
fn check<O: ModuleOptim>(
    new: impl Fn() -> ScaledOptimizer<O>,
    dtype: DType,
    cases: impl IntoIterator<Item = (Change, Fate)>,
) {
    let honest = trained(new(), dtype, 0..4, &[2]).into_bytes().unwrap();
    for (change, fate) in cases {
        let bytes = forged(&honest, change);
        if matches!(fate, Loads) {
            new().from_bytes(bytes).unwrap();
            continue;
        }
        let error = refused(&mut new(), |optim| optim.from_bytes(bytes.clone()));
        match fate {
            Loads => unreachable!(),
            Unreadable(part) => {
                is_error(&error, "DamagedRecord", [part]);
                assert_eq!(AmpRecord::from_bytes(bytes).err(), Some(error));
            }
            Refused(variant, part) => is_error(&error, variant, [part]),
            Unknown(part) => is_error(&error, "ForeignRecord", [part, "update burn-amp"]),
        }
    }
}

#[test]
fn a_scalers_state_that_no_run_has() {
    let most = u64::MAX;
    let huge = json!({"steps": 1_u64 << 40, "skipped": 1_u64 << 39});
    let (more, beyond) = (Some("4 skipped steps of 3"), Some("18446744073709551615"));
    let (scale, iteration) = (Some("`scale` is -"), Some("its iteration is"));
    let seen = json!({"max_abs": 0.5, "elements": 2, "above": 0}); // as in earlier versions
    // Between two calls there is a step or a skip, or nothing.
    let cases = [
        ("/counters", json!({"steps": 3, "skipped": 4}), more),
        ("/counters", huge, None),
        ("/counters", json!({"steps": most}), beyond),
        ("/counters", json!({"consecutive_skips": most}), beyond),
        ("/counters", json!({"dropped": most}), beyond),
        ("/counters", json!({"discarded": most}), beyond),
        ("/counters", json!({"skipped_windows": most}), beyond),
        ("/schedule", json!({"scale": -0.0}), scale),
        ("/schedule", json!({"scale": -1.0}), scale),
        ("/schedule", json!({"scale": 0.5}), None),
        ("", json!({"pending": "Stepped", "seen": seen}), None),
        ("", json!({"pending": "Skipped"}), None),
        ("", json!({"pending": "Accumulated"}), iteration),
    ];
    let cases = cases.map(|(pointer, values, part)| {
        let fate = part.map_or(Loads, Unreadable);
        (state(pointer, values), fate)
    });
    check(adam, DType::F32, cases);
}

#[test]
fn a_region_whose_factor_is_zero() {
    let mut schedule = serde_json::to_value(at_scale(8.0).schedule().unwrap()).unwrap();
    schedule["scale"] = 0.0.into();
    let damaged = state("", json!({"regions": {"a": {"schedule": schedule}}}));
    let fate = Unreadable("the factor of a region is 0");
    check(adam, DType::F32, [(damaged, fate)]);
}

#[test]
fn averages_of_more_updates_than_can_be_counted() {
    let updates = json_in("burn_amp.hook.ema", "", json!({"updates": u64::MAX}));
    let averaged = || adam().with_ema(EmaConfig::new());
    let cases = [(updates, Refused("DamagedRecord", "updates"))];
    check(averaged, DType::F32, cases);
}

#[test]
fn masters_that_are_not_f32_or_of_another_shape() {
    let master = |dtype, shape| tensor("1001.master", dtype, shape);
    let damaged = |change| (change, Refused("DamagedRecord", "1001.master"));
    let dtypes = [DType::F16, DType::F64, DType::I32];
    let dtypes = dtypes.map(|dtype| damaged(master(dtype, &[1, 3])));
    let shapes: [&[usize]; 4] = [&[3, 1], &[1, 4], &[1, 1], &[3]];
    let shapes = shapes.map(|shape| damaged(master(DType::F32, shape)));
    let honest = (master(DType::F32, &[1, 3]), Loads);
    let cases = dtypes.into_iter().chain(shapes).chain([honest]);
    check(master_adam, DType::F16, cases);
}

/// Both moments of Adam in the shape `[3, 1]`.
fn transposed(adam: &'static str) -> Change {
    Box::new(move |pack| {
        for moment in ["moment_1", "moment_2"] {
            tensor(format!("{adam}.{moment}"), DType::F32, &[3, 1])(pack);
        }
    })
}

#[test]
fn a_moment_of_another_shape() {
    let one = tensor("1001.momentum.moment_1", DType::F32, &[3, 1]);
    let damaged = Refused("DamagedRecord", "1001.momentum.moment_");
    check(adam, DType::F32, [(one, damaged)]);
    let both = transposed("1001.inner.momentum");
    let damaged = Refused("DamagedRecord", "1001.inner.momentum.moment_");
    check(master_adam, DType::F16, [(both, damaged)]);
}

/// Nothing in the record has the parameter's shape: the first step sees it, before it changes anything.
#[test]
fn moments_of_another_parameter_are_refused_by_the_step() {
    let honest = trained(adam(), DType::F32, 0..4, &[2]).into_bytes();
    let both = forged(&honest.unwrap(), transposed("1001.momentum"));
    let small = Small::new(DType::F32);
    let before = parameters(&small);
    for mut optim in [adam(), adam().with_accumulation(2)] {
        optim.from_bytes(both.clone()).unwrap();
        let loaded = contents(&mut optim);
        for _ in 0..2 {
            let grads = small.gradients(0, 1.0, false);
            let error = optim.try_step(0.1, small.clone(), grads).unwrap_err().error;
            is_error(&error, "ForeignRecord", ["`weight`", "[3, 1]", "[1, 3]"]);
            assert_eq!(contents(&mut optim), loaded);
        }
        assert_eq!(parameters(&small), before);
    }
}

#[test]
fn a_newer_version_is_refused_and_says_so() {
    let mut optim = trained(adam(), DType::F32, 0..3, &[]);
    let records = [optim.into_bytes().unwrap(), optim.scaler().bits()];
    for found in [2, 1000, u64::MAX] {
        for bytes in &records {
            // A later release may have another checksum: this one stays as it was.
            let mut newer = pack(bytes.clone());
            scalar("burn_amp.version", Scalar::UInt(found))(&mut newer);
            let error = refused(&mut adam(), |optim| optim.from_bytes(newer.into_bytes()));
            let parts = ["memory", &found.to_string(), "up to 1", "update burn-amp"];
            is_error(&error, "NewerRecord", parts);
        }
    }
}

/// What a later release of the same version may add is named; it is no damage.
#[test]
fn what_a_later_release_may_add() {
    let sam: Change = Box::new(|pack| {
        let moment = pack.tensors["1001.momentum.moment_1"].clone();
        pack.tensors.insert("1001.burn_amp.sam".into(), moment);
    });
    let rho = scalar("burn_amp.rho", Scalar::Float(0.5));
    let added = [
        (metadata("burn_amp.kind", "sam"), Unknown("`sam`")),
        (metadata("burn_amp.sam", "{}"), Unknown("`burn_amp.sam`")),
        (rho, Unknown("`burn_amp.rho`")),
        (sam, Unknown("`1001.burn_amp.sam`")),
    ];
    let places = ["", "/counters", "/schedule", "/schedule/config"];
    let in_state = places.map(|pointer| {
        let later = state(pointer, json!({"cooldown": 3}));
        (later, Refused("ForeignRecord", "cooldown"))
    });
    check(adam, DType::F32, added.into_iter().chain(in_state));
}

/// No version at all; and a rank that its tensors do not have: Burn rebuilds a state with that which is stored beside it, and panics at the
/// next step if the parameter has another.
#[test]
fn scalars_that_no_release_writes() {
    let none = [Scalar::UInt(0), Scalar::Int(1), Scalar::Bool(true)];
    let version = |version| {
        let other = scalar("burn_amp.version", version);
        (other, Unreadable("burn_amp.version"))
    };
    let rank = |(rank, part)| {
        let other = scalar("1001.__rank", Scalar::UInt(rank));
        (other, Unreadable(part))
    };
    let ranks = || [(0, "rank 0"), (1, "rank 1"), (3, "rank 3"), (9, "rank 9")].map(rank);
    let versions = none.into_iter().chain([Scalar::Float(1.0)]).map(version);
    check(adam, DType::F32, versions.chain(ranks()));
    check(master_adam, DType::F16, ranks());
}
