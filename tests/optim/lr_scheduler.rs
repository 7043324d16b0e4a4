//! A learning-rate scheduler that waits for steps that are taken.

use burn::lr_scheduler::{
    LrScheduler, LrSchedulerRecord, cosine::CosineAnnealingLrSchedulerConfig,
};

use crate::support::*;

/// A scheduler of a user's: counts its steps.
#[derive(Clone)]
struct Counting(u64);

impl LrScheduler for Counting {
    fn step(&mut self) -> LearningRate {
        self.0 += 1;
        self.0 as f64
    }

    fn to_record(&self) -> LrSchedulerRecord {
        LrSchedulerRecord::new().with_scalar("count", self.0)
    }

    fn load_record(&mut self, record: LrSchedulerRecord) {
        self.0 = record.scalar("count").unwrap();
    }
}

impl Player {
    /// Its schedule, which counts.
    fn counting(&self) -> ScaledLrScheduler {
        ScaledLrScheduler::new(Counting(0), &self.amp)
    }

    fn good_or_bad(&self, good: bool) -> GradientsParams {
        self.gradients(self.loss(if good { 1.0 } else { f32::INFINITY }))
    }

    /// Returns the learning rate.
    fn step_by(&mut self, lr: &mut ScaledLrScheduler, good: bool) -> f64 {
        let rate = lr.step();
        let base = rate.base();
        self.step_at(rate, self.good_or_bad(good));
        base
    }

    /// The learning rates of steps that are good (+) or overflow (-).
    fn steps(&mut self, lr: &mut ScaledLrScheduler, good: &str) -> String {
        let rates = good
            .chars()
            .map(|good| self.step_by(lr, good == '+').to_string());
        rates.collect()
    }
}

/// Where the device has no f16, the scaler tests all the same.
fn amp() -> MixedPrecision {
    let half = MixedPrecision::f16();
    match half.check_device(&Device::default()) {
        Ok(()) => half,
        Err(_) => MixedPrecision::f32()
            .with_scaler(GradScalerConfig::new())
            .unwrap(),
    }
}

/// A window of micro-batches is one step. Nothing is skipped without a scaler.
#[test]
fn it_advances_with_steps_that_are_taken() {
    for (name, amp, window, good, rates) in [
        ("each step", amp(), 1, "+--++-+", "1222344"),
        ("windows", amp(), 3, "++++-+++++", "1112222223"),
        ("no scaler", MixedPrecision::f32(), 1, "+-+", "123"),
    ] {
        for of_optim in [false, true] {
            let mut run = Player::new(&amp);
            run.optim = run.optim.with_accumulation(window);
            let mut lr = match of_optim {
                true => ScaledLrScheduler::new(Counting(0), &run.optim),
                false => run.counting(),
            };
            let found = run.steps(&mut lr, good);
            assert_eq!(found, rates, "{name}, {of_optim}");
        }
    }
    // Nor is anything known where a plain optimizer steps.
    let mut lr = ScaledLrScheduler::new(Counting(0), &MixedPrecision::f16());
    assert_eq!([(); 3].map(|()| lr.step().base()), [1.0, 2.0, 3.0]);
}

/// The first step of all, too, whatever others on the handle have done before.
#[test]
fn a_skip_before_the_first_step_is_not_its_own() {
    let mut run = Player::new(&amp());
    let mut other = run.counting();
    run.step_by(&mut other, false);
    let mut lr = run.counting();
    assert_eq!(run.steps(&mut lr, "-++"), "112");
}

