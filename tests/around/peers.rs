//! Ranks that decide on each step together: threads of one process here, each with a model, an optimizer and a loss scale of its own.

use burn_amp::optim::{Peers, Vote};
use burn_amp_tests::ranks::Rank;
use std::error::Error;
use std::thread;

use crate::support::*;

/// The same on all ranks.
fn linear() -> Linear {
    let weights = burn::nn::Initializer::Constant { value: 0.25 };
    let linear = LinearConfig::new(4, 2).with_initializer(weights);
    linear.init(&flex())
}

fn two() -> [Rank; 2] {
    let Ok(two) = <[Rank; 2]>::try_from(Rank::all(2)) else {
        unreachable!("they are two");
    };
    two
}

/// The means of the gradients of all ranks; a rank without some has zeros.
fn average(rank: &Rank, model: &Linear, mut grads: GradientsParams) -> GradientsParams {
    let bias = model.bias.as_ref().unwrap();
    let flat = |data: TensorData| data.try_to_vec::<f32>().unwrap();
    let weight_of = grads.remove::<2>(model.weight.id);
    let bias_of = grads.remove::<1>(bias.id);
    let own = vec![
        weight_of.map(|grad| flat(grad.to_data())),
        bias_of.map(|grad| flat(grad.to_data())),
    ];
    let means = rank.sums(own).into_iter().map(|sum| {
        let mean = |sum: Vec<f32>| sum.iter().map(|sum| sum / rank.size as f32).collect();
        sum.map(mean)
    });
    let [weight_of, bias_of]: [Option<Vec<f32>>; 2] = means.collect::<Vec<_>>().try_into().unwrap();
    let mut grads = GradientsParams::new();
    if let Some(mean) = weight_of {
        let data = TensorData::new(mean, model.weight.dims());
        grads.register(model.weight.id, Tensor::<2>::from_data(data, &flex()));
    }
    if let Some(mean) = bias_of {
        let data = TensorData::new(mean, bias.dims());
        grads.register(bias.id, Tensor::<1>::from_data(data, &flex()));
    }
    grads
}

/// What a step has come to.
#[derive(Clone, Debug, PartialEq)]
struct Reached {
    outcome: Option<StepOutcome>,
    scale: f32,
    counters: StepCounters,
    weights: Vec<f32>,
    regions: Vec<(String, f32)>,
}

type Run = Result<Vec<Reached>, AmpError>;

/// Adds to the optimizer of a rank.
type Add = fn(ScaledOptimizer, usize) -> ScaledOptimizer;

/// Those ranks alone whose number fits.
type Ranks = fn(usize) -> bool;

const NONE: Ranks = |_| false;

/// Multiplies one row of a batch, and so its gradient.
fn row(kind: char) -> (f32, f32) {
    match kind {
        '.' => (0.5, 1.0),
        'o' => (0.5, 1e4), // too large for half precision at the first scale
        'l' => (0.5, 128.0),
        'n' => (0.5, f32::NAN),
        'i' => (f32::INFINITY, 1.0),
        'z' => (0.0, 1.0),
        other => panic!("{other}"),
    }
}

