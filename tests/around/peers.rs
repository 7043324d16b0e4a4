//! Ranks that decide on each step together: threads of one process here. That they come to what one process does that has the whole of each batch,
//! `tests/oracle` shows.

use burn_amp::optim::{Peers, Vote};
use burn_amp_tests::ranks::Rank;
use std::error::Error;
use std::thread;

use crate::support::*;

/// What both ranks of a training come to.
fn both<T: Send>(run: impl Fn(Rank) -> T + Sync) -> [T; 2] {
    let (mut ranks, run) = (Rank::all(2), &run);
    thread::scope(|scope| {
        let other = ranks.remove(1);
        let other = scope.spawn(move || run(other));
        [run(ranks.remove(0)), other.join().unwrap()]
    })
}

type One = Player<Linear>;

/// The same on all ranks.
fn one() -> One {
    let weights = burn::nn::Initializer::Constant { value: 0.25 };
    let linear = LinearConfig::new(4, 2).with_initializer(weights);
    Player::new(linear.init(&flex()), &f16_under(at_scale(1024.0)))
}

fn loss(amp: &MixedPrecision, model: &Linear) -> Tensor<1> {
    let batch = Tensor::<2>::ones([2, 4], &flex());
    amp.autocast(batch, |x| model.forward(x)).sum()
}

/// Which rank does what the other does not, and what both say of it.
const APART: &str = "
1 > has a gradient of another shape > has shape [3, 3]
1 > has a wrong setting > `clip` is Norm(-1.0)
1 > has another optimizer > it has the optimizer
1 > has another learning rate > it has `weight` of shape [4, 2] in F32, with the checksum
1 > has a scale of its own > it has the loss scale 512, where rank 0 has the loss scale 1024
1 > discards gradients > it has stepped or discarded 3 times, where rank 0 has stepped or discarded 2 times
1 > loads a record > it makes another call than rank 0
0 > ends > it has ended its training
";

/// Trains until a step fails, with what this rank does that the other does not.
fn train(peers: impl Peers, odd: &str) -> Result<(), AmpError> {
    let (mut one, clip) = (one(), GradientClip::Norm(-1.0));
    one.optim = one.optim.with_peers(peers);
    for step in 0..4 {
        let (mut grads, mut lr) = (one.gradients(loss(&one.amp, &one.model)), 0.125);
        match (step, odd) {
            // A first step is begun before its gradients are looked at.
            (0, "has a gradient of another shape") => {
                let wrong = Tensor::<2>::zeros([3, 3], &Device::flex());
                grads.register(one.model.weight.id, wrong);
            }
            (0, "has a wrong setting") => one.optim = one.optim.with_clipping(clip),
            (0, "has another optimizer") => *one.optim.optimizer_mut() = AdamConfig::new().init(),
            (0, "has another learning rate") => lr *= 2.0,
            (2, "has a scale of its own") => one.optim.scaler_mut().set_loss_scale(512.0)?,
            (2, "discards gradients") => one.optim.discard(GradientsParams::new())?,
            (2, "loads a record") => {
                let record = one.optim.into_bytes()?;
                one.optim.from_bytes(record)?;
            }
            (2, "ends") => return Ok(()),
            _ => {}
        }
        one.try_step(lr, grads)?;
    }
    Ok(())
}

/// Nobody waits for a rank that does what the other does not, fails or ends: both are told in the first step that shows it.
#[test]
fn ranks_that_come_apart_are_told_in_what() {
    for [who, odd, why] in rows(APART) {
        let who: usize = who.parse().unwrap();
        let ended = both(move |rank| {
            let odd = if rank.rank == who { odd } else { "nothing" };
            train(rank, odd)
        });
        let variant = format!("Ranks {{ rank: Some({who})");
        let stops = format!("rank {who} of the training stops it");
        let error = ended[1 - who].as_ref().unwrap_err();
        is_error(error, &variant, [&*stops, why]);
        // Its own error has no number.
        match &ended[who] {
            Ok(()) => assert_eq!(odd, "ends"),
            Err(error) => says(error, [why]),
        }
    }
}

/// A region that one of them opens, and a loss that one of them has.
#[test]
fn ranks_go_by_what_one_of_them_has_seen() {
    let ended = both(|rank| {
        let (mut one, is_last) = (one(), rank.rank == 1);
        let guard = SkipStep::new().with_rolling_interval_length(4);
        one.optim = one.optim.with_hook(Guard::SkipStep(guard));
        one.optim = one.optim.with_peers(rank);
        for step in 0..8 {
            let usual = 1.0 + (step % 3) as f64 / 100.0;
            let has_spike = is_last && step == 6;
            one.optim.set_loss(if has_spike { 1e6 } else { usual });
            let settings = at_scale(1.0).with_growth_interval(2);
            let region = Rescale::dynamic("region").with_scaler(settings).unwrap();
            let batch = Tensor::<2>::ones([2, 4], &flex());
            let output = one.amp.autocast(batch, |x| match is_last {
                true => rescaled(region, x, |x| one.model.forward(x)),
                false => one.model.forward(x),
            });
            one.train(0.125, output.sum() * usual);
        }
        (one.counters(), one.amp.regions())
    });
    assert_eq!(ended[0], ended[1]);
    let (counters, regions) = &ended[0];
    assert_eq!((counters.guarded(), counters.stepped()), (1, 7));
    assert_eq!(*regions, [("region".to_string(), 8.0)]);
}

