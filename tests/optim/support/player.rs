//! The least that trains at the border of half precision.

use super::*;

/// Two numbers in, two out.
pub type Player = burn_amp_tests::Player<Linear>;

pub fn player(amp: &MixedPrecision) -> Player {
    Player::new(LinearConfig::new(2, 2).init(&device()), amp)
}

/// The loss at the present scale, times `factor`.
pub fn loss<O>(player: &burn_amp_tests::Player<Linear, O>, factor: f32) -> Tensor<1> {
    let input = Tensor::<2>::ones([1, 2], &device());
    let output = player.amp.autocast(input, |x| player.model.forward(x));
    output.mean() * factor
}
