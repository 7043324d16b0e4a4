//! Who can do what: the table in the book's page on limits, and that it is so.

use crate::executor::{LEARNER, WAYS, Way};
use crate::program::{Action, Clip, Need, Pass, Program, Shape, Slope};
use crate::{compare::run, differs};
use burn_amp_tests::quietly;
use std::fs;

const NEEDS: [Need; 17] = [
    Need::Accumulation,
    Need::Dropping,
    Need::Clipping,
    Need::Hook,
    Need::Average,
    Need::Flush,
    Need::Discard,
    Need::Unscale,
    Need::Record,
    Need::Clone,
    Need::Setting,
    Need::Several,
    Need::Region,
    Need::Clear,
    Need::Replace,
    Need::Scopes,
    Need::Untested,
];

/// The shortest program that asks for something.
fn shortest(need: Need) -> Program {
    let pass = Pass {
        slope: Slope::Power(0),
        shape: Shape::One,
    };
    let shape = match need {
        Need::Region => Shape::Region,
        Need::Scopes => Shape::Nested,
        _ => Shape::One,
    };
    let train = Action::Train(Pass { shape, ..pass });
    let between = match need {
        Need::Flush => vec![Action::Flush],
        Need::Discard => vec![Action::Discard(pass)],
        Need::Unscale => vec![Action::Unscale(pass)],
        Need::Record => vec![Action::Save, Action::Load],
        Need::Clone => vec![Action::Clone],
        Need::Setting => vec![Action::Scale(4), Action::Interval(3)],
        Need::Several => vec![Action::Swap],
        Need::Clear => vec![Action::Clear],
        Need::Replace => vec![Action::Replace(4)],
        Need::Accumulation | Need::Dropping | Need::Clipping => Vec::new(),
        Need::Hook | Need::Average => Vec::new(),
        // A captured step is refused when it is made.
        Need::Region => vec![Action::Wait],
        Need::Scopes => Vec::new(),
        Need::Untested => vec![Action::Untested(pass)],
    };
    let micro_batches = match need {
        Need::Accumulation | Need::Dropping => 2,
        _ => 1,
    };
    Program {
        drops: need == Need::Dropping,
        clip: (need == Need::Clipping).then_some(Clip::GlobalNorm),
        rejects: (need == Need::Hook).then_some(2),
        halves: (need == Need::Hook).then_some(1),
        averages: need == Need::Average,
        ..Program::new(micro_batches, &[vec![train], between, vec![train]].concat())
    }
}

#[test]
fn executors_do_what_the_table_says_and_refuse_the_rest() {
    for need in NEEDS {
        let program = shortest(need);
        differs(&program).unwrap();
        for way in WAYS.iter().filter(|way| way.refuses.contains(&need)) {
            let ran = quietly(|| drop(run(&program, &mut *(way.make)(&program))));
            let message = ran.expect_err(way.name).downcast::<String>().unwrap();
            let part = match way.is_recorded {
                true => "cannot be captured",
                false => "skip_micro_batch",
            };
            assert!(message.contains(part), "{}, {need:?}: {message}", way.name);
        }
    }
}

#[test]
fn the_book_has_the_table() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/limits.md");
    let page = fs::read_to_string(file).unwrap();
    let table = table();
    assert!(page.contains(&table), "put this into {file}:\n{table}");
}

/// A row for each need that not all have.
fn table() -> String {
    // Of ranks, one number of them.
    let ways = || WAYS.iter().filter(|way| way.ranks < 3).chain([&LEARNER]);
    let row = |cells: Vec<&str>| format!("|{}|\n", cells.join("|"));
    let names = ways().map(|way| way.name);
    let mut table = row([""].into_iter().chain(names).collect());
    table += &row(vec!["-"; ways().count() + 1]);
    for need in NEEDS {
        let cell = |way: &Way| match () {
            () if way.refuses.contains(&need) => "✗",
            () if way.lacks.contains(&need) => "–",
            () => "✓",
        };
        let cells: Vec<_> = ways().map(cell).collect();
        if cells.iter().any(|cell| *cell != "✓") {
            let name = format!("{need:?}").to_lowercase();
            let name = match need {
                Need::Several => "two optimizers",
                Need::Dropping => "`skip_micro_batch`",
                Need::Clear => "`drop_window`",
                Need::Replace => "`update_to`; a pipeline's `set_loss_scale`",
                _ => &name,
            };
            table += &row([&[name], &cells[..]].concat());
        }
    }
    table
}
