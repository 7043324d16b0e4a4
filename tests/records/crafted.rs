//! Records with contents that no run has made, under a checksum that holds: refused when they are loaded, not later.

use burn_amp_tests::prelude::*;
use burn_amp_tests::says;
use burn_pack::Scalar;
use serde_json::json;

use crate::{
    forge::{STATE, forged, with_json},
    support::{Pack, Small, adam, master_adam, pack, parameters, quietly},
};

fn trained() -> Bytes {
    let mut optim = adam();
    Small::new(DType::F32).train(&mut optim, 0..4, &[2]);
    optim.into_bytes().unwrap()
}

fn trained_masters() -> Bytes {
    let mut optim = master_adam();
    Small::new(DType::F16).train(&mut optim, 0..4, &[2]);
    optim.into_bytes().unwrap()
}

/// Loads a record that must be refused, and left no trace.
fn refused<O: ModuleOptim>(mut optim: ScaledOptimizer<O>, bytes: Bytes) -> AmpError {
    let before = pack(optim.into_bytes().unwrap());
    let result = quietly(|| optim.from_bytes(bytes)).expect("no panic");
    let error = result.unwrap_err();
    assert_eq!(pack(optim.into_bytes().unwrap()), before, "{error}");
    error
}

fn assert_damaged(error: &AmpError, part: &str) {
    assert!(matches!(error, AmpError::DamagedRecord { .. }), "{error:?}");
    assert!(error.to_string().contains(part), "{error}");
}

#[test]
fn counters_that_no_run_has_counted() {
    let record = trained();
    let counters = |change: serde_json::Value| {
        with_json(&record, STATE, |state| {
            for (name, value) in change.as_object().unwrap() {
                state["counters"][name] = value.clone();
            }
        })
    };
    let more = counters(json!({"steps": 3, "skipped": 4}));
    assert_damaged(&refused(adam(), more.clone()), "4 skipped steps of 3");
    assert_damaged(
        &AmpRecord::from_bytes(more).unwrap_err(),
        "4 skipped steps of 3",
    );
    for name in [
        "steps",
        "consecutive_skips",
        "dropped",
        "discarded",
        "skipped_windows",
    ] {
        let most = counters(json!({name: u64::MAX}));
        assert_damaged(&refused(adam(), most), &u64::MAX.to_string());
    }
    let large = counters(json!({"steps": 1_u64 << 40, "skipped": 1_u64 << 39}));
    adam().from_bytes(large).unwrap();
}

#[test]
fn a_loss_scale_of_minus_zero() {
    let record = trained();
    let scale = |scale: f64| {
        with_json(&record, STATE, |state| {
            state["schedule"]["scale"] = json!(scale);
        })
    };
    assert_damaged(&refused(adam(), scale(-0.0)), "`scale` is -0");
    assert_damaged(&refused(adam(), scale(-1.0)), "`scale` is -1");
    adam().from_bytes(scale(0.5)).unwrap();
}

#[test]
fn averages_of_more_updates_than_can_be_counted() {
    let mut optim = adam().with_ema(EmaConfig::new()).unwrap();
    Small::new(DType::F32).train(&mut optim, 0..4, &[]);
    let record = with_json(&optim.into_bytes().unwrap(), "burn_amp.hook.ema", |state| {
        state["updates"] = json!(u64::MAX);
    });
    assert_damaged(&refused(optim, record), "updates");
}

/// Gives a tensor another dtype or shape, with as many values as that needs.
fn reshaped(pack: &mut Pack, name: &str, dtype: DType, shape: &[usize]) {
    let (_, values) = pack.tensors.get_mut(name).expect("such a tensor");
    let bytes = dtype.size() * shape.iter().product::<usize>();
    *values = (dtype, shape.to_vec(), vec![0; bytes]);
}

#[test]
fn masters_that_are_not_f32_or_of_another_shape() {
    let record = trained_masters();
    let master = |dtype, shape: &[usize]| {
        forged(&record, |pack| reshaped(pack, "1001.master", dtype, shape))
    };
    master_adam()
        .from_bytes(master(DType::F32, &[1, 3]))
        .unwrap();
    for dtype in [DType::F16, DType::F64, DType::I32] {
        let error = refused(master_adam(), master(dtype, &[1, 3]));
        assert!(error.to_string().contains("1001.master"), "{error}");
    }
    for shape in [[3, 1], [1, 4], [1, 1]] {
        assert_damaged(
            &refused(master_adam(), master(DType::F32, &shape)),
            "1001.master",
        );
    }
    let error = refused(master_adam(), master(DType::F32, &[3]));
    assert!(error.to_string().contains("1001.master"), "{error}");
}

