//! Updates that half precision would round away add up in the f32 parameters.

use burn_amp_tests::prelude::*;

#[test]
fn updates_below_the_resolution_add_up() {
    for amp in [MixedPrecision::f16(), MixedPrecision::bf16()] {
        let amp = amp.with_scaler(at_scale(256.0)).unwrap();
        let weight = Param::from_tensor(Tensor::<1>::ones([3], &flex()));
        let mut run = Player::new(weight, &amp);
        // The next f16 below 1 is 1 - 2^-11; every step takes a 2^-14.
        for _ in 0..128 {
            run.train(2f64.powi(-14), amp.autocast((), |()| run.model.val()).sum());
        }
        for seen in [run.model.val(), amp.autocast((), |()| run.model.val())] {
            assert_eq!(values(seen), [1.0 - 2f32.powi(-7); 3]);
        }
    }
}