/// As where each rank has a part of the gradients. An infinity that no scope gave may be an overflow, but not beside a NaN that one of them has alone.
#[test]
fn a_nan_of_one_rank_spares_the_scale_of_all() {
    for (parts, scale) in [
        ([f32::INFINITY, f32::INFINITY], 512.0),
        ([f32::INFINITY, f32::NAN], 1024.0),
        ([f32::NAN, f32::INFINITY], 1024.0),
    ] {
        let ended = both(move |rank| {
            let (mut one, part) = (one(), parts[rank.rank]);
            one.optim = one.optim.with_peers(rank);
            drop(one.gradients(loss(&one.amp, &one.model)));
            let mut grads = GradientsParams::new();
            let weight = Tensor::<2>::full([4, 2], part, &Device::flex());
            grads.register(one.model.weight.id, weight);
            one.step(0.125, grads);
            (one.amp.loss_scale(), one.counters().skipped())
        });
        assert_eq!(ended, [(scale, 1), (scale, 1)], "{parts:?}");
    }
}

/// And compare their settings afterwards: a calibration is a vote, and no first step.
#[test]
fn ranks_calibrate_to_the_lowest_scale() {
    let ended = both(|rank| {
        let (One { amp, model, optim }, number) = (one(), rank.rank as i32);
        let loss = |model: &Linear| loss(&amp, model) * 16f32.powi(number);
        let own = amp.calibrate(&model, loss).unwrap();
        let mut optim = optim.with_peers(rank);
        let set = optim.calibrate(&model, loss).unwrap();
        assert_eq!(amp.loss_scale(), set);
        let mut optim = optim.with_clipping(GradientClip::Norm((2 - number).into()));
        let grads = GradientsParams::from_grads(loss(&model).backward(), &model);
        let error = optim.try_step(0.1, model, grads).unwrap_err().error;
        is_error(&error, "Ranks { rank: Some(1)", ["Norm(1.0)"]);
        (own, set)
    });
    let [(first, one), (second, other)] = ended;
    assert_eq!([first, one, other], [16.0 * second, second, second]);
}

/// A pipeline, and a step that is captured, would vote in another order, or never: both are refused.
#[test]
fn steps_that_do_not_wait_are_refused() {
    let alone = || Rank::all(1).remove(0);
    let error = PipelinedOptimizer::new(sgd().with_peers(alone()), Device::flex()).err();
    is_error(&error.unwrap(), "InvalidValue", ["`peers`", "pipelined"]);
    let One { amp, model, .. } = one();
    let fused = ScaledOptimizer::new(FusedSgd::new(SgdConfig::new()), &amp).with_peers(alone());
    let of = |model: &Linear, input: Tensor<2>| model.forward(input).sum();
    let error = CapturedStep::new(model, fused, of).err();
    is_error(&error.unwrap(), "CannotCapture", ["with_peers"]);
}

/// A rank with an engine of its own.
struct Engine<F>(Rank, F);

type Agreed = Result<Vote, Box<dyn Error + Send + Sync>>;

impl<F: Fn(&Rank, Vote) -> Agreed + Send + Sync + 'static> Peers for Engine<F> {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn agree(&self, vote: Vote) -> Agreed {
        (self.1)(&self.0, vote)
    }
}

/// One that fails is asked once, and every step after it is refused.
#[test]
fn an_engine_that_fails_ends_the_votes() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let fails = |_: &Rank, _: Vote| -> Agreed {
        ASKED.fetch_add(1, Ordering::Relaxed);
        Err("the cable is cut".into())
    };
    let peers = Engine(Rank::all(2).remove(0), fails);
    let mut trial = Trial::new(sgd().with_peers(peers));
    for _ in 0..2 {
        let error = trial.refused(ONES);
        is_error(&error, "Ranks { rank: None", ["the cable is cut"]);
    }
    drop(trial);
    assert_eq!(ASKED.load(Ordering::Relaxed), 1);
}

/// Before the first step.
#[test]
fn ranks_of_two_versions_are_refused() {
    let own = concat!("burn-amp ", env!("CARGO_PKG_VERSION"));
    let agree = move |rank: &Rank, vote: Vote| -> Agreed {
        let mut sent = serde_json::to_string(&vote)?;
        if rank.rank == 1 {
            sent = sent.replace(own, "burn-amp 0.0.9");
        }
        rank.agree(serde_json::from_str(&sent)?)
    };
    let why = format!("it has burn-amp 0.0.9, where rank 0 has {own}");
    for ended in both(move |rank| train(Engine(rank, agree), "nothing")) {
        is_error(&ended.unwrap_err(), "Ranks { rank: Some(1)", [&*why]);
    }
}