/// Trains on batches of four rows: `rank` of a training on its part of each; none on all of it. A part of `-` has no gradients at all, and at `!` the
/// rank ends; then nothing is averaged.
fn train(script: &str, rank: Option<Rank>, add: Add, in_region: Ranks) -> Run {
    let number = rank.as_ref().map_or(0, |rank| rank.rank);
    let amp = MixedPrecision::f16();
    let (mut model, mut optim) = amp.prepare(linear(), SgdConfig::new().init());
    optim = add(optim, number);
    if let Some(rank) = &rank {
        optim = optim.with_peers(rank.clone());
    }
    let mut reached = Vec::new();
    for batch in script.split(' ') {
        let part = match &rank {
            Some(rank) => &batch[rank.rank * 4 / rank.size..][..4 / rank.size],
            None => batch,
        };
        if part.starts_with('!') {
            return Ok(reached);
        }
        let mut grads = GradientsParams::new();
        if !part.starts_with('-') {
            let rows: Vec<_> = part.chars().map(row).collect();
            let values: Vec<f32> = rows.iter().flat_map(|(value, _)| [*value; 4]).collect();
            let input = Tensor::from_data(TensorData::new(values, [rows.len(), 4]), &flex());
            let factors: Vec<f32> = rows.iter().map(|(_, factor)| *factor).collect();
            let factors = Tensor::from_data(TensorData::new(factors, [rows.len(), 1]), &flex());
            let region = Rescale::dynamic("region")
                .with_scaler(region_settings())
                .unwrap();
            let output = amp.autocast(input, |x: Tensor<2>| match in_region(number) {
                true => rescaled(region, x, |x| model.forward(x)),
                false => model.forward(x),
            });
            let loss = (output.square() * factors).mean();
            optim.set_loss(loss.clone().into_scalar::<f32>().into());
            grads = GradientsParams::from_grads(loss.backward(), &model);
        }
        if let Some(rank) = &rank
            && !script.contains('!')
        {
            grads = average(rank, &model, grads);
        }
        model = optim
            .try_step(0.125, model, grads)
            .map_err(AmpError::from)?;
        let weights = model.weight.val().to_data().try_to_vec().unwrap();
        reached.push(Reached {
            outcome: optim.scaler().last_outcome(),
            scale: amp.loss_scale(),
            counters: amp.counters(),
            weights,
            regions: amp.regions(),
        });
    }
    Ok(reached)
}

fn region_settings() -> GradScalerConfig {
    GradScalerConfig::new()
        .with_init_scale(1.0)
        .with_growth_interval(2)
}

/// What each of so many ranks has come to.
fn ranks(size: usize, script: &'static str, add: Add, in_region: Ranks) -> Vec<Run> {
    let threads = Rank::all(size).into_iter();
    let threads =
        threads.map(|rank| thread::spawn(move || train(script, Some(rank), add, in_region)));
    let threads: Vec<_> = threads.collect();
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect()
}

fn plain(optim: ScaledOptimizer, _rank: usize) -> ScaledOptimizer {
    optim
}

/// Batches of four rows; `|` shows nothing, the first half is rank 0's of two. Compared with one process that has the whole batch.
const SCRIPTS: &str = "
.... .... ....
.... ..o. .... ....
o..o .... ....
.... ..n. .... ....
n... .... .n.n ....
..i. .... ....
o.n. .... ....
zzzz .... zzzz
zz.. ....
";

/// Two ranks and four come to what one process with the whole batch does, bit for bit: parameters, loss scale, counters, and the cause of each skip.
#[test]
fn ranks_step_as_one_process_with_the_whole_batch() {
    for script in SCRIPTS.lines().filter(|line| !line.is_empty()) {
        let alone = train(script, None, plain, NONE).unwrap();
        for size in [2, 4] {
            for (rank, run) in ranks(size, script, plain, NONE).into_iter().enumerate() {
                assert_eq!(run.unwrap(), alone, "{script}: rank {rank} of {size}");
            }
        }
    }
}

/// One rank alone has no gradients, a step that a guard rejects, an overflowing micro-batch, an overflow in a region, a region, zeros.
const ALONE: [(&str, Add, Ranks); 7] = [
    ("..-- .... --.. ....", plain, NONE),
    ("---- .... ....", plain, NONE),
    (
        ".... .... .... ..ll .... ....",
        |optim, _| {
            optim.with_hook(Guard::SkipStep(
                SkipStep::new().with_rolling_interval_length(4),
            ))
        },
        NONE,
    ),
    (
        ".... ..o. .... o... .... .... ....",
        |optim, _| optim.with_accumulation(AccumulationConfig::new(2).with_skip_micro_batch(true)),
        NONE,
    ),
    (
        ".... ..o. .... .... ....",
        |optim, _| optim.with_accumulation(2),
        NONE,
    ),
    (".... ..o. .... .... ....", plain, |_| true),
    (".... .... .... ....", plain, |rank| rank == 0),
];

