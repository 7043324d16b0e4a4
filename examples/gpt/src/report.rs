//! The tables.

use crate::{lost::Lost, training::Trainer};

/// The numbers of a run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How it computed.
    pub name: &'static str,
    /// The mean loss of a token that training has not seen, in nats.
    pub held_out_loss: f32,
    /// The training loss before the last step.
    pub final_loss: f32,
    /// Steps skipped because of an overflow.
    pub skipped_steps: u64,
    /// The loss scale after the last step; 1 without scaling.
    pub final_scale: f32,
    /// Forward, backward and step, averaged over all steps.
    pub seconds_per_step: f64,
}

impl Summary {
    /// Sums up a run.
    pub fn new(trainer: &Trainer, held_out_loss: f32) -> Self {
        Self {
            name: trainer.run().name(),
            held_out_loss,
            final_loss: trainer.losses.last().copied().unwrap_or(f32::NAN),
            skipped_steps: trainer.optim.scaler().counters().skipped(),
            final_scale: trainer.loss_scale(),
            seconds_per_step: trainer.seconds / trainer.losses.len().max(1) as f64,
        }
    }
}

/// The runs as a table for the terminal.
pub fn runs(runs: &[Summary]) -> String {
    let head = [
        "run",
        "held-out loss",
        "training loss",
        "skipped steps",
        "final scale",
        "time per step",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(runs.iter().map(|run| {
        vec![
            run.name.to_string(),
            format!("{:.3}", run.held_out_loss),
            format!("{:.3}", run.final_loss),
            run.skipped_steps.to_string(),
            format!("2^{:.0}", run.final_scale.log2()),
            format!("{:.2} s", run.seconds_per_step),
        ]
    }));
    grid(&rows)
}

/// What f16 makes of the gradients of a batch, without and with loss scaling: values lost, and error.
pub fn losses(plain: &[Lost], scaled: &[Lost]) -> String {
    let head = [
        "layers",
        "f16: lost",
        "error",
        "f16 + loss scaling: lost",
        "error",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(plain.iter().zip(scaled).map(|(plain, scaled)| {
        vec![
            plain.group.to_string(),
            format!("{:.1} %", 100.0 * plain.share()),
            format!("{:.1} %", 100.0 * plain.error()),
            format!("{:.1} %", 100.0 * scaled.share()),
            format!("{:.1} %", 100.0 * scaled.error()),
        ]
    }));
    grid(&rows)
}

fn grid(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let line = |row: &Vec<String>| {
        let first = format!("{:<1$}", row[0], width(0));
        let cells = (1..row.len()).map(|column| format!("{:>1$}", row[column], width(column)));
        let cells: Vec<_> = std::iter::once(first).chain(cells).collect();
        cells.join("  ")
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
