//! Charts as SVG, to stand in a page.

use crate::page;
use plotters::{
    chart::{ChartBuilder, ChartContext},
    coord::{Shift, types::RangedCoordf64},
    prelude::*,
};
use std::ops::Range;

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

/// A line.
pub(crate) struct Line {
    pub(crate) name: String,
    /// Of [`COLORS`], which begin again behind the last.
    pub(crate) color: usize,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Line {
    fn color(&self) -> RGBColor {
        COLORS[self.color % COLORS.len()]
    }
}

/// How the values of a chart are spread.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Scale {
    Linear,
    Log,
    /// Powers of two, shown as such.
    Binary,
}

impl Scale {
    fn shown(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Log => value.log10(),
            Self::Binary => value.log2(),
        }
    }

    /// What is left free above and below values that are spread so far.
    fn room(self, spread: f64) -> f64 {
        match self {
            Self::Binary => 1.0,
            _ => (spread * 0.06).max(1e-12),
        }
    }

    /// What stands at a place of the axis.
    fn label(self, at: f64) -> String {
        match self {
            Self::Linear if at == 0.0 || (1e-3..1e6).contains(&at.abs()) => {
                format!("{}", (at * 1e6).round() / 1e6)
            }
            Self::Linear => format!("{at:.1e}"),
            Self::Log => page::tiny(10f64.powf(at)),
            Self::Binary => exponent_label(at),
        }
    }
}

fn exponent_label(at: f64) -> String {
    whole(at).map_or(String::new(), |exponent| format!("2^{exponent}"))
}

/// Lines over one axis; none if there is no value to be drawn. `marks` are places on that axis, with a line each.
pub(crate) fn lines(
    title: &str,
    across: &str,
    scale: Scale,
    lines: &[Line],
    marks: &[f64],
) -> Option<String> {
    let usable = |value: f64| value.is_finite() && (scale == Scale::Linear || value > 0.0);
    let points = |line: &Line| -> Points {
        let points = line.points.iter().filter(|(_, value)| usable(*value));
        points
            .map(|(at, value)| (*at, scale.shown(*value)))
            .collect()
    };
    let drawn = lines.iter().map(|line| (line, points(line)));
    let drawn: Vec<_> = drawn.filter(|(_, points)| !points.is_empty()).collect();
    let values = || drawn.iter().flat_map(|(_, points)| points);
    values().next()?;
    let (left, right) = range(values().map(|(at, _)| *at).chain(marks.iter().copied()));
    let (low, high) = range(values().map(|(_, value)| *value));
    let room = scale.room(high - low);
    let (low, high) = (low - room, high + room);
    let axis = Axis {
        title,
        across: left..right,
        up: low..high,
        label: across,
        format: &|value| scale.label(*value),
    };
    Some(draw(260, axis, |root, chart| {
        for mark in marks {
            let style = RGBColor(214, 39, 40).mix(0.35).stroke_width(1);
            chart.draw_series(LineSeries::new([(*mark, low), (*mark, high)], style))?;
        }
        for (line, points) in &drawn {
            let (color, points) = (line.color(), points.iter().copied());
            match points.len() {
                // A line of one point is none.
                1 => {
                    chart.draw_series(points.map(|point| Circle::new(point, 3, color.filled())))?
                }
                _ => chart.draw_series(LineSeries::new(points, color.stroke_width(2)))?,
            };
        }
        match drawn.len() {
            1 => Ok(()),
            _ => legend(root, drawn.iter().map(|(line, _)| *line)),
        }
    }))
}

/// The names of lines, right of the chart.
fn legend<'a>(root: &Area<'_>, lines: impl Iterator<Item = &'a Line>) -> Drawn {
    for (row, line) in lines.enumerate() {
        let (x, y) = ((WIDTH - LEGEND + 12) as i32, 40 + 18 * row as i32);
        let style = line.color().stroke_width(3);
        root.draw(&PathElement::new([(x, y), (x + 18, y)], style))?;
        let at = (x + 24, y - 6);
        root.draw(&Text::new(line.name.as_str(), at, ("sans-serif", 12)))?;
    }
    Ok(())
}

