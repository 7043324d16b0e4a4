//! Who can do what: the table in the book's page on limits, and that it is so.

use crate::executor::WAYS;
use crate::program::{Action, Clip, Need, Pass, Program, Shape, Slope};
use crate::{differs, run};
use burn_amp_tests::quietly;
use std::fs;

/// The shortest program that asks for something.
fn shortest(need: Need) -> Program {
    let pass = Pass {
        slope: Slope::Power(0),
        shape: Shape::One,
    };
    let shape = if need == Need::Region {
        Shape::Region
    } else {
        Shape::One
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
        Need::Region => vec![Action::Wait],
        _ => Vec::new(),
    };
    Program {
        scale: 8,
        growth_interval: 1,
        micro_batches: match need {
            Need::Accumulation | Need::Dropping => 2,
            _ => 1,
        },
        sums: false,
        drops: need == Need::Dropping,
        clip: (need == Need::Clipping).then_some(Clip::GlobalNorm),
        rejects: (need == Need::Hook).then_some(2),
        averages: need == Need::Average,
        actions: [vec![train], between, vec![train]].concat(),
    }
}

#[test]
fn executors_do_what_the_table_says_and_refuse_the_rest() {
    for need in Need::ALL {
        let program = shortest(need);
        differs(&program).unwrap();
        for way in WAYS.iter().filter(|way| way.refuses.contains(&need)) {
            let ran = quietly(|| drop(run(&program, &mut *(way.make)(&program))));
            let message = ran.expect_err(way.name).downcast::<String>().unwrap();
            assert!(
                ["cannot be captured", "skip_micro_batch"]
                    .iter()
                    .any(|part| message.contains(part)),
                "{}, {need:?}: {message}",
                way.name
            );
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
    let cells = |cells: Vec<&str>| format!("|{}|\n", cells.join("|"));
    let names = WAYS.iter().map(|way| way.name);
    let mut table = cells([""].into_iter().chain(names).collect());
    table += &cells(vec!["-"; WAYS.len() + 1]);
    for need in Need::ALL {
        let cell = |way: &crate::executor::Way| match () {
            () if way.refuses.contains(&need) => "✗",
            () if way.lacks.contains(&need) => "–",
            () => "✓",
        };
        if WAYS.iter().any(|way| !way.can(need)) {
            let name = match need {
                Need::Several => "two optimizers".to_string(),
                Need::Dropping => "skip_micro_batch".to_string(),
                _ => format!("{need:?}").to_lowercase(),
            };
            table += &cells(
                [name.as_str()]
                    .into_iter()
                    .chain(WAYS.iter().map(cell))
                    .collect(),
            );
        }
    }
    table
}
