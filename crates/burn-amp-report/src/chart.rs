//! Charts as SVG, to stand in a page.

use crate::page;
use plotters::{
    chart::{ChartBuilder, ChartContext},
    coord::{Shift, ranged1d::AsRangedCoord, ranged1d::ValueFormatter, types::RangedCoordf64},
    prelude::*,
};

pub(crate) const COLORS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(23, 158, 176),
    RGBColor(140, 86, 75),
    RGBColor(80, 80, 80),
];

const WIDTH: u32 = 1040;
/// Right of the chart.
const LEGEND: u32 = 160;

/// What a failing chart says: there are no files and no fonts to fail with.
const DRAWS: &str = "SVG is drawn into memory";

/// A line.
pub(crate) struct Line {
    pub(crate) name: String,
    /// Of [`COLORS`], which begin again behind the last.
    pub(crate) color: usize,
    pub(crate) points: Vec<(f64, f64)>,
}

/// How the values of a chart are spread.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Scale {
    Linear,
    Log,
    /// Powers of two, shown as such.
    Binary,
}

/// Lines over one axis; none if there is no value to be drawn. `marks` are places on that axis, with a line each.
pub(crate) fn lines(
    title: &str,
    across: &str,
    scale: Scale,
    lines: &[Line],
    marks: &[f64],
) -> Option<String> {
    let usable = |value: &f64| value.is_finite() && (scale == Scale::Linear || *value > 0.0);
    let shown = |value: f64| match scale {
        Scale::Linear => value,
        Scale::Log => value.log10(),
        Scale::Binary => value.log2(),
    };
    let values = || {
        let points = lines.iter().flat_map(|line| &line.points);
        points
            .filter(|(_, value)| usable(value))
            .map(|(at, value)| (*at, shown(*value)))
    };
    values().next()?;
    let (left, right) = range(values().map(|(at, _)| at).chain(marks.iter().copied()));
    let (low, high) = range(values().map(|(_, value)| value));
    let room = match scale {
        Scale::Binary => 1.0,
        _ => ((high - low) * 0.06).max(1e-12),
    };
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, 260)).into_drawing_area();
        let mut chart = frame(
            &root,
            title,
            left..right,
            (low - room)..(high + room),
            across,
            &|value| match scale {
                Scale::Linear => match value.abs() {
                    size if size == 0.0 || (1e-3..1e6).contains(&size) => {
                        format!("{}", (value * 1e6).round() / 1e6)
                    }
                    _ => format!("{value:.1e}"),
                },
                Scale::Log => page::tiny(10f64.powf(*value)),
                Scale::Binary => whole(*value).map_or(String::new(), |value| format!("2^{value}")),
            },
        );
        for mark in marks {
            let line = [(*mark, low - room), (*mark, high + room)];
            let line = LineSeries::new(line, RGBColor(214, 39, 40).mix(0.35).stroke_width(1));
            chart.draw_series(line).expect(DRAWS);
        }
        let mut legend = Vec::new();
        for line in lines {
            let color = COLORS[line.color % COLORS.len()];
            let points = || {
                let points = line.points.iter().filter(|(_, value)| usable(value));
                points.map(|(at, value)| (*at, shown(*value)))
            };
            if points().next().is_none() {
                continue;
            }
            match points().count() {
                // A line of one point is none.
                1 => chart.draw_series(points().map(|point| Circle::new(point, 3, color.filled()))),
                _ => chart.draw_series(LineSeries::new(points(), color.stroke_width(2))),
            }
            .expect(DRAWS);
            legend.push((line.name.as_str(), color));
        }
        if legend.len() > 1 {
            for (row, (name, color)) in legend.into_iter().enumerate() {
                let (x, y) = ((WIDTH - LEGEND + 12) as i32, 40 + 18 * row as i32);
                let line = PathElement::new([(x, y), (x + 18, y)], color.stroke_width(3));
                root.draw(&line).expect(DRAWS);
                let text = Text::new(name, (x + 24, y - 6), ("sans-serif", 12));
                root.draw(&text).expect(DRAWS);
            }
        }
        root.present().expect(DRAWS);
    }
    Some(svg)
}

