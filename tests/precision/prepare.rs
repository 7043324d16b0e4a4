//! `MixedPrecision::prepare` and `attach`: what a model is made of what optimizer, in one call.

use burn_amp_tests::prelude::*;

/// One step of a prepared model is that of a model which is attached and wrapped by hand.
fn steps<M: Module, O: ModuleOptim>(
    model: M,
    optim: [O; 2],
    forward: impl Fn(&M, Tensor<2>) -> Tensor<2>,
) {
    let step = |mut run: Player<M, O>| {
        let output = (run.amp).autocast(Tensor::ones([3, 4], &flex()), |x| {
            let output = forward(&run.model, x);
            assert_eq!(output.dtype(), DType::F16);
            output
        });
        let before = numbers(&run.model);
        run.train(0.1, output.square().mean());
        run.optim.synchronize().unwrap();
        assert_ne!(numbers(&run.model), before);
        assert_eq!(run.amp.counters().steps(), 1);
        numbers(&run.model)
    };
    let (amp, [one, other]) = (MixedPrecision::f16(), optim);
    let prepared = Player::with(one, model.clone(), &MixedPrecision::f16());
    let model = model.apply_reparameterization(amp.clone());
    let optim = ScaledOptimizer::new(other, &amp);
    assert_eq!(step(prepared), step(Player { amp, model, optim }));
}

fn linear() -> Linear {
    fill(LinearConfig::new(4, 4).init(&flex()), 0, 0.5)
}

#[test]
fn models_and_optimizers_of_any_kind() {
    let adam = || AdamConfig::new().init();
    let fused = || FusedAdam::new(AdamConfig::new());
    let two = [linear(), linear()];
    steps(linear(), [adam(), adam()], |m, x| m.forward(x));
    steps(linear(), [fused(), fused()], |m, x| m.forward(x));
    let both = (linear(), linear());
    steps(both, [adam(), adam()], |(a, b), x| b.forward(a.forward(x)));
    steps(two, [adam(), adam()], |[a, b], x| b.forward(a.forward(x)));
    let (mut one, mut other) = (adam(), adam());
    steps(linear(), [&mut one, &mut other], |m, x| m.forward(x));
}
