//! The picture: the losses of the runs, and the loss scale below.

use plotters::{
    coord::{ranged1d::AsRangedCoord, ranged1d::ValueFormatter},
    element::DashedPathElement,
    prelude::*,
};
use std::path::Path;

use crate::{
    Result,
    report::{Summary, write},
    training::History,
};

const SIZE: (u32, u32) = (900, 640);
const COLORS: [RGBColor; 3] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
];
/// Of text and lines: the page shows through, and may be white or dark.
const GREY: RGBColor = RGBColor(118, 118, 118);

/// A dash and the gap behind it, in pixels.
type Dash = (i32, i32);
const SOLID: Dash = (i32::MAX, 0);
const DASHED: Dash = (7, 5);

/// Draws the picture as SVG.
///
/// # Errors
///
/// If the file cannot be written; names it.
pub fn write_svg(runs: &[(Summary, History)], path: &Path) -> Result<()> {
    let mut svg = String::new();
    draw(runs, &mut svg).map_err(|error| format!("cannot draw {}: {error}", path.display()))?;
    write(path, &svg)
}

fn draw(runs: &[(Summary, History)], svg: &mut String) -> std::result::Result<(), String> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let (upper, lower) = root.split_vertically(400);
    let steps = runs.iter().map(|(_, h)| h.loss.len()).max().unwrap_or(0) as f64;

    let losses = || runs.iter().flat_map(|(_, history)| usable(&history.loss));
    let (low, high) = (
        losses().fold(f64::MAX, f64::min),
        losses().fold(0.0, f64::max),
    );
    let range = (low / 1.5..high * 1.5).log_scale();
    let mut chart = chart(&upper, "loss", steps, range, &|loss| format!("{loss:.0e}"))?;
    // The first run comes last, in dashes: where another has the same losses, both are seen.
    let lines = COLORS.iter().zip([DASHED, SOLID, SOLID]).zip(runs);
    for ((color, dash), (summary, history)) in lines.rev() {
        let line = series(usable_at(&history.loss), *color, dash);
        chart
            .draw_series(line)
            .map_err(text)?
            .label(summary.name.as_str())
            .legend(move |(x, y)| path([(x, y), (x + 20, y)].into_iter(), *color, dash));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::Coordinate(546, 60))
        .label_font(("sans-serif", 12).into_font().color(&GREY))
        .draw()
        .map_err(text)?;

    let (_, scaled) = runs.last().ok_or("there is no run")?;
    let scales = || usable(&scaled.scale).map(f64::log2);
    let (low, high) = (
        scales().fold(f64::MAX, f64::min),
        scales().fold(0.0, f64::max),
    );
    let range = low.min(high - 1.0) - 1.0..high + 1.0;
    let mut chart = chart_plain(&lower, steps, range)?;
    let points = usable_at(&scaled.scale).map(|(step, scale)| (step, scale.log2()));
    let line = series(points, COLORS[2], SOLID);
    chart.draw_series(line).map_err(text)?;
    root.present().map_err(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn chart<'a, 'b, R>(
    area: &'a Area<'b>,
    label: &str,
    steps: f64,
    range: R,
    format: &dyn Fn(&f64) -> String,
) -> std::result::Result<
    ChartContext<
        'a,
        SVGBackend<'b>,
        Cartesian2d<plotters::coord::types::RangedCoordf64, R::CoordDescType>,
    >,
    String,
>
where
    R: AsRangedCoord<Value = f64>,
    R::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..steps, range)
        .map_err(text)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GREY.mix(0.25))
        .axis_style(GREY.mix(0.6))
        .label_style(("sans-serif", 12).into_font().color(&GREY))
        .x_desc("step")
        .y_desc(label)
        .x_label_formatter(&|step| whole(*step, ""))
        .y_label_formatter(format)
        .draw()
        .map_err(text)?;
    Ok(chart)
}

fn chart_plain<'a, 'b>(
    area: &'a Area<'b>,
    steps: f64,
    range: std::ops::Range<f64>,
) -> std::result::Result<
    ChartContext<
        'a,
        SVGBackend<'b>,
        Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
    >,
    String,
> {
    chart(area, "loss scale", steps, range, &|scale| {
        whole(*scale, "2^")
    })
}

fn series<P: Iterator<Item = (f64, f64)> + Clone>(
    points: P,
    color: RGBColor,
    (dash, gap): Dash,
) -> DashedLineSeries<P, i32> {
    DashedLineSeries::new(points, dash, gap, color.stroke_width(2))
}

fn path<P: Iterator + Clone>(
    points: P,
    color: RGBColor,
    (dash, gap): Dash,
) -> DashedPathElement<P, i32> {
    DashedPathElement::new(points, dash, gap, color.stroke_width(2))
}

/// A logarithmic axis has no place for zero, infinity or NaN.
fn usable_at(values: &[f32]) -> impl Iterator<Item = (f64, f64)> + Clone {
    let values = values.iter().enumerate();
    values
        .map(|(step, value)| (step as f64, f64::from(*value)))
        .filter(|(_, value)| value.is_finite() && *value > 0.0)
}

fn usable(values: &[f32]) -> impl Iterator<Item = f64> {
    usable_at(values).map(|(_, value)| value)
}

/// The label of a tick at a whole number; ticks between have none.
fn whole(value: f64, prefix: &str) -> String {
    match (value - value.round()).abs() < 1e-6 {
        true => format!("{prefix}{value:.0}"),
        false => String::new(),
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}
