//! Scopes are of their thread, and of their handle: pools put other work on a thread that waits inside one.

use rayon::{ThreadPoolBuilder, prelude::*};
use std::thread;

use crate::support::*;

/// Whether this thread is in a scope.
fn inside() -> bool {
    format!("{:?}", Scope::current()).contains("Some")
}

/// What was entered is left again, on a panic too, and what was there before is back.
#[test]
fn a_thread_is_outside_until_it_enters() {
    let amp = f16(two(12));
    let gain = Gain::at(&[2.0], &amp);
    let dtype = || gain.factor.val().dtype();
    let [half, full] = [DType::F16, DType::F32];
    let none = Scope::current();
    amp.autocast((), |()| {
        let (scope, mut island) = (Scope::current(), None);
        in_f32((), |()| island = Some(Scope::current()));
        let inside = || {
            let mut inner = half;
            let output = in_f32(gain.forward(amp.cast(vector(&[1.0]))), |x| {
                inner = dtype();
                x
            });
            [dtype(), inner, output.dtype()]
        };
        let work = || (dtype(), scope.enter(inside), dtype());
        let there = thread::scope(|threads| threads.spawn(work).join().unwrap());
        assert_eq!((there, dtype()), ((full, [half, full, half], full), half));
        island.unwrap().enter(|| {
            let found = [scope.enter(dtype), none.enter(dtype), dtype()];
            assert_eq!(found, [half, full, full]);
            let message = panic_message(|| scope.enter(|| panic!("{:?}", dtype())));
            assert_eq!((message.as_str(), dtype()), ("F16", full));
        });
        assert_eq!(dtype(), half);
    });
    assert_eq!(dtype(), full);
}

/// One of the models that train side by side. What another handle's model is in a stolen scope is in `refusals.rs`.
struct Job {
    amp: MixedPrecision,
    model: [Linear; 2],
    seed: usize,
}

/// How often a job began on a thread that was inside another job's scope.
static STOLEN: AtomicUsize = AtomicUsize::new(0);

impl Job {
    fn new(amp: &MixedPrecision, seed: usize, device: &Device) -> Self {
        let linear = |seed| fill(LinearConfig::new(4, 4).init(device), seed);
        let model = amp.attach([linear(seed), linear(seed + 1)]);
        let amp = amp.clone();
        Self { amp, model, seed }
    }

    /// The bits of the output and of the gradients. In the scope, two halves of the work go to the pool.
    fn run(&self, device: &Device) -> [Vec<u32>; 3] {
        if inside() {
            STOLEN.fetch_add(1, Ordering::Relaxed);
        }
        let [first, last] = &self.model;
        let input = random(self.seed, [3, 4], device).require_grad();
        let output = self.amp.autocast(input.clone(), |x| {
            assert_eq!(x.dtype(), DType::F16);
            let scope = Scope::current();
            let hidden = first.forward(x);
            // One after the other: see `docs/upstream/graph-tape-consumed.md`.
            let graph = Mutex::new(());
            let alone = |work: &dyn Fn() -> Tensor<2>| {
                let _alone = graph.lock().unwrap();
                scope.enter(work)
            };
            let (a, b) = rayon::join(
                || alone(&|| last.forward(tanh(hidden.clone()))),
                || alone(&|| in_f32(hidden.clone(), |x| last.forward(x))),
            );
            // What a thread does that waits: other work, here and in an island.
            thread::sleep(Duration::from_millis(1));
            rayon::yield_now();
            in_f32((), |()| rayon::yield_now().is_some());
            assert_eq!([a.dtype(), b.dtype()], [DType::F16; 2]);
            // And what is read after the thread has done other work.
            assert_eq!(first.weight.val().dtype(), DType::F16);
            a * b
        });
        let grads = (output.clone().square().mean() * two(-16)).backward();
        let of_input = bits(input.grad(&grads).unwrap());
        let grads = GradientsParams::from_grads(grads, &self.model);
        [bits(output), of_input, gradient_bits(&grads, &self.model)]
    }
}

#[test]
fn work_that_is_stolen_into_an_open_scope() {
    if !on_flex() {
        let why = "an operation that two threads make on one graph can be lost";
        return skipped(&format!("{why} (docs/upstream/graph-tape-consumed.md)"));
    }
    let pool = ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let device = device();
    let (a, b) = (f16(two(16)), f16(two(3)));
    // Of two handles, and of the same one.
    let job = |index: usize| {
        let amp = if index.is_multiple_of(3) { &b } else { &a };
        Job::new(amp, 10 * index, &device)
    };
    let jobs: Vec<Job> = (0..16).map(job).collect();
    let expected: Vec<_> = jobs.iter().map(|job| job.run(&device)).collect();
    assert_eq!(STOLEN.load(Ordering::Relaxed), 0);
    for _ in 0..10 {
        let found: Vec<_> = pool.install(|| jobs.par_iter().map(|job| job.run(&device)).collect());
        assert_eq!(found, expected);
    }
    let stolen = STOLEN.load(Ordering::Relaxed);
    assert!(stolen > 10, "{stolen} of 160 jobs ran inside of others");
}

/// Works on another thread, if it is to.
fn on<T: Send>(is_apart: bool, work: impl FnOnce() -> T + Send) -> T {
    match is_apart {
        true => thread::scope(|threads| threads.spawn(work).join().unwrap()),
        false => work(),
    }
}

/// Reads the parameters here and on threads that make the gradients, after each step: on this thread, or every other step on one more.
fn trained<O: ModuleOptim + Send>(optim: O, are_apart: bool, steps_apart: bool) -> Vec<Vec<f32>> {
    let amp = f16(two(4));
    let (mut model, mut optim) = amp.prepare(Gain::new(&[2.0; 64]), optim);
    let mut read = Vec::new();
    for step in 0..8 {
        let gradients = |part: i32| {
            let loss = amp.autocast(vector(&[0.5; 64]), |x| model.forward(x));
            backward(loss.sum() * f64::from(part + step + 1), &model)
        };
        let parts = [0, 1].map(|part| on(are_apart, || gradients(part)));
        let mut grads = MultiGradientsParams::default();
        grads.grads.extend(parts.map(|part| (part, device())));
        let work = || optim.step_multi(0.01, model, grads);
        model = on(steps_apart && step % 2 == 1, work).unwrap();
        read.extend([are_apart, false].map(|is_apart| on(is_apart, || numbers(&model))));
    }
    read
}

/// What a step makes of memory that other threads have made, all threads read as it is then: see `docs/upstream/in-place-across-threads.md`. An optimizer
/// of Burn's is to step on one thread.
#[test]
fn threads_see_what_a_step_has_made_of_their_gradients() {
    let sgd = || SgdConfig::new().init();
    assert!(trained(sgd(), true, false) == trained(sgd(), false, false));
    let fused = || FusedSgd::new(SgdConfig::new());
    for steps_apart in [false, true] {
        assert!(trained(fused(), true, steps_apart) == trained(fused(), false, false));
    }
}