#[test]
fn ranks_agree_on_what_one_of_them_finds() {
    for (script, add, in_region) in ALONE {
        let mut runs = ranks(2, script, add, in_region).into_iter();
        let first = runs.next().unwrap().unwrap();
        assert_eq!(runs.next().unwrap().unwrap(), first, "{script}");
        let last = first.last().unwrap();
        let (skipped, rejected) = (last.counters.skipped(), last.counters.guarded());
        let dropped = last.counters.dropped();
        let is_held = script.contains(['o', 'l']);
        assert_eq!(
            skipped + rejected + dropped > 0,
            is_held,
            "{script}: {last:?}"
        );
    }
}

/// A rank whose step fails, or that ends, ends all: nobody waits for it.
#[test]
fn a_rank_that_fails_or_ends_ends_all() {
    let bad_clip: Add = |optim, rank| match rank {
        0 => optim,
        _ => optim.with_clipping(GradientClip::Norm(-1.0)),
    };
    let stopped = |run: &Run| match run {
        Err(AmpError::Ranks { rank, reason }) => (*rank, reason.clone()),
        other => panic!("{other:?}"),
    };
    let runs = ranks(2, ".... ....", bad_clip, NONE);
    assert!(
        matches!(runs[1], Err(AmpError::InvalidValue { .. })),
        "{runs:?}"
    );
    let (rank, reason) = stopped(&runs[0]);
    assert_eq!(rank, Some(1));
    assert!(reason.contains("`clip` is Norm(-1.0)"), "{reason}");

    let others: Add = |optim, rank| match rank {
        0 => optim,
        _ => optim.with_clipping(GradientClip::Norm(1.0)),
    };
    for run in ranks(2, ".... ....", others, NONE) {
        let (rank, reason) = stopped(&run);
        assert_eq!(rank, Some(1));
        assert!(reason.contains("begins otherwise than rank 0"), "{reason}");
        says(&run.unwrap_err(), ["rank 1"]);
    }
}

/// A rank that leaves its loop, and drops its optimizer, is not waited for.
#[test]
fn a_rank_that_has_ended_ends_the_others() {
    let runs = ranks(2, ".... .... !... ....", plain, NONE);
    assert_eq!(runs[0].as_ref().unwrap().len(), 2);
    for run in &runs[1..] {
        let ended = AmpError::Ranks {
            rank: Some(0),
            reason: "it has ended its training".to_string(),
        };
        assert_eq!(run.as_ref().unwrap_err(), &ended);
    }
}

/// The lowest scale of all ranks is set on each.
#[test]
fn ranks_calibrate_to_the_lowest_scale() {
    let threads = two().map(|rank| {
        thread::spawn(move || {
            let amp = MixedPrecision::f16();
            let (model, optim) = amp.prepare(linear(), SgdConfig::new().init());
            let number = rank.rank as i32;
            let mut optim = optim.with_peers(rank);
            let loss = |model: &Linear| {
                let input = Tensor::<2>::ones([2, 4], &flex());
                let output = amp.autocast(input, |x| model.forward(x));
                output.sum() * 16f32.powi(number)
            };
            let own = amp.calibrate(&model, loss).unwrap();
            let set = optim.calibrate(&model, loss).unwrap();
            assert_eq!(amp.loss_scale(), set);
            (own, set)
        })
    });
    let [first, second] = threads.map(|thread| thread.join().unwrap());
    assert_eq!(first.0, 16.0 * second.0);
    assert_eq!([first.1, second.1], [second.0; 2]);
}