/// Burn's schedulers with their groups.
#[test]
fn groups_wait_too() {
    let schedule = || {
        let base = LinearLrSchedulerConfig::new(0.5, 0.1, 4).into();
        let bias = ParamGroup::from_predicate("bias");
        let bias_schedule = CosineAnnealingLrSchedulerConfig::new(0.8, 4);
        let config = ModuleLrSchedulerConfig::new(base).with_group(bias, bias_schedule);
        config.init().unwrap()
    };
    let (mut run, mut plain) = (Player::new(&amp()), schedule());
    let mut lr = ScaledLrScheduler::new(schedule(), &run.amp);
    let id = run.model.bias.as_ref().unwrap().id;
    for good in [true, false, true, true] {
        let expected = plain.clone().step();
        let found = lr.step();
        for path in ["weight", "bias"] {
            let rate = |of: &ModuleLearningRate| of.lr_from_param(id, Some(path));
            assert_eq!(rate(&found), rate(&expected));
        }
        run.step_at(found, run.good_or_bad(good));
        if good {
            plain.step();
        }
    }
}

/// In Burn's own scheduler, each group by itself.
#[test]
fn it_goes_into_burns_scheduler() {
    let mut run = Player::new(&amp());
    let wrapped = |start| ScaledLrScheduler::new(Counting(start), &run.amp);
    let bias = ParamGroup::from_predicate("bias");
    let mut lr = ModuleLrScheduler::new(wrapped(0)).with_group(bias, wrapped(100));
    let id = run.model.weight.id;
    let mut rates = Vec::new();
    for good in [true, false, true] {
        let rate = lr.step();
        rates.push((rate.base(), rate.lr_from_param(id, Some("bias"))));
        run.step_at(rate, run.good_or_bad(good));
    }
    assert_eq!(rates, [(1.0, 101.0), (2.0, 102.0), (2.0, 102.0)]);
}

/// Where only one learning rate can be told, those of groups would be lost.
#[test]
#[should_panic(expected = "wrap each scheduler by itself")]
fn groups_inside_burns_scheduler_are_refused() {
    let base = LinearLrSchedulerConfig::new(0.5, 0.1, 4);
    let bias = ParamGroup::from_predicate("bias");
    let grouped = ModuleLrSchedulerConfig::new(base.clone().into()).with_group(bias, base);
    let lr = ScaledLrScheduler::new(grouped.init().unwrap(), &amp());
    ModuleLrScheduler::new(lr).step();
}

/// What is left of a window is a step, and then there is nothing.
#[test]
fn it_advances_when_a_window_is_flushed() {
    let mut run = Player::new(&amp());
    run.optim = run.optim.with_accumulation(3);
    let mut lr = ScaledLrScheduler::new(Counting(0), &run.optim);
    assert_eq!(run.steps(&mut lr, "++++"), "1112");
    for rate in [2.0, 3.0, 3.0] {
        let next = lr.step();
        assert_eq!(next.base(), rate);
        run.model = run.optim.flush(next, run.model.clone());
    }
}

/// Nor is a step that is refused.
#[test]
fn gradients_that_are_discarded_are_no_step() {
    for is_refused in [false, true] {
        let mut run = Player::new(&amp());
        let mut lr = run.counting();
        assert_eq!(run.step_by(&mut lr, true), 1.0);
        assert_eq!(lr.step().base(), 2.0);
        let grads = run.good_or_bad(true);
        if is_refused {
            let failed = run.optim.try_step(f64::NAN, run.model.clone(), grads);
            assert!(failed.is_err());
        } else {
            run.optim.discard(grads).unwrap();
        }
        assert_eq!(run.steps(&mut lr, "++"), "23");
    }
}

#[test]
fn a_scaler_alone_is_followed() {
    let device = Device::default().autodiff();
    let mut model = LinearConfig::new(4, 2).init(&device);
    let mut scaler: GradScaler = GradScalerConfig::new().init().unwrap();
    let mut optim = SgdConfig::new().init();
    let mut lr = ScaledLrScheduler::new(Counting(0), &scaler);
    let mut rates = Vec::new();
    for factor in [1.0, f32::INFINITY, 1.0, 1.0] {
        let loss = model.forward(Tensor::<2>::ones([8, 4], &device)).mean() * factor;
        let grads = scaler.backward(loss, &model);
        let grads = scaler.unscale(grads, &model).unwrap();
        let rate = lr.step();
        rates.push(rate.base());
        model = scaler.step(&mut optim, rate, model, grads);
        scaler.update().unwrap();
    }
    assert_eq!(rates, [1.0, 2.0, 2.0, 3.0]);
}

