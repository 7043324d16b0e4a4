//! The audit as a page.

use minijinja::{Value, context};

use super::Audit;
use crate::{chart, page};

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
    let has_counts = audit.exponents.iter().any(|(_, count)| *count > 0);
    let context = context! {
        title => "Audit of one step",
        audit => context! { runs, ..shown },
        chart => has_counts.then(|| chart::exponents(&audit.exponents)),
    };
    page::render("audit.html", context)
}
