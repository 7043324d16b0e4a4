//! What is printed: a table, and drawings.

use burn::tensor::Tensor;

use crate::training::{Run, Trainer, Updates};

/// The numbers of one run.
#[derive(Clone, Debug)]
pub struct Summary {
    run: Run,
    /// How far pixel statistics of drawn images are from those of real ones, before training.
    pub before: f32,
    /// The same after training.
    pub after: f32,
    /// Steps that were skipped.
    pub skipped: u64,
    /// The loss scale in the end.
    pub scale: f32,
    losses: [f32; 2],
}

impl Summary {
    /// Takes the numbers of a run that has ended.
    pub fn new(run: Run, distances: [f32; 2], trainer: &Trainer) -> Self {
        Self {
            run,
            before: distances[0],
            after: distances[1],
            skipped: trainer.skipped(),
            scale: trainer.loss_scale(),
            losses: trainer.losses(),
        }
    }
}

/// The root mean square, over pixels, of the differences of means and of standard deviations between two sets of images.
pub fn distance(drawn: Tensor<2>, real: Tensor<2>) -> f32 {
    let moments = |images: Tensor<2>| {
        let mean = images.clone().mean_dim(0);
        let deviation = (images - mean.clone()).square().mean_dim(0).sqrt();
        Tensor::cat(vec![mean, deviation], 1)
    };
    let difference = moments(drawn) - moments(real);
    difference.square().mean().sqrt().into_scalar()
}

/// A line for each run.
pub fn table(summaries: &[Summary]) -> String {
    let mut lines = vec![format!(
        "{:<28} {:>8} {:>8} {:>12} {:>14} {:>13} {:>11}",
        "run", "before", "after", "critic loss", "generator loss", "skipped steps", "final scale"
    )];
    for summary in summaries {
        let updates = match summary.run.updates {
            Updates::Alternating => "alternating",
            Updates::Simultaneous => "simultaneous",
        };
        let dtype = format!("{:?}", summary.run.dtype).to_lowercase();
        lines.push(format!(
            "{:<28} {:>8.3} {:>8.3} {:>12.3} {:>14.3} {:>13} {:>11}",
            format!("{dtype}, {updates}"),
            summary.before,
            summary.after,
            summary.losses[0],
            summary.losses[1],
            summary.skipped,
            format!("2^{:.0}", summary.scale.log2())
        ));
    }
    lines.join("\n")
}

/// Images `[count, 64]` side by side, in characters.
pub fn drawing(images: Tensor<2>) -> String {
    const SHADES: &[u8] = b" .:-=+*#%@";
    let [count, _] = images.dims();
    let values: Vec<f32> = images.into_data().iter::<f32>().collect();
    let mut lines = Vec::new();
    for row in 0..8 {
        let mut line = String::new();
        for image in 0..count {
            for column in 0..8 {
                let value = values[image * 64 + row * 8 + column];
                let share = ((value + 0.85) / 2.8).clamp(0.0, 0.999);
                let shade = SHADES[(share * SHADES.len() as f32) as usize];
                // Characters are twice as high as wide.
                line.push(shade.into());
                line.push(shade.into());
            }
            line.push_str("  ");
        }
        lines.push(line.trim_end().to_string());
    }
    lines.join("\n")
}
