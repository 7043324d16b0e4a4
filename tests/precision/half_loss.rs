//! A loss that is taken inside `autocast`, in f16: its gradient is the scale, infinite there until the scale fits, and the log says so.

use burn_amp_tests::{prelude::*, trial::*};

#[test]
fn the_scale_comes_down_and_the_log_says_why() {
    let name = "the_scale_comes_down_and_the_log_says_why";
    if said_in_child(module_path!(), name).is_some() {
        return;
    }
    let amp = f16_under(at_scale(262144.0));
    let one = || Tensor::<1>::ones([1], &flex());
    // Many values, or one without gradients, are no loss.
    let none = logs("single F16 value", || {
        drop(amp.autocast(Tensor::<1>::ones([2], &flex()).require_grad(), |x| x));
        drop(amp.autocast(one(), |x| x));
    });
    assert_eq!(none, [""; 0]);
    let mut run = Trial::at_border(&amp);
    let said = logs("single F16 value", || {
        // 32768 is the largest power of two that f16 holds.
        for scale in [262144.0, 131072.0, 65536.0, 32768.0, 32768.0] {
            assert_eq!(run.scale(), scale);
            let loss = amp.autocast((), |()| run.model.bias.val().sum());
            run.take(GradientsParams::from_grads(loss.backward(), &run.model));
        }
    });
    says(only(&said), ["outside"]);
}
