//! A loss that is taken inside `autocast`, in f16: its gradient is the scale, infinite there until the scale fits, and the log says so.

use burn_amp_tests::{prelude::*, trial::*};

fn train() {
    let amp = f16_under(at_scale(262144.0));
    let mut run = Trial::at_border(&amp);
    let scales = [(); 5].map(|()| {
        let scale = run.scale();
        let loss = amp.autocast((), |()| run.model.bias.val().sum());
        run.take(GradientsParams::from_grads(loss.backward(), &run.model));
        scale
    });
    // 32768 is the largest power of two that f16 holds.
    assert_eq!(scales, [262144.0, 131072.0, 65536.0, 32768.0, 32768.0]);
    assert_eq!((run.counters().skipped(), run.status().max_abs()), (3, 1.0));
}

#[test]
fn the_scale_comes_down_and_the_log_says_why() {
    let name = "the_scale_comes_down_and_the_log_says_why";
    if said_in_child(module_path!(), name).is_some() {
        return;
    }
    let said = |action: &mut dyn FnMut()| {
        let lines = logs("single F16 value", action).into_iter();
        lines.filter(|line| line.contains("outside")).count()
    };
    let amp = MixedPrecision::f16();
    // Many values, or one without gradients, are no loss.
    let none = said(&mut || {
        let many = Tensor::<1>::ones([2], &flex()).require_grad();
        drop(amp.autocast(many, |x| x));
        drop(amp.autocast(Tensor::<1>::ones([1], &flex()), |x| x));
    });
    assert_eq!((none, said(&mut train)), (0, 1));
}
