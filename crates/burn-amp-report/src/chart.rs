//! Charts as SVG, to stand in a page.

use crate::page;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::{
    coord::Shift, coord::types::RangedCoordf64, element::DashedPathElement, prelude::*,
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
    RGBColor(127, 127, 127),
];
/// The color of text and lines: the page shows through, and may be white or dark.
const GREY: RGBColor = RGBColor(118, 118, 118);

const WIDTH: u32 = 1040;
/// Right of the chart.
const LEGEND: u32 = 160;

/// A line.
pub(crate) struct Line {
    pub(crate) name: String,
    /// A color of [`COLORS`], which begin again behind the last.
    pub(crate) color: usize,
    /// Drawn above the others, so that both are seen where one has the same values.
    pub(crate) is_dashed: bool,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Line {
    fn color(&self) -> RGBColor {
        COLORS[self.color % COLORS.len()]
    }

    /// A dash and the gap behind it, in pixels.
    fn dash(&self) -> (i32, i32) {
        match self.is_dashed {
            true => (7, 5),
            false => (i32::MAX, 0),
        }
    }

    fn draw(&self, points: &[(f64, f64)], chart: &mut Chart<'_, '_>) -> Drawn {
        let (color, points) = (self.color(), points.iter().copied());
        let (dash, gap) = self.dash();
        match points.len() {
            // A line of one point is none.
            1 => chart.draw_series(points.map(|point| Circle::new(point, 3, color.filled())))?,
            _ => {
                let style = color.stroke_width(2);
                chart.draw_series(DashedLineSeries::new(points, dash, gap, style))?
            }
        };
        Ok(())
    }
}

/// The spread of the values of a chart.
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

    /// The margin above and below values that are spread so far.
    fn room(self, spread: f64) -> f64 {
        match self {
            Self::Binary => 1.0,
            _ => (spread * 0.06).max(1e-12),
        }
    }

    /// The text at a place of the axis.
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

/// Lines over the steps; none if there is no value to be drawn. `unit` is that of the values, `marks` are steps with a line each.
pub(crate) fn lines(
    title: &str,
    unit: &str,
    scale: Scale,
    lines: &[Line],
    marks: &[f64],
) -> Option<String> {
    // An axis that spans more than the range of f64 cannot be labelled.
    let usable = |value: f64| value.abs() < 1e300 && (scale == Scale::Linear || value > 0.0);
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
        label: "step",
        values: "",
        format: &|value| match unit {
            "" => scale.label(*value),
            unit => format!("{} {unit}", scale.label(*value)),
        },
    };
    Some(draw(260, axis, |root, chart| {
        for mark in marks {
            let style = RGBColor(214, 39, 40).mix(0.35).stroke_width(1);
            chart.draw_series(LineSeries::new([(*mark, low), (*mark, high)], style))?;
        }
        let mut order = Vec::from_iter(&drawn);
        order.sort_by_key(|(line, _)| line.is_dashed);
        for (line, points) in order {
            line.draw(points, chart)?;
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
        let (dash, gap) = line.dash();
        let path = [(x, y), (x + 19, y)];
        root.draw(&DashedPathElement::new(path, dash, gap, style))?;
        let at = (x + 24, y - 6);
        root.draw(&Text::new(line.name.as_str(), at, font(12)))?;
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
        values: "values",
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
        for (at, dash, gap) in [(-24.0, i32::MAX, 0), (16.0, i32::MAX, 0), (-14.0, 4, 4)] {
            let (ends, style) = ([(at, 0.0), (at, top)], GREY.stroke_width(1));
            chart.draw_series(DashedLineSeries::new(ends, dash, gap, style))?;
        }
        Ok(())
    })
}

/// Counts by exponent over time: each row of the picture is an exponent, in the fuller a color the more of its step's values.
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
        values: "magnitude",
        format: &|exponent| exponent_label(*exponent),
    };
    draw(300, axis, |_, chart| {
        for (step, counts) in steps {
            let total: u64 = counts.iter().map(|(_, count)| *count).sum();
            let counts = counts.iter().filter(|(_, count)| *count > 0);
            let cells = counts.map(|(exponent, count)| {
                let share = (*count as f64 / total.max(1) as f64).sqrt();
                let bottom = f64::from(*exponent);
                let color = HSLColor(0.58, 0.8, 0.5).mix((0.1 + 1.5 * share).min(1.0));
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

/// The texts around a picture.
struct Axis<'a> {
    title: &'a str,
    across: Range<f64>,
    up: Range<f64>,
    label: &'a str,
    /// The quantity of the other axis, where the title does not say it.
    values: &'a str,
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
    let mut chart = ChartBuilder::on(root)
        .margin(8)
        .margin_right(LEGEND)
        .caption(axis.title, font(15))
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d(axis.across, axis.up)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GREY.mix(0.25))
        .axis_style(GREY.mix(0.6))
        .label_style(font(12))
        .x_desc(axis.label)
        .y_desc(axis.values)
        .y_labels(6)
        .x_labels(12)
        .x_label_formatter(&|at| whole(*at).map_or(String::new(), |at| at.to_string()))
        .y_label_formatter(axis.format)
        .draw()?;
    Ok(chart)
}

fn font(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&GREY)
}

/// A number that is whole.
fn whole(value: f64) -> Option<i64> {
    ((value - value.round()).abs() < 1e-6).then(|| value.round() as i64)
}

/// The range from the smallest to the largest, never empty.
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
