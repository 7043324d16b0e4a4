//! The audit as text.

use std::fmt;

use super::{Audit, compare::Figures};
use crate::page::number;

/// The columns of one run.
fn cells(figures: &Figures) -> String {
    format!(
        "{:>7} {:>7} {:>7} {:>7} {:>8}",
        number(figures.cosine, 3),
        number(figures.norm_ratio, 3),
        percent(figures.lost),
        match figures.non_finite {
            0 => "-".to_string(),
            count => count.to_string(),
        },
        number(figures.headroom, 1),
    )
}

const HEAD: &str = " cosine   ratio    lost inf/NaN headroom";

/// A norm in f32, of which there is none where a value is not finite.
fn norm(value: Option<f64>) -> String {
    value.map_or("inf/NaN".to_string(), |value| format!("{value:.2e}"))
}

/// A share; a dash for none.
fn percent(share: f64) -> String {
    match share {
        0.0 => "-".to_string(),
        share => format!("{:.1} %", 100.0 * share),
    }
}

impl fmt::Display for Audit {
    /// The verdict, and tables of the run at the present loss scale: for the other runs see the JSON, or the page.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.advice)?;
        for run in &self.runs {
            let verdict = if run.is_right { "right" } else { "off" };
            writeln!(f, "{:<16} loss {:<12.6} {verdict}", run.name, run.loss)?;
        }
        let Some(now) = self.runs.get(2) else {
            return Ok(());
        };
        let width = |names: &mut dyn Iterator<Item = &String>| {
            names.map(|name| name.len()).max().unwrap_or(0).max(24)
        };
        let columns = width(&mut self.parameters.iter().map(|parameter| &parameter.path));
        writeln!(
            f,
            "\n{:<columns$} {:>10} {HEAD}",
            format!("gradients, {}", now.name),
            "norm f32"
        )?;
        for parameter in &self.parameters {
            let cells = cells(&parameter.figures[1]);
            writeln!(
                f,
                "{:<columns$} {:>10} {cells}",
                parameter.path,
                norm(parameter.norm)
            )?;
        }
        if !self.layers.is_empty() {
            let columns = width(&mut self.layers.iter().map(|layer| &layer.name)) + 10;
            writeln!(f, "\n{:<columns$} {:>10} {HEAD}", "probes", "norm f32")?;
            for layer in &self.layers {
                let rows = [
                    ("", Some(&layer.value)),
                    (" gradient", layer.gradient.as_ref()),
                ];
                for (what, passed) in rows {
                    let Some(passed) = passed else { continue };
                    let cells = cells(&passed.figures[1]);
                    let name = format!("{}{what}", layer.name);
                    writeln!(f, "{name:<columns$} {:>10} {cells}", norm(passed.norm))?;
                }
            }
        }
        writeln!(f, "\ngradient values that become zero:")?;
        for format in &self.formats {
            let how = if format.is_measured {
                ""
            } else {
                ", a scale for each parameter (counted)"
            };
            writeln!(f, "{:<8} {:>6.2} %{how}", format.name, 100.0 * format.lost)?;
        }
        Ok(())
    }
}
