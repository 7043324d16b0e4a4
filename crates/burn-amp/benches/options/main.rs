//! What the options around a step cost: bytes for each parameter, and time against the same training step without them.
//!
//! ```sh
//! cargo bench -p burn-amp --bench options            # a minute
//! cargo bench -p burn-amp --bench options -- --quick
//! ```
//!
//! All cases take turns in one run, each with a model and an optimizer of its own. Times and ratios are medians over the rounds. Rows
//! "by hand" are the same thing made of Burn's parts.

mod case;
mod model;

use std::time::Instant;

use case::{Case, WINDOW, all};

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (width, rounds) = if quick { (512, 40) } else { (1024, 40) };
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

/// The median of the ratios of each round, so that a machine that is slower for a while is so for both.
fn ratio(times: &[f64], others: &[f64]) -> f64 {
    let ratios = times.iter().zip(others).map(|(time, other)| time / other);
    median(&ratios.collect::<Vec<f64>>())
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
    let plain = &times[0];
    for (case, own) in cases.iter().zip(times) {
        let peer = cases.iter().position(|other| Some(other.name) == case.peer);
        let peer = peer.map_or(String::new(), |peer| {
            format!("{:.2}", ratio(&own.step, &times[peer].step))
        });
        println!(
            "| {} | {} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {peer} |",
            case.name,
            case.held,
            case.moved,
            median(&own.whole),
            ratio(&own.whole, &plain.whole),
            median(&own.step),
            ratio(&own.step, &plain.step),
        );
    }
    println!(
        "\nBytes are those of one parameter, beside the plain step's: held in memory, and moved to and from it in a step (in a \
         micro-batch, with accumulation, where three of four calls do not step)."
    );
}
