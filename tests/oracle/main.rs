//! One oracle for every way to step. A drawn program of a training run goes through each executor, and each shows what a reference shows
//! that is written by hand: parameters and averages bit for bit, the loss scale, the growth tracker, the counters and the outcome; and at the end
//! the optimizer's state bit for bit. Executors that write a record write the same one.
//!
//! A program that fails is printed as code; put it into `found.rs`.

mod compare;
mod executor;
mod found;
mod model;
mod program;
mod reference;
mod table;

use compare::{differs_by, sweep};
use executor::WAYS;
use program::Program;

fn differs(program: &Program) -> Result<(), String> {
    differs_by(&WAYS, program)
}

/// Every call of a device takes its time.
#[test]
fn drawn_programs_end_alike_by_every_executor() {
    sweep(&WAYS, &WAYS, if burn_amp_tests::on_flex() { 28 } else { 2 });
}

#[test]
#[ignore = "slow"]
fn sweep_drawn_programs() {
    sweep(&WAYS, &WAYS, 300);
}
