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

/// The width of a column of names.
fn width<'a>(names: impl Iterator<Item = &'a String>) -> usize {
    names.map(String::len).fold(24, usize::max)
}

/// Rows of a name, a norm in f32, of which there is none where a value is not finite, and the figures of one run.
fn table<'a>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    columns: usize,
    rows: impl Iterator<Item = (String, Option<f64>, &'a Figures)>,
) -> fmt::Result {
    writeln!(f, "\n{title:<columns$} {:>10} {HEAD}", "norm f32")?;
    for (name, norm, figures) in rows {
        let norm = norm.map_or("inf/NaN".to_string(), |norm| format!("{norm:.2e}"));
        writeln!(f, "{name:<columns$} {norm:>10} {}", cells(figures))?;
    }
    Ok(())
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
        let rows = (self.parameters.iter())
            .map(|found| (found.path.clone(), found.norm, &found.figures[1]));
        let columns = width(self.parameters.iter().map(|found| &found.path));
        table(f, &format!("gradients, {}", now.name), columns, rows)?;
        if !self.layers.is_empty() {
            let rows = self.layers.iter().flat_map(|layer| {
                let passed = [
                    Some(("", &layer.value)),
                    layer.gradient.as_ref().map(|g| (" gradient", g)),
                ];
                let passed = passed.into_iter().flatten();
                passed.map(|(what, passed)| {
                    let name = format!("{}{what}", layer.name);
                    (name, passed.norm, &passed.figures[1])
                })
            });
            let columns = width(self.layers.iter().map(|layer| &layer.name)) + 10;
            table(f, "probes", columns, rows)?;
        }
        writeln!(f, "\ngradient values that become zero:")?;
        for format in &self.formats {
            let how = match format.is_measured {
                true => "",
                false => ", a scale for each parameter (counted)",
            };
            writeln!(f, "{:<8} {:>6.2} %{how}", format.name, 100.0 * format.lost)?;
        }
        Ok(())
    }
}
