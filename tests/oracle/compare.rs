//! A program by each executor, beside the reference.

use crate::executor::{Executor, Way};
use crate::program::{Program, Shown, programs};
use crate::reference::Reference;
use burn_amp_tests::{Pack, seed};
use std::collections::BTreeMap;

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};

/// Runs a program by all of these executors that can. Says where one of them shows what the reference does not.
pub fn differs_by(ways: &[Way], program: &Program) -> Result<(), String> {
    let mut references = BTreeMap::new();
    let mut first = None;
    let can = |way: &&Way| way.is_here() && program.needs().all(|need| way.can(need));
    assert!(ways.iter().any(|way| can(&way)), "nobody runs {program:?}");
    for way in ways.iter().filter(can) {
        let is = (way.is_stale, way.ranks);
        let reference = || {
            run(
                program,
                &mut Reference::new(program, way.is_stale, way.ranks),
            )
        };
        let expected: &Run = references.entry(is).or_insert_with(reference);
        let found = run(program, &mut *(way.make)(program));
        let same = same_shown(&expected.shown, &found.shown).and_then(|()| {
            // Ranks may find another cause.
            let is_like = |(end, _): &&(_, Pack)| way.same_record && *end == expected.end();
            let first = first.as_ref().filter(is_like).map(|(_, record)| record);
            same_records(&expected.record, &found.record, first)
        });
        same.map_err(|how| format!("{}: {how}\n{}", way.name, program.code()))?;
        let record = found.record.filter(|_| way.same_record);
        first = first.or(record.map(|record| (expected.end(), record)));
    }
    Ok(())
}

/// What an executor shows after each action, and at the end; none where it would have to wait.
pub struct Run {
    shown: Vec<Option<Shown>>,
    record: Option<Pack>,
}

impl Run {
    fn end(&self) -> Option<Shown> {
        self.shown.last().cloned().flatten()
    }
}

pub fn run(program: &Program, executor: &mut dyn Executor) -> Run {
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
fn same_records(
    expected: &Option<Pack>,
    found: &Option<Pack>,
    first: Option<&Pack>,
) -> Result<(), String> {
    let (Some(expected), Some(found)) = (expected, found) else {
        return Ok(());
    };
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

/// So many programs for each of the executors that are `tried`, of what it can, which all of these run.
pub fn sweep(tried: &'static [Way], ways: &[Way], cases: u32) {
    let seed = seed();
    println!("PROPTEST_RNG_SEED={seed} draws these programs again");
    let here = |(_, way): &(usize, &Way)| way.is_here();
    for (number, way) in tried.iter().enumerate().filter(here) {
        let config = Config {
            cases,
            rng_seed: RngSeed::Fixed(seed ^ ((number as u64) << 32)),
            failure_persistence: None,
            ..Config::default()
        };
        let run = TestRunner::new(config).run(&programs(|need| way.can(need)), |program| {
            differs_by(ways, &program).map_err(TestCaseError::fail)
        });
        if let Err(failure) = run {
            panic!("{failure}");
        }
    }
}