/// Counts by exponent, with the range of f16.
pub(crate) fn exponents(counts: &[(i32, u64)]) -> String {
    let first = counts.first().map_or(-40, |(exponent, _)| *exponent);
    let last = counts.last().map_or(16, |(exponent, _)| *exponent);
    let most = counts.iter().map(|(_, count)| *count).max();
    let top = most.unwrap_or(0).max(1) as f64 * 1.08;
    let axis = Axis {
        title: "values by exponent",
        across: f64::from(first) - 0.5..f64::from(last) + 1.5,
        up: 0.0..top,
        label: "exponent",
        format: &|count| format!("{count}"),
    };
    draw(240, axis, |_, chart| {
        let bar = |(exponent, count): &(i32, u64)| {
            let left = f64::from(*exponent);
            let inside = (-24..=15).contains(exponent);
            let color = if inside { COLORS[0] } else { COLORS[1] };
            let corners = [(left + 0.08, 0.0), (left + 0.92, *count as f64)];
            Rectangle::new(corners, color.filled())
        };
        chart.draw_series(counts.iter().filter(|(_, count)| *count > 0).map(bar))?;
        for at in [-24.0, 16.0] {
            let line = LineSeries::new([(at, 0.0), (at, top)], BLACK.stroke_width(1));
            chart.draw_series(line)?;
        }
        let style = BLACK.mix(0.6).stroke_width(1);
        let dashed = DashedLineSeries::new([(-14.0, 0.0), (-14.0, top)], 4, 4, style);
        chart.draw_series(dashed)?;
        Ok(())
    })
}

/// Counts by exponent over time: each row of the picture is an exponent, the darker the more of its step's values.
pub(crate) fn heat(
    title: &str,
    steps: &[(f64, Vec<(i32, u64)>)],
    offset: impl Fn(f64) -> f64,
) -> String {
    let (left, right) = range(steps.iter().map(|(step, _)| *step));
    let every = match steps.len() {
        0 | 1 => 1.0,
        count => (right - left) / (count - 1) as f64,
    };
    let counts = steps.iter().flat_map(|(_, counts)| counts);
    let exponents = counts.map(|(exponent, _)| f64::from(*exponent));
    let edges = (steps.iter()).flat_map(|(step, _)| [-24.0, 15.0].map(|edge| edge - offset(*step)));
    let (low, high) = range(exponents.chain(edges));
    let axis = Axis {
        title,
        across: left..right + every,
        up: low..high + 1.0,
        label: "step",
        format: &|exponent| exponent_label(*exponent),
    };
    draw(300, axis, |_, chart| {
        for (step, counts) in steps {
            let total: u64 = counts.iter().map(|(_, count)| *count).sum();
            let counts = counts.iter().filter(|(_, count)| *count > 0);
            let cells = counts.map(|(exponent, count)| {
                let share = (*count as f64 / total.max(1) as f64).sqrt();
                let bottom = f64::from(*exponent);
                let color = HSLColor(0.6, 0.75, 0.95 - 0.7 * share.min(1.0));
                let corners = [(*step, bottom), (step + every, bottom + 1.0)];
                Rectangle::new(corners, color.filled())
            });
            chart.draw_series(cells)?;
        }
        // What f16 holds of unscaled gradients moves with the loss scale.
        for edge in [-24.0, 16.0] {
            let points = steps.iter().flat_map(|(step, _)| {
                let at = edge - offset(*step);
                [(*step, at), (step + every, at)]
            });
            chart.draw_series(LineSeries::new(points, COLORS[1].stroke_width(2)))?;
        }
        Ok(())
    })
}

type Points = Vec<(f64, f64)>;
type Svg<'a> = SVGBackend<'a>;
type Area<'a> = DrawingArea<Svg<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, Svg<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<<Svg<'static> as DrawingBackend>::ErrorType>>;

/// What stands around a picture.
struct Axis<'a> {
    title: &'a str,
    across: Range<f64>,
    up: Range<f64>,
    label: &'a str,
    format: &'a dyn Fn(&f64) -> String,
}

/// A picture, into memory: there are no files and no fonts to fail with.
fn draw(
    height: u32,
    axis: Axis<'_>,
    paint: impl FnOnce(&Area<'_>, &mut Chart<'_, '_>) -> Drawn,
) -> String {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    let drawn = framed(&root, axis).and_then(|mut chart| paint(&root, &mut chart));
    drawn
        .and_then(|()| root.present())
        .expect("SVG is drawn into memory");
    drop(root);
    svg
}

fn framed<'a, 'b>(root: &'a Area<'b>, axis: Axis<'_>) -> Drawn<Chart<'a, 'b>> {
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(root)
        .margin(8)
        .margin_right(LEGEND)
        .caption(axis.title, ("sans-serif", 15))
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d(axis.across, axis.up)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.1))
        .axis_style(BLACK.mix(0.4))
        .label_style(("sans-serif", 12))
        .x_desc(axis.label)
        .y_labels(6)
        .x_labels(12)
        .x_label_formatter(&|at| whole(*at).map_or(String::new(), |at| at.to_string()))
        .y_label_formatter(axis.format)
        .draw()?;
    Ok(chart)
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
