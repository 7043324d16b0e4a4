//! What the options around a step cost: bytes for each parameter, and time against the same training step without them.
//!
//! ```sh
//! cargo bench -p burn-amp --bench options            # a minute
//! cargo bench -p burn-amp --bench options -- --quick
//! ```
//!
//! All cases take turns in one run, each with a model and an optimizer of its own; times are medians. Rows "by hand" are the
//! same thing made of Burn's parts.

mod case;
mod model;

use std::time::Instant;

use case::{Case, WINDOW, all};

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (width, rounds) = if quick { (512, 15) } else { (1024, 41) };
    let mut cases = all(width);
    let mut times = vec![Times::default(); cases.len()];
    for round in 0..rounds {
        for (case, times) in cases.iter_mut().zip(&mut times) {
            let start = Instant::now();
            let mut step = 0.0;
            for _ in 0..WINDOW {
                step += case.micro_batch().as_secs_f64();
            }
            // The first window allocates what the others use again.
            if round > 0 {
                let each = 1e3 / f64::from(WINDOW);
                times.whole.push(start.elapsed().as_secs_f64() * each);
                times.step.push(step * each);
            }
        }
    }
    print(&cases, &times);
}

/// Milliseconds for each micro-batch, round by round.
#[derive(Clone, Default)]
struct Times {
    /// Forward, backward and step.
    whole: Vec<f64>,
    /// Step.
    step: Vec<f64>,
}

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn print(cases: &[Case], times: &[Times]) {
    println!(
        "{} f32 parameters, Adam, Flex; batches of {}; {WINDOW} micro-batches to a window; milliseconds for each micro-batch\n",
        cases[0].parameters(),
        model::BATCH
    );
    println!(
        "| Option | bytes held | bytes moved | training step | / plain | step alone | / plain | / by hand |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    let (wholes, steps): (Vec<f64>, Vec<f64>) = times
        .iter()
        .map(|times| (median(&times.whole), median(&times.step)))
        .unzip();
    for (index, case) in cases.iter().enumerate() {
        let peer = cases.iter().position(|other| Some(other.name) == case.peer);
        let peer = peer.map_or(String::new(), |peer| {
            format!("{:.2}", steps[index] / steps[peer])
        });
        println!(
            "| {} | {} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {peer} |",
            case.name,
            case.held,
            case.moved,
            wholes[index],
            wholes[index] / wholes[0],
            steps[index],
            steps[index] / steps[0],
        );
    }
    println!(
        "\nBytes are those of one parameter, beside the plain step's: held in memory, and moved to and from it in a step (in a \
         micro-batch, with accumulation, where three of four calls do not step)."
    );
}
