//! One oracle for every way to step. A drawn program of a training run goes through each executor, and each shows what a reference shows
//! that is written by hand: parameters and averages bit for bit, the loss scale, the growth tracker, the counters and the outcome; and at the end
//! the optimizer's state bit for bit. Executors that write a record write the same one.
//!
//! A program that fails is printed as code; put it into `found.rs`.

mod executor;
mod found;
mod model;
mod program;
mod reference;
mod table;

use burn_amp_tests::Pack;
use executor::{Executor, WAYS, Way};
use program::{Program, Shown, programs};
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use reference::Reference;
use std::time::SystemTime;

/// Runs a program by all executors that can. Says where one of them shows what the reference does not.
pub fn differs(program: &Program) -> Result<(), String> {
    let references =
        [false, true].map(|is_stale| run(program, &mut Reference::new(program, is_stale)));
    let mut first = None;
    for way in WAYS
        .iter()
        .filter(|way| program.needs().all(|need| way.can(need)))
    {
        let expected = &references[usize::from(way.is_stale)];
        let found = run(program, &mut *(way.make)(program));
        let same = same_shown(&expected.shown, &found.shown).and_then(|()| {
            let first = first.as_ref().filter(|_| way.same_record);
            same_records(&expected.record, &found.record, first)
        });
        same.map_err(|how| format!("{}: {how}\n{program:?}", way.name))?;
        first = first.or(Some(found.record));
    }
    Ok(())
}

/// What an executor shows after each action, and at the end; none where it would have to wait.
struct Run {
    shown: Vec<Option<Shown>>,
    record: Pack,
}

fn run(program: &Program, executor: &mut dyn Executor) -> Run {
    let actions = program.actions.iter();
    let mut shown: Vec<_> = actions
        .map(|action| {
            executor.act(action);
            executor.shown(false)
        })
        .collect();
    shown.push(executor.shown(true));
    let record = executor.record();
    Run { shown, record }
}

fn same_shown(expected: &[Option<Shown>], found: &[Option<Shown>]) -> Result<(), String> {
    for (at, (expected, found)) in expected.iter().zip(found).enumerate() {
        let (Some(expected), Some(found)) = (expected, found) else {
            continue;
        };
        let hooks = found.hooks.as_ref().and(expected.hooks.clone());
        let expected = Shown {
            hooks,
            ..expected.clone()
        };
        if *found != expected {
            return Err(format!(
                "after action {at}:\n right {expected:?}\n found {found:?}"
            ));
        }
    }
    Ok(())
}

/// The optimizer's state is that of Burn's, and the record that of the first executor.
fn same_records(expected: &Pack, found: &Pack, first: Option<&Pack>) -> Result<(), String> {
    let [right, of_record] = [expected, found].map(|pack| state_in(pack, expected));
    if right != of_record {
        return Err(format!(
            "the optimizer's state:\n right {right:?}\n found {of_record:?}"
        ));
    }
    match first {
        Some(first) if first != found => {
            Err(format!("the record:\n first {first:?}\n found {found:?}"))
        }
        _ => Ok(()),
    }
}

/// The optimizer's tensors and numbers, in a record that may hold more than `all`.
fn state_in(pack: &Pack, all: &Pack) -> Pack {
    let mut pack = pack.clone();
    pack.tensors
        .retain(|name, _| all.tensors.contains_key(name));
    pack.scalars
        .retain(|name, _| all.scalars.contains_key(name));
    pack.metadata.clear();
    pack
}

/// That of `PROPTEST_RNG_SEED`, or the day's: each day has programs of its own, and a failure of the day comes again.
fn seed() -> u64 {
    match Config::default().rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => {
            let since = SystemTime::UNIX_EPOCH.elapsed().unwrap();
            since.as_secs() / (24 * 60 * 60)
        }
    }
}

fn drawn(seed: u64, cases: u32, way: &'static Way) {
    let config = Config {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..Config::default()
    };
    let run = TestRunner::new(config).run(&programs(|need| way.can(need)), |program| {
        differs(&program).map_err(TestCaseError::fail)
    });
    if let Err(failure) = run {
        panic!("{failure}");
    }
}

/// So many programs for each executor, of what it can.
fn sweep(cases: u32) {
    let seed = seed();
    println!("PROPTEST_RNG_SEED={seed} draws these programs again");
    for (number, way) in WAYS.iter().enumerate() {
        drawn(seed ^ ((number as u64) << 32), cases, way);
    }
}

#[test]
fn drawn_programs_end_alike_by_every_executor() {
    sweep(28);
}

#[test]
#[ignore = "slow"]
fn sweep_drawn_programs() {
    sweep(300);
}
