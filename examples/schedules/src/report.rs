//! The tables.

use crate::training::{History, recoveries};

/// A table with the first column on the left and the others on the right.
pub fn grid(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The schedules of one program, that in f32 first.
pub fn schedules(program: &str, runs: &[(&str, History)]) -> String {
    let head = [
        program,
        "skips in 100",
        "skips in all",
        "lost gradients",
        "final loss",
        "first scale",
        "last scale",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    let full = runs.first().map_or(0.0, |(_, full)| full.zero_share());
    rows.extend(runs.iter().map(|(name, run)| {
        let scale = |scale: f32| format!("2^{:.0}", scale.log2());
        vec![
            (*name).to_string(),
            run.skips_in(100).to_string(),
            run.skips_in(usize::MAX).to_string(),
            format!("{:.2} %", 100.0 * (run.zero_share() - full)),
            format!("{:.5}", run.final_loss()),
            scale(run.scales[0]),
            scale(run.scales[1]),
        ]
    }));
    grid(&rows)
}

/// The guards of one program, and that without spikes first.
pub fn guards(program: &str, runs: &[(&str, History)], spikes: &[usize]) -> String {
    let head = [program, "steps to recover", "rejected", "final loss"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let Some((_, clean)) = runs.first() else {
        return String::new();
    };
    rows.extend(runs.iter().enumerate().map(|(index, (name, run))| {
        let steps = recoveries(&run.losses, &clean.losses, spikes);
        let steps = steps.into_iter().map(|steps| match steps {
            Some(steps) => steps.to_string(),
            None => "never".to_string(),
        });
        let steps = steps.collect::<Vec<_>>().join(", ");
        vec![
            (*name).to_string(),
            if index == 0 { "-".to_string() } else { steps },
            run.guarded.to_string(),
            format!("{:.5}", run.final_loss()),
        ]
    }));
    grid(&rows)
}