#[test]
fn a_moment_of_another_shape() {
    let record = trained();
    let one = forged(&record, |pack| {
        reshaped(pack, "1001.momentum.moment_1", DType::F32, &[3, 1]);
    });
    assert_damaged(&refused(adam(), one), "1001.momentum.moment_");
    let record = trained_masters();
    let both = forged(&record, |pack| {
        reshaped(pack, "1001.inner.momentum.moment_1", DType::F32, &[3, 1]);
        reshaped(pack, "1001.inner.momentum.moment_2", DType::F32, &[3, 1]);
    });
    assert_damaged(&refused(master_adam(), both), "1001.inner.momentum.moment_");
}

/// Nothing in the record tells the parameter's shape: the first step sees it, before it changes anything.
#[test]
fn moments_of_another_parameter_are_refused_by_the_step() {
    let both = forged(&trained(), |pack| {
        reshaped(pack, "1001.momentum.moment_1", DType::F32, &[3, 1]);
        reshaped(pack, "1001.momentum.moment_2", DType::F32, &[3, 1]);
    });
    let small = Small::new(DType::F32);
    let before = parameters(&small);
    for windowed in [false, true] {
        let mut optim: ScaledOptimizer<ModuleOptimizer> = adam();
        if windowed {
            optim = optim.with_accumulation(AccumulationConfig::new(2)).unwrap();
        }
        optim.from_bytes(both.clone()).unwrap();
        let loaded = pack(optim.into_bytes().unwrap());
        for _ in 0..2 {
            let grads = small.gradients(0, 1.0, false);
            let error = optim.try_step(0.1, small.clone(), grads).unwrap_err().error;
            assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error}");
            for part in ["`weight`", "[3, 1]", "[1, 3]"] {
                assert!(error.to_string().contains(part), "{error}");
            }
            assert_eq!(pack(optim.into_bytes().unwrap()), loaded);
        }
        assert_eq!(parameters(&small), before);
    }
}

/// What a later release of the same version may add is named; it is no damage.
#[test]
fn what_a_later_release_may_add() {
    let record = trained();
    type Change = (&'static str, fn(&mut Pack));
    let later: [Change; 4] = [
        ("`sam`", |pack| {
            let kind = pack.metadata.get_mut("burn_amp.kind").unwrap();
            *kind = "sam".to_string();
        }),
        ("`burn_amp.sam`", |pack| {
            pack.metadata
                .insert("burn_amp.sam".to_string(), "{}".to_string());
        }),
        ("`burn_amp.rho`", |pack| {
            pack.scalars
                .insert("burn_amp.rho".to_string(), Scalar::Float(0.5));
        }),
        ("`1001.burn_amp.sam`", |pack| {
            let moment = pack.tensors["1001.momentum.moment_1"].clone();
            pack.tensors.insert("1001.burn_amp.sam".to_string(), moment);
        }),
    ];
    for (name, change) in later {
        let error = refused(adam(), forged(&record, change));
        assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error:?}");
        says(&error, [name, "update burn-amp"]);
    }
    for pointer in ["", "/counters", "/schedule", "/schedule/config"] {
        let record = with_json(&record, STATE, |state| {
            state.pointer_mut(pointer).unwrap()["cooldown"] = json!(3);
        });
        let error = refused(adam(), record);
        assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error:?}");
        assert!(error.to_string().contains("cooldown"), "{error}");
    }
}

/// The step after a load goes on as that of the run that was saved.
#[test]
fn an_honest_record_is_not_refused_by_the_step() {
    let mut saved = adam();
    let small = Small::new(DType::F32).train(&mut saved, 0..4, &[]);
    let mut loaded = adam();
    loaded.from_bytes(saved.into_bytes().unwrap()).unwrap();
    let expected = small.clone().train(&mut saved, 4..6, &[]);
    let resumed = small.train(&mut loaded, 4..6, &[]);
    let bits = |param: Param<_>| {
        parameters(&Small {
            weight: param,
            bias: Small::new(DType::F32).bias,
        })
    };
    assert_eq!(bits(resumed.weight), bits(expected.weight));
}

/// Burn rebuilds a state with the rank that is stored beside it, and panics at the next step if the parameter has another.
#[test]
fn a_rank_that_its_tensors_do_not_have() {
    for record in [trained(), trained_masters()] {
        for rank in [0, 1, 3, 9] {
            let bytes = forged(&record, |contents| {
                contents
                    .scalars
                    .insert("1001.__rank".to_string(), Scalar::UInt(rank));
            });
            let error = AmpRecord::from_bytes(bytes).unwrap_err();
            assert_damaged(&error, &format!("rank {rank}"));
        }
    }
}

/// Between two calls there is a step or a skip, or nothing.
#[test]
fn an_outcome_that_no_iteration_has() {
    let record = trained();
    let pending =
        |outcome: &str| with_json(&record, STATE, |state| state["pending"] = json!(outcome));
    for outcome in ["Accumulated", "Dropped", "NoGradients"] {
        let error = refused(adam(), pending(outcome));
        assert_damaged(&error, &format!("its iteration is {outcome}"));
    }
    for outcome in ["Stepped", "Skipped"] {
        adam().from_bytes(pending(outcome)).unwrap();
    }
}
