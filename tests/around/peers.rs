//! Ranks that decide on each step together: threads of one process here, each with a model, an optimizer and a loss scale of its own.

use burn_amp::optim::{Peers, Vote};
use std::error::Error;
use std::sync::Condvar;
use std::thread;

use crate::support::*;

/// The values of a round, and the number of ranks that have read them.
type Round<T> = (Vec<Option<T>>, usize);

/// Gives all ranks the values of all. A rank that waits for ever is a failure.
struct Exchange<T> {
    round: Mutex<Round<T>>,
    changed: Condvar,
}

impl<T: Clone> Exchange<T> {
    fn new(size: usize) -> Arc<Self> {
        Arc::new(Self {
            round: Mutex::new((vec![None; size], 0)),
            changed: Condvar::new(),
        })
    }

    fn all(&self, rank: usize, value: T) -> Vec<T> {
        let long = Duration::from_secs(20);
        let until = |guard, is_over: &mut dyn FnMut(&mut Round<T>) -> bool| {
            let waits = |round: &mut _| !is_over(round);
            let (guard, timeout) = (self.changed.wait_timeout_while(guard, long, waits)).unwrap();
            assert!(!timeout.timed_out(), "rank {rank} waits for ever");
            guard
        };
        let mut round = until(self.round.lock().unwrap(), &mut |round| {
            round.0[rank].is_none()
        });
        round.0[rank] = Some(value);
        self.changed.notify_all();
        let mut round = until(round, &mut |round| round.0.iter().all(Option::is_some));
        let values = round.0.iter().flatten().cloned().collect();
        round.1 += 1;
        if round.1 == round.0.len() {
            round.0.fill(None);
            round.1 = 0;
            self.changed.notify_all();
        }
        drop(until(round, &mut |round| round.0[rank].is_none()));
        values
    }
}

/// One rank of several.
#[derive(Clone)]
struct Rank {
    rank: usize,
    size: usize,
    votes: Arc<Exchange<Vote>>,
    grads: Arc<Exchange<[Option<Vec<f32>>; 2]>>,
}

impl Peers for Rank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn agree(&self, vote: Vote) -> Result<Vote, Box<dyn Error + Send + Sync>> {
        // As engines send it.
        let sent = serde_json::to_string(&vote)?;
        let votes = self.votes.all(self.rank, serde_json::from_str(&sent)?);
        Ok(Vote::join(votes))
    }
}

impl Rank {
    /// The means of the gradients of all ranks; a rank without some has zeros.
    fn average(&self, model: &Linear, mut grads: GradientsParams) -> GradientsParams {
        let bias = model.bias.as_ref().unwrap();
        let flat = |data: TensorData| data.try_to_vec::<f32>().unwrap();
        let weight_of = grads.remove::<2>(model.weight.id);
        let bias_of = grads.remove::<1>(bias.id);
        let own = [
            weight_of.map(|grad| flat(grad.to_data())),
            bias_of.map(|grad| flat(grad.to_data())),
        ];
        let all = self.grads.all(self.rank, own);
        let mean = |which: usize| {
            let given = all.iter().filter_map(|one| one[which].clone());
            let sum =
                |sum: Vec<f32>, next: Vec<f32>| sum.iter().zip(next).map(|(a, b)| a + b).collect();
            let mean = |sum: Vec<f32>| {
                sum.iter()
                    .map(|sum| sum / self.size as f32)
                    .collect::<Vec<_>>()
            };
            given.reduce(sum).map(mean)
        };
        let mut grads = GradientsParams::new();
        if let Some(mean) = mean(0) {
            let data = TensorData::new(mean, model.weight.dims());
            grads.register(model.weight.id, Tensor::<2>::from_data(data, &flex()));
        }
        if let Some(mean) = mean(1) {
            let data = TensorData::new(mean, bias.dims());
            grads.register(bias.id, Tensor::<1>::from_data(data, &flex()));
        }
        grads
    }
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
fn train(script: &str, rank: Option<Rank>, add: Add, in_region: bool) -> Run {
    let number = rank.as_ref().map_or(0, |rank| rank.rank);
    let amp = MixedPrecision::f16();
    let weights = burn::nn::Initializer::Constant { value: 0.25 };
    let linear = LinearConfig::new(4, 2).with_initializer(weights);
    let (mut model, mut optim) = amp.prepare(linear.init(&flex()), SgdConfig::new().init());
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
            let output = amp.autocast(input, |x: Tensor<2>| match in_region {
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
            grads = rank.average(&model, grads);
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
fn ranks(size: usize, script: &'static str, add: Add, in_region: bool) -> Vec<Run> {
    let (votes, grads) = (Exchange::new(size), Exchange::new(size));
    let threads = (0..size).map(|rank| {
        let (votes, grads) = (votes.clone(), grads.clone());
        let rank = Rank {
            rank,
            size,
            votes,
            grads,
        };
        thread::spawn(move || train(script, Some(rank), add, in_region))
    });
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
        let alone = train(script, None, plain, false).unwrap();
        for size in [2, 4] {
            for (rank, run) in ranks(size, script, plain, false).into_iter().enumerate() {
                assert_eq!(run.unwrap(), alone, "{script}: rank {rank} of {size}");
            }
        }
    }
}

/// One rank alone has no gradients, a step that a guard rejects, an overflowing micro-batch, an overflow in a region, zeros.
const ALONE: [(&str, Add, bool); 6] = [
    ("..-- .... --.. ....", plain, false),
    ("---- .... ....", plain, false),
    (
        ".... .... .... ..ll .... ....",
        |optim, _| {
            optim.with_hook(Guard::SkipStep(
                SkipStep::new().with_rolling_interval_length(4),
            ))
        },
        false,
    ),
    (
        ".... ..o. .... o... .... .... ....",
        |optim, _| optim.with_accumulation(AccumulationConfig::new(2).with_skip_micro_batch(true)),
        false,
    ),
    (
        ".... ..o. .... .... ....",
        |optim, _| optim.with_accumulation(2),
        false,
    ),
    (".... ..o. .... .... ....", plain, true),
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
    let runs = ranks(2, ".... ....", bad_clip, false);
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
    for run in ranks(2, ".... ....", others, false) {
        let (rank, reason) = stopped(&run);
        assert_eq!(rank, Some(1));
        assert!(reason.contains("begins otherwise than rank 0"), "{reason}");
        says(&run.unwrap_err(), ["rank 1"]);
    }
}

/// A rank that leaves its loop, and drops its optimizer, is not waited for.
#[test]
fn a_rank_that_has_ended_ends_the_others() {
    let runs = ranks(2, ".... .... !... ....", plain, false);
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
    let votes = Exchange::new(2);
    let threads = [0, 1].map(|rank| {
        let rank = Rank {
            rank,
            size: 2,
            votes: votes.clone(),
            grads: Exchange::new(2),
        };
        thread::spawn(move || {
            let amp = MixedPrecision::f16();
            let (model, optim) = amp.prepare(
                LinearConfig::new(4, 2).init(&flex()),
                SgdConfig::new().init(),
            );
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
