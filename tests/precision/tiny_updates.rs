//! Updates that half precision would round away add up in the f32 parameters.

use burn_amp_tests::prelude::*;

#[derive(Module, Debug)]
struct Weights {
    values: Param<Tensor<1>>,
}

#[test]
fn updates_below_the_resolution_add_up() {
    let config = at_scale(256.0);
    for amp in [MixedPrecision::f16(), MixedPrecision::bf16()] {
        let amp = amp.with_scaler(config).unwrap();
        let device = Device::flex().autodiff();
        let weights = Weights {
            values: Param::from_tensor(Tensor::ones([3], &device)),
        };
        let mut weights = weights.apply_reparameterization(amp.clone());
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
        let seen = |weights: &Weights| amp.autocast((), |()| weights.values.val());
        // The next f16 below 1 is 1 - 2^-11; every step takes a 2^-14.
        for _ in 0..128 {
            let loss = seen(&weights).sum();
            let grads = GradientsParams::from_grads(loss.backward(), &weights);
            weights = optim.step(2f64.powi(-14), weights, grads);
        }
        let stored = weights.values.val().to_data();
        let expected = 1.0 - 2f32.powi(-7);
        assert_eq!(stored.as_slice::<f32>().unwrap(), [expected; 3]);
        let seen = seen(&weights).to_data();
        assert_eq!(seen.as_slice::<f32>().unwrap(), [expected; 3]);
    }
}
