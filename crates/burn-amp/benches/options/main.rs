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
    let mut times = vec![Vec::new(); cases.len()];
    for round in 0..rounds {
        for (case, times) in cases.iter_mut().zip(&mut times) {
            let start = Instant::now();
            for _ in 0..WINDOW {
                case.micro_batch();
            }
            // The first window allocates what the others use again.
            if round > 0 {
                times.push(start.elapsed().as_secs_f64() * 1e3 / f64::from(WINDOW));
            }
        }
    }
    let times: Vec<f64> = times.into_iter().map(median).collect();
    print(&cases, &times);
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn print(cases: &[Case], times: &[f64]) {
    println!(
        "{} f32 parameters, Adam, Flex; forward, backward and step of a batch of {}; {WINDOW} micro-batches to a window\n",
        cases[0].parameters(),
        model::BATCH
    );
    println!("| Option | bytes held | bytes moved | ms | / plain | / by hand |");
    println!("|---|--:|--:|--:|--:|--:|");
    for (case, time) in cases.iter().zip(times) {
        let ratio = |name: Option<&str>| {
            let other = name.and_then(|name| cases.iter().position(|case| case.name == name));
            other.map_or(String::new(), |other| format!("{:.2}", time / times[other]))
        };
        println!(
            "| {} | {} | {} | {time:.2} | {} | {} |",
            case.name,
            case.held,
            case.moved,
            ratio(Some(cases[0].name)),
            ratio(case.peer)
        );
    }
    println!(
        "\nBytes are those of one parameter, beside the plain step's: held in memory, and moved to and from it in a step (in a \
         micro-batch, with accumulation)."
    );
}
