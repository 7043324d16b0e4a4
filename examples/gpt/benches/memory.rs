//! How much memory a training step of a GPT uses in f32 and in f16, with and without Burn's gradient checkpointing.
//!
//! ```sh
//! cargo bench -p gpt --bench memory
//! ```
//!
//! Counts the bytes that the process has allocated and not freed, on Flex, whose tensors are in the process's memory. What an allocator
//! reserves beyond that is not counted. Tokens have no meaning; each way trains a network of its own with Adam.

use burn::{
    nn::loss::CrossEntropyLossConfig,
    optim::{AdamConfig, GradientsParams},
    tensor::{Device, Distribution, Int, Tensor},
};
use burn_amp::MixedPrecision;
use gpt::model::{Gpt, Size};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

const VOCABULARY: usize = 1024;
const BATCH: usize = 8;
const SIZE: Size = Size {
    context: 256,
    width: 256,
    heads: 8,
    layers: 8,
    tied: true,
};
const MIB: f64 = (1 << 20) as f64;

/// MiB that are held between two steps, and at most inside one.
fn measure(amp: &MixedPrecision, device: &Device) -> [f64; 2] {
    let before = ALLOCATED.current_usage();
    let model = Gpt::new(VOCABULARY, SIZE, device);
    let (mut model, mut optim) = amp.prepare(model, AdamConfig::new().init());
    let tokens = Distribution::Uniform(0.0, VOCABULARY as f64);
    let input = Tensor::<2, Int>::random([BATCH, SIZE.context], tokens, device);
    let next = input.clone().roll(&[-1], &[1]).flatten(0, 1);

    let mut measured = [0.0; 2];
    // The first one makes the optimizer's state.
    for _ in 0..2 {
        ALLOCATED.reset_peak_usage();
        let logits = amp.autocast(input.clone(), |tokens| model.forward(tokens));
        let loss = CrossEntropyLossConfig::new().init(device);
        let loss = loss.forward(logits, next.clone());
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(1e-4, model, grads);
        let counted = [ALLOCATED.current_usage(), ALLOCATED.peak_usage()];
        measured = counted.map(|bytes| (bytes - before) as f64 / MIB);
    }
    measured
}

fn main() {
    let plain = Device::flex().autodiff();
    let checkpointing = plain.clone().gradient_checkpointing();
    println!("A GPT of {SIZE:?}, {BATCH} windows in a step, Adam; MiB in use\n");
    println!("| precision | gradient checkpointing | between steps | in a step, at most | / f32 |");
    println!("|---|---|--:|--:|--:|");
    for (device, is_on) in [(plain, "no"), (checkpointing, "yes")] {
        let mut full = None;
        for (name, amp) in [
            ("f32", MixedPrecision::f32()),
            ("f16", MixedPrecision::f16()),
            ("bf16", MixedPrecision::bf16()),
        ] {
            let [held, most] = measure(&amp, &device);
            let ratio = most / *full.get_or_insert(most);
            println!("| {name} | {is_on} | {held:.0} | {most:.0} | {ratio:.2} |");
        }
    }
}
