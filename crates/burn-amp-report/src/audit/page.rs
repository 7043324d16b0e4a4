//! The audit as a page.

use minijinja::{Value, context};

use super::Audit;
use crate::{
    chart,
    page::{self, power},
};

pub(super) fn render(audit: &Audit) -> String {
    let shown = Value::from_serialize(audit);
    let runs: Vec<_> = (audit.runs.iter())
        .map(|run| {
            context! {
                name => run.name,
                loss => format!("{:.6}", run.loss),
                loss_is_finite => run.loss.is_finite(),
                is_right => run.is_right,
            }
        })
        .collect();
    // The first is f32, which the others are compared with.
    let tables: Vec<_> = (audit.runs.iter().skip(1).enumerate())
        .map(|(index, run)| context! { name => run.name, index })
        .collect();
    let has_counts = audit.exponents.iter().any(|(_, count)| *count > 0);
    let context = context! {
        title => "Audit of one step",
        audit => context! { runs, ..shown },
        fine => audit.verdict.is_fine(),
        scale => power(audit.loss_scale),
        chart => has_counts.then(|| chart::exponents(&audit.exponents)),
        tables,
    };
    page::render("audit.html", context)
}
