//! What else `ScaledOptimizer` wraps: `&mut O`, and an optimizer of whole modules that a user wrote.

use burn_amp_tests::small::Small;

use crate::support::*;

/// Counts its calls.
#[derive(Clone)]
struct Counted {
    inner: ModuleOptimizer,
    calls: usize,
}

impl ModuleOptim for Counted {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        self.calls += 1;
        self.inner.step(lr, module, grads)
    }
}

/// Two finite steps with an overflow between them, by an optimizer that is borrowed and by one that is owned: the same, and the state stays
/// in both.
fn borrowed_and_owned<O: ModuleOptim + Clone>(mut optim: O, dtype: DType) -> [O; 2] {
    let mut owned = ScaledOptimizer::new(optim.clone(), scaler());
    let expected = Small::new(dtype).train(&mut owned, 0..3, &[1]);
    let mut borrowed = ScaledOptimizer::new(&mut optim, scaler());
    let found = Small::new(dtype).train(&mut borrowed, 0..3, &[1]);
    assert_eq!(borrowed.scaler().counters().stepped(), 2);
    assert!(parameters(&found) == parameters(&expected));
    [optim, owned.into_inner()]
}

#[test]
fn a_users_optimizer_is_not_called_on_a_skipped_step() {
    let inner = AdamConfig::new().init();
    let counted = borrowed_and_owned(Counted { inner, calls: 0 }, DType::F32);
    assert_eq!(counted.each_ref().map(|counted| counted.calls), [2; 2]);
    let [borrowed, owned] = counted.map(|counted| state(&counted.inner));
    assert_eq!(borrowed, owned);
}

/// Those that they accept: that must go through the borrow as well.
#[test]
fn masters_take_wider_gradients_than_their_parameters() {
    let masters = MasterWeights::new(AdamConfig::new().build());
    let [borrowed, owned] = borrowed_and_owned(masters, DType::BF16);
    assert_eq!(state(&borrowed), state(&owned));
}

#[test]
fn wrapping_keeps_threads_possible() {
    fn sendable<T: Send + Sync + Clone>() {}
    sendable::<ScaledOptimizer<ModuleOptimizer>>();
}
