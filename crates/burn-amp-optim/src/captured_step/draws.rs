//! Whether random numbers were drawn on a device.

use burn::tensor::{DType, Device, Distribution, Tensor};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// All devices of a backend share one generator of random numbers: two threads must not look at it at once.
static GENERATOR: Mutex<()> = Mutex::new(());

/// Says whether random numbers were drawn on a device: the next ones show it.
pub(super) struct Draws {
    device: Device,
    /// Held until it has said so.
    _generator: MutexGuard<'static, ()>,
    seeds: [u64; 2],
    expected: Vec<f32>,
}

impl Draws {
    pub(super) fn new(device: &Device) -> Self {
        let mut draws = Self {
            device: device.clone(),
            _generator: GENERATOR.lock().unwrap_or_else(PoisonError::into_inner),
            seeds: [0; 2],
            expected: Vec::new(),
        };
        draws.seeds = [(); 2].map(|()| {
            let bits = draws.draw().into_iter().map(f32::to_bits).map(u64::from);
            bits.fold(0u64, |seed, bits| seed.rotate_left(17) ^ bits)
        });
        device.seed(draws.seeds[0]);
        draws.expected = draws.draw();
        device.seed(draws.seeds[0]);
        draws
    }

    fn draw(&self) -> Vec<f32> {
        let drawn = Tensor::<1>::random([4], Distribution::Default, (&self.device, DType::F32));
        drawn.into_data().iter::<f32>().collect()
    }

    /// Goes on with other random numbers, as a program with one seed has them in each run.
    pub(super) fn has_drawn(self) -> bool {
        let drawn = self.draw() != self.expected;
        self.device.seed(self.seeds[1]);
        drawn
    }
}
