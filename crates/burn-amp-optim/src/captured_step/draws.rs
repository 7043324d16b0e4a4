//! Whether random numbers were drawn on a device.

use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_amp_core::AmpError;
use std::sync::{Mutex, PoisonError};

/// All devices of a backend share one generator of random numbers: two threads must not look at it at once.
static GENERATOR: Mutex<()> = Mutex::new(());

/// Says beside the result whether `work` has drawn random numbers on a device: the next ones show it. Afterwards the device goes on with other
/// numbers, as a program with one seed has them in each run.
pub(super) fn with_draws<T>(
    device: &Device,
    work: impl FnOnce() -> Result<T, AmpError>,
) -> Result<(T, bool), AmpError> {
    let draw = || -> Vec<f32> {
        let drawn = Tensor::<1>::random([4], Distribution::Default, (device, DType::F32));
        drawn.into_data().iter().collect()
    };
    let _held = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    let [seed, next] = [(); 2].map(|()| {
        let bits = draw().into_iter().map(f32::to_bits).map(u64::from);
        bits.fold(0u64, |seed, bits| seed.rotate_left(17) ^ bits)
    });
    device.seed(seed);
    let expected = draw();
    device.seed(seed);
    let result = work()?;
    let has_drawn = draw() != expected;
    device.seed(next);
    Ok((result, has_drawn))
}
