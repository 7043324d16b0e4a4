//! One oracle for every way to step. A drawn program of a training run goes through each executor, and each shows what a reference shows
//! that is written by hand: parameters bit for bit, the loss scale, the growth tracker, the counters and the outcome.
//!
//! A program that fails is printed as code; put it into `found.rs`.

mod executor;
mod found;
mod program;
mod reference;

use executor::{ByHand, Executor, Pipelined, Scaled};
use program::{Program, Shown, programs};
use proptest::test_runner::{Config, TestRunner};
use reference::Reference;

use burn::optim::AdamConfig;
use burn_amp::optim::FusedAdam;
use burn_amp_tests::Waited;

/// Runs a program by all executors. Says where one of them shows what the reference does not.
pub fn differs(program: &Program) -> Result<(), String> {
    let expected = shown(program, &mut Reference::new(program));
    let burns = || AdamConfig::new().init();
    let fused = || FusedAdam::new(AdamConfig::new());
    compare(
        "host",
        &expected,
        &shown(program, &mut Scaled::new(program, burns)),
    )?;
    compare(
        "waited",
        &expected,
        &shown(program, &mut Scaled::new(program, || Waited(fused()))),
    )?;
    if ByHand::can(program) {
        compare(
            "scaler",
            &expected,
            &shown(program, &mut ByHand::new(program)),
        )?;
    }
    if Pipelined::can(program) {
        compare(
            "pipelined",
            &expected,
            &shown(program, &mut Pipelined::new(program)),
        )?;
    }
    // What is in flight is known where the program waits for it.
    let mut in_flight = Scaled::new(program, fused).in_flight();
    compare("in flight", &expected, &shown(program, &mut in_flight))
}

/// What an executor shows after each action; none where it would have to wait.
fn shown(program: &Program, executor: &mut impl Executor) -> Vec<Option<Shown>> {
    let actions = program.actions.iter();
    let mut shown: Vec<_> = actions
        .map(|action| {
            executor.act(action);
            executor.shown(false)
        })
        .collect();
    shown.push(executor.shown(true));
    shown
}

fn compare(name: &str, expected: &[Option<Shown>], found: &[Option<Shown>]) -> Result<(), String> {
    let differs =
        |(expected, found): (&Option<Shown>, &Option<Shown>)| found.is_some() && found != expected;
    match expected.iter().zip(found).position(differs) {
        None => Ok(()),
        Some(at) => Err(format!(
            "{name}, after action {at}:\n right {:?}\n found {:?}",
            expected[at], found[at]
        )),
    }
}

fn drawn(cases: u32) {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let run = TestRunner::new(config).run(&programs(), |program| {
        differs(&program).map_err(proptest::test_runner::TestCaseError::fail)
    });
    if let Err(failure) = run {
        panic!("{failure}");
    }
}

#[test]
fn drawn_programs_end_alike_by_every_executor() {
    drawn(24);
}

#[test]
#[ignore = "slow"]
fn sweep_drawn_programs() {
    drawn(2000);
}
