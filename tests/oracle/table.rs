//! Who can do what: the table in the book's page on limits, and that it is so.

use crate::executor::{LEARNER, WAYS, Way};
use crate::program::{Action, Need, Pass, Program, Setting, Shape, Slope};
use crate::{compare::run, differs};
use burn_amp_tests::quietly;
use std::fs;

/// Each need, and the shortest program that asks for it.
fn shortest() -> [(Need, Program); 16] {
    let pass = Pass {
        slope: Slope::Power(0),
        shape: Shape::One,
    };
    let around = |actions: &[Action], shape| {
        let train = Action::Train(Pass { shape, ..pass });
        Program::new(1, &[&[train], actions, &[train]].concat())
    };
    let between = |actions: &[Action]| around(actions, Shape::One);
    let bare = || between(&[]);
    let of_two = || Program {
        micro_batches: 2,
        ..bare()
    };
    let dropping = Program {
        drops: true,
        ..of_two()
    };
    let hooked = Program {
        rejects: Some(2),
        halves: Some(1),
        ..bare()
    };
    let averaged = Program {
        averages: true,
        ..bare()
    };
    let set = [Setting::Scale(4), Setting::Interval(3)].map(Action::Set);
    // A captured step is refused when it is made.
    let region = around(&[Action::Wait], Shape::Region);
    [
        (Need::Accumulation, of_two()),
        (Need::Dropping, dropping),
        (Need::Hook, hooked),
        (Need::Average, averaged),
        (Need::Flush, between(&[Action::Flush])),
        (Need::Discard, between(&[Action::Discard(pass)])),
        (Need::Unscale, between(&[Action::Unscale(pass)])),
        (Need::Record, between(&[Action::Save, Action::Load])),
        (Need::Clone, between(&[Action::Clone])),
        (Need::Setting, between(&set)),
        (Need::Several, between(&[Action::Swap])),
        (Need::Region, region),
        (Need::Clear, between(&[Action::Clear])),
        (Need::Replace, between(&[Action::Replace(4)])),
        (Need::Scopes, around(&[], Shape::Nested)),
        (Need::Untested, between(&[Action::Untested(pass)])),
    ]
}

#[test]
fn executors_do_what_the_table_says_and_refuse_the_rest() {
    for (need, program) in shortest() {
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
    for (need, _) in shortest() {
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
