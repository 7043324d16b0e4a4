//! `MixedPrecision::prepare` and `attach`: what a model is made of what optimizer, in one call.

use burn_amp_tests::prelude::*;

/// One step of a prepared model is that of a model which is attached and wrapped by hand.
fn steps<M: Module, O: ModuleOptim>(
    model: M,
    optim: [O; 2],
    forward: impl Fn(&M, Tensor<2>) -> Tensor<2>,
) {
    let step = |amp: &MixedPrecision, model: M, optim: &mut ScaledOptimizer<O>| {
        let input = Tensor::<2>::ones([3, 4], &Device::flex().autodiff());
        let output = amp.autocast(input, |x| {
            let output = forward(&model, x);
            assert_eq!(output.dtype(), DType::F16);
            output
        });
        let grads = GradientsParams::from_grads(output.square().mean().backward(), &model);
        let before = numbers(&model);
        let stepped = numbers(&optim.step(0.1, model, grads));
        optim.synchronize().unwrap();
        assert_ne!(stepped, before);
        stepped
    };
    let (first, second) = (MixedPrecision::f16(), MixedPrecision::f16());
    let [one, other] = optim;
    let (prepared, mut optim) = first.prepare(model.clone(), one);
    let by_hand = model.apply_reparameterization(second.clone());
    let mut wrapped = ScaledOptimizer::new(other, &second);
    let expected = step(&second, by_hand, &mut wrapped);
    assert_eq!(step(&first, prepared, &mut optim), expected);
    assert_eq!(first.counters().steps(), 1);
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
    steps((linear(), linear()), [adam(), adam()], |(a, b), x| {
        b.forward(a.forward(x))
    });
    steps(two, [adam(), adam()], |[a, b], x| b.forward(a.forward(x)));
    let (mut one, mut other) = (adam(), adam());
    steps(linear(), [&mut one, &mut other], |m, x| m.forward(x));
}