/// Counts by exponent, with the range of f16.
pub(crate) fn exponents(counts: &[(i32, u64)]) -> String {
    let first = counts.first().map_or(-40, |(exponent, _)| *exponent);
    let last = counts.last().map_or(16, |(exponent, _)| *exponent);
    let most = counts
        .iter()
        .map(|(_, count)| *count)
        .max()
        .unwrap_or(0)
        .max(1) as f64;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, 240)).into_drawing_area();
        let range = f64::from(first) - 0.5..f64::from(last) + 1.5;
        let mut chart = frame(
            &root,
            "values by exponent",
            range,
            0.0..most * 1.08,
            "exponent",
            &|count| format!("{count}"),
        );
        let bar = |(exponent, count): &(i32, u64)| {
            let left = f64::from(*exponent);
            let inside = (-24..=15).contains(exponent);
            let color = if inside { COLORS[0] } else { COLORS[1] };
            Rectangle::new(
                [(left + 0.08, 0.0), (left + 0.92, *count as f64)],
                color.filled(),
            )
        };
        chart
            .draw_series(counts.iter().filter(|(_, count)| *count > 0).map(bar))
            .expect(DRAWS);
        for at in [-24.0, 16.0] {
            let line = LineSeries::new([(at, 0.0), (at, most * 1.08)], BLACK.stroke_width(1));
            chart.draw_series(line).expect(DRAWS);
        }
        let line = [(-14.0, 0.0), (-14.0, most * 1.08)];
        let dashed = DashedLineSeries::new(line, 4, 4, BLACK.mix(0.6).stroke_width(1));
        chart.draw_series(dashed).expect(DRAWS);
        root.present().expect(DRAWS);
    }
    svg
}

/// Counts by exponent over time: each row of the picture is an exponent, the darker the more of its step's values.
pub(crate) fn heat(
    title: &str,
    steps: &[(f64, Vec<(i32, u64)>)],
    offset: impl Fn(f64) -> f64,
) -> String {
    let mut svg = String::new();
    let (left, right) = range(steps.iter().map(|(step, _)| *step));
    let every = match steps.len() {
        0 | 1 => 1.0,
        count => (right - left) / (count - 1) as f64,
    };
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, 300)).into_drawing_area();
        let exponents = || {
            steps
                .iter()
                .flat_map(|(_, counts)| counts.iter().map(|(exponent, _)| f64::from(*exponent)))
        };
        let edges = steps
            .iter()
            .flat_map(|(step, _)| [-24.0, 15.0].map(|edge| edge - offset(*step)));
        let (low, high) = range(exponents().chain(edges));
        let mut chart = frame(
            &root,
            title,
            left..right + every,
            low..high + 1.0,
            "step",
            &|exponent| whole(*exponent).map_or(String::new(), |exponent| format!("2^{exponent}")),
        );
        for (step, counts) in steps {
            let total: u64 = counts.iter().map(|(_, count)| *count).sum();
            let cells = counts
                .iter()
                .filter(|(_, count)| *count > 0)
                .map(|(exponent, count)| {
                    let share = (*count as f64 / total.max(1) as f64).sqrt();
                    let bottom = f64::from(*exponent);
                    let color = HSLColor(0.6, 0.75, 0.95 - 0.7 * share.min(1.0));
                    Rectangle::new(
                        [(*step, bottom), (step + every, bottom + 1.0)],
                        color.filled(),
                    )
                });
            chart.draw_series(cells).expect(DRAWS);
        }
        // What f16 holds of unscaled gradients moves with the loss scale.
        for edge in [-24.0, 16.0] {
            let points = steps.iter().flat_map(|(step, _)| {
                let at = edge - offset(*step);
                [(*step, at), (step + every, at)]
            });
            let line = LineSeries::new(points, COLORS[1].stroke_width(2));
            chart.draw_series(line).expect(DRAWS);
        }
        root.present().expect(DRAWS);
    }
    svg
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn frame<'a, 'b>(
    root: &'a Area<'b>,
    title: &str,
    across: std::ops::Range<f64>,
    up: std::ops::Range<f64>,
    label: &str,
    format: &dyn Fn(&f64) -> String,
) -> Chart<'a, 'b>
where
    std::ops::Range<f64>: AsRangedCoord<CoordDescType = RangedCoordf64, Value = f64>,
    RangedCoordf64: ValueFormatter<f64>,
{
    root.fill(&WHITE).expect(DRAWS);
    let mut chart = ChartBuilder::on(root)
        .margin(8)
        .margin_right(LEGEND)
        .caption(title, ("sans-serif", 15))
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d(across, up)
        .expect(DRAWS);
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.1))
        .axis_style(BLACK.mix(0.4))
        .label_style(("sans-serif", 12))
        .x_desc(label)
        .y_labels(6)
        .x_labels(12)
        .x_label_formatter(&|at| whole(*at).map_or(String::new(), |at| at.to_string()))
        .y_label_formatter(format)
        .draw()
        .expect(DRAWS);
    chart
}

/// A number that is whole.
fn whole(value: f64) -> Option<i64> {
    ((value - value.round()).abs() < 1e-6).then(|| value.round() as i64)
}

/// From the smallest to the largest, and never empty.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .filter(|value| value.is_finite())
        .fold((f64::MAX, f64::MIN), |(low, high), value| {
            (low.min(value), high.max(value))
        });
    match low.partial_cmp(&high) {
        Some(std::cmp::Ordering::Less) => (low, high),
        Some(std::cmp::Ordering::Equal) => (low - 0.5, high + 0.5),
        _ => (0.0, 1.0),
    }
}