/// A pipeline, and a step that is captured, would vote in another order, or never: both are refused.
#[test]
fn steps_that_do_not_wait_are_refused() {
    struct Alone;
    impl Peers for Alone {
        fn rank(&self) -> usize {
            0
        }

        fn size(&self) -> usize {
            1
        }

        fn agree(&self, vote: Vote) -> Result<Vote, Box<dyn Error + Send + Sync>> {
            Ok(Vote::join([vote]))
        }
    }
    let error = PipelinedOptimizer::new(sgd().with_peers(Alone), Device::flex()).err();
    says(&error.unwrap(), ["`peers`", "pipelined"]);
    let amp = MixedPrecision::f16();
    let model = amp.attach(LinearConfig::new(4, 2).init(&flex()));
    let fused = ScaledOptimizer::new(FusedSgd::new(SgdConfig::new()), &amp).with_peers(Alone);
    let loss = |model: &Linear, input: Tensor<2>| model.forward(input).sum();
    let error = CapturedStep::new(model, fused, loss).err();
    says(&error.unwrap(), ["with_peers"]);
}

/// An engine that fails is asked once, and every step after it is refused.
#[test]
fn an_engine_that_fails_ends_the_votes() {
    struct Gone(Arc<AtomicUsize>);
    impl Peers for Gone {
        fn rank(&self) -> usize {
            0
        }

        fn size(&self) -> usize {
            2
        }

        fn agree(&self, _vote: Vote) -> Result<Vote, Box<dyn Error + Send + Sync>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Err("the cable is cut".into())
        }
    }
    let asked = Arc::default();
    let optim = sgd().with_peers(Gone(Arc::clone(&asked)));
    let mut trial = Trial::new(optim);
    for _ in 0..2 {
        let error = trial.refused(ONES);
        assert!(
            matches!(error, AmpError::Ranks { rank: None, .. }),
            "{error:?}"
        );
        says(&error, ["the other ranks are gone", "the cable is cut"]);
    }
    drop(trial);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

/// What the last of two ranks does before a step that the other does not.
struct Odd<'a> {
    step: usize,
    optim: &'a mut ScaledOptimizer,
    grads: &'a mut GradientsParams,
    lr: &'a mut f64,
    model: &'a Linear,
}