/// A clone is another scaler: what it skips is nothing to the schedule of the first.
#[test]
fn a_clone_of_a_scaler_is_not_followed() {
    let scaler = GradScalerConfig::new().init().unwrap();
    let mut lr = ScaledLrScheduler::new(Counting(0), &scaler);
    let mut clone = scaler.clone();
    let mut of_clone = ScaledLrScheduler::new(Counting(0), &clone);
    let rates = [(); 2].map(|()| {
        let rates = (lr.step().base(), of_clone.step().base());
        clone.discard(GradientsParams::new()).unwrap();
        rates
    });
    assert_eq!(rates, [(1.0, 1.0), (2.0, 1.0)]);
}

/// Two optimizers, each with a schedule of its own: a skip of one leaves the other's alone.
#[test]
fn each_optimizer_has_its_own_schedule() {
    let amp = amp();
    let mut runs = [(); 2].map(|()| {
        let run = Player::new(&amp);
        let lr = ScaledLrScheduler::new(Counting(0), &run.optim);
        (run, lr)
    });
    let mut rates = [String::new(), String::new()];
    for step in 0..3 {
        for (index, (run, lr)) in runs.iter_mut().enumerate() {
            let good = ["+-+", "+++"][index];
            rates[index] += &run.steps(lr, &good[step..=step]);
        }
    }
    assert_eq!(rates, ["122", "123"]);
}

/// Threads that step in their own time, as the workers of a training on several devices do.
#[test]
fn each_thread_follows_its_own_steps() {
    let amp = amp();
    let lr = ScaledLrScheduler::new(Counting(0), &amp);
    let work = |pattern: &'static str| {
        let (mut lr, mut run) = (lr.clone(), Player::new(&amp));
        move || run.steps(&mut lr, pattern)
    };
    let work = ["+-++", "+++-"].map(work);
    let rates = std::thread::scope(|threads| {
        let threads = work.map(|work| threads.spawn(work));
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(rates, ["1223", "1234"]);
}

/// A record is that of the scheduler inside, as it goes on: after a skip, with the learning rate that was not used.
#[test]
fn records_resume() {
    let linear = || LinearLrSchedulerConfig::new(0.9, 0.1, 8).init().unwrap();
    for steps in ["++-++", "++-+-"] {
        let mut run = Player::new(&amp());
        let mut lr = ScaledLrScheduler::new(linear(), &run.amp);
        run.steps(&mut lr, steps);
        let bytes = lr.to_record().into_bytes().unwrap();
        let record = LrSchedulerRecord::from_bytes(bytes).unwrap();
        let next = lr.step().base();
        let mut resumed = ScaledLrScheduler::new(linear(), &Player::new(&amp()).amp);
        resumed = resumed.load_record(record.clone());
        assert_eq!(resumed.step().base(), next);
        // The scheduler by itself reads it.
        assert_eq!(linear().load_record(record).step().base(), next);
        // And in Burn's, whose records are those of the scheduler by itself.
        let mut run = Player::new(&amp());
        let mut lr = ModuleLrScheduler::new(ScaledLrScheduler::new(linear(), &run.amp));
        for good in steps.chars() {
            run.step_at(lr.step(), run.good_or_bad(good == '+'));
        }
        let record = lr.to_record();
        assert_eq!(lr.step().base(), next);
        for resumed in [
            ModuleLrScheduler::new(ScaledLrScheduler::new(linear(), &run.amp)),
            linear(),
        ] {
            assert_eq!(resumed.load_record(record.clone()).step().base(), next);
        }
    }
}