/// The optimizer of a rank, what the odd one does, and what both say of it.
type Apart = (fn(bool) -> ModuleOptimizer, fn(Odd), &'static str);

const APART: [Apart; 6] = [
    (
        // A first step is begun before its gradients are looked at.
        |_| SgdConfig::new().init(),
        |odd| {
            let wrong = Tensor::<2>::zeros([3, 3], &flex().inner());
            odd.grads.register(odd.model.weight.id, wrong);
        },
        "has shape [3, 3]",
    ),
    (
        |is_odd| match is_odd {
            true => AdamConfig::new().init(),
            false => SgdConfig::new().init(),
        },
        |_| {},
        "it has the optimizer",
    ),
    (
        |_| SgdConfig::new().init(),
        |odd| *odd.lr *= 2.0,
        "it has `weight` of shape [4, 2] in F32, with the checksum",
    ),
    (
        |_| SgdConfig::new().init(),
        |odd| {
            if odd.step == 2 {
                odd.optim.scaler_mut().set_loss_scale(512.0).unwrap();
            }
        },
        "it has the loss scale 512, where rank 0 has the loss scale 1024",
    ),
    (
        |_| SgdConfig::new().init(),
        |odd| {
            if odd.step == 2 {
                odd.optim.discard(GradientsParams::new()).unwrap();
            }
        },
        "it has stepped or discarded 3 times, where rank 0 has stepped or discarded 2 times",
    ),
    (
        |_| SgdConfig::new().init(),
        |odd| {
            if odd.step == 2 {
                let record = odd.optim.into_bytes().unwrap();
                odd.optim.from_bytes(record).unwrap();
            }
        },
        "it makes another call than rank 0",
    ),
];

/// Trains on the same batch as the other rank until something fails.
fn until_apart(peers: impl Peers, optim: ModuleOptimizer, odd: Option<fn(Odd)>) -> AmpError {
    let amp = f16_under(at_scale(1024.0));
    let (mut model, optim) = amp.prepare(linear(), optim);
    let mut optim = optim.with_peers(peers);
    for step in 0..4 {
        let output = amp.autocast(Tensor::ones([2, 4], &flex()), |x: Tensor<2>| {
            model.forward(x)
        });
        let mut grads = GradientsParams::from_grads(output.sum().backward(), &model);
        let mut lr = 0.125;
        if let Some(change) = odd {
            change(Odd {
                step,
                optim: &mut optim,
                grads: &mut grads,
                lr: &mut lr,
                model: &model,
            });
        }
        match optim.try_step(lr, model, grads) {
            Ok(stepped) => model = stepped,
            Err(failed) => return failed.error,
        }
    }
    panic!("no step has failed");
}

/// Ranks that do not make the same calls, with the same settings, are told so in the first step that shows it.
#[test]
fn ranks_that_come_apart_are_told_in_what() {
    for (optim, change, why) in APART {
        let threads = two().map(|rank| {
            let is_odd = rank.rank == 1;
            thread::spawn(move || until_apart(rank, optim(is_odd), is_odd.then_some(change)))
        });
        for (rank, thread) in threads.into_iter().enumerate() {
            let error = thread.join().unwrap().to_string();
            let is_named = error.contains("rank 1 of the training stops it");
            // Its own error has no number.
            assert!(is_named || rank == 1, "{error}");
            assert!(error.contains(why), "rank {rank}, {why}: {error}");
        }
    }
}

/// A rank of another version says so before the first step.
#[test]
fn ranks_of_two_versions_are_refused() {
    struct Older(Rank);
    impl Peers for Older {
        fn rank(&self) -> usize {
            self.0.rank
        }

        fn size(&self) -> usize {
            self.0.size
        }

        fn agree(&self, vote: Vote) -> Result<Vote, Box<dyn Error + Send + Sync>> {
            let sent = serde_json::to_string(&vote)?;
            let sent = match self.0.rank {
                0 => sent,
                _ => sent.replace(
                    concat!("burn-amp ", env!("CARGO_PKG_VERSION")),
                    "burn-amp 0.0.9",
                ),
            };
            self.0.agree(serde_json::from_str(&sent)?)
        }
    }
    let run = |rank| until_apart(Older(rank), SgdConfig::new().init(), None);
    let threads = two().map(|rank| thread::spawn(move || run(rank)));
    let why = concat!(
        "it has burn-amp 0.0.9, where rank 0 has burn-amp ",
        env!("CARGO_PKG_VERSION")
    );
    for thread in threads {
        says(&thread.join().unwrap(), ["rank 1", why]);
    }
}

/// A calibration before the first step is a vote, too, and that step is still begun by comparing what is set.
#[test]
fn ranks_compare_their_settings_after_a_calibration() {
    let run = |rank: Rank| {
        let (amp, is_odd) = (MixedPrecision::f16(), rank.rank == 1);
        let (model, optim) = amp.prepare(linear(), SgdConfig::new().init());
        let limit = if is_odd { 1.0 } else { 2.0 };
        let optim = optim.with_clipping(GradientClip::Norm(limit));
        let loss = |model: &Linear| {
            let input = Tensor::<2>::ones([2, 4], &flex());
            amp.autocast(input, |x| model.forward(x)).sum()
        };
        let mut optim = optim.with_peers(rank);
        optim.calibrate(&model, loss).unwrap();
        let grads = GradientsParams::from_grads(loss(&model).backward(), &model);
        optim.try_step(0.1, model, grads).unwrap_err().error
    };
    let threads = two().map(|rank| thread::spawn(move || run(rank)));
    for thread in threads {
        says(&thread.join().unwrap(), ["rank 1", "Norm(1.0)"]);
    }
}
