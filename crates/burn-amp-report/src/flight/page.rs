//! What a flight shows: the first thing that went wrong, the steps before, advice.

use minijinja::context;
use serde::Serialize;

use super::step::{Host, Measures, Probed, Step};
use crate::chart::{self, Line, Scale};
use crate::page;

/// Lines in a chart: more of them cannot be told apart.
const LINES: usize = 8;

/// The last steps, and what is to be said of them.
#[derive(Serialize)]
pub(super) struct Flight<'a> {
    step: u64,
    /// The reason for which it was written.
    why: String,
    first: Option<First>,
    advice: String,
    /// The oldest first.
    steps: &'a [Step],
}

/// The first probe that was not finite in the last step.
#[derive(Clone, Debug, Serialize)]
struct First {
    probe: String,
    /// "forward" or "backward".
    way: &'static str,
    /// Values that are infinite or NaN there.
    non_finite: u64,
    /// The largest magnitude there in the step before; none if it was not passed.
    max_abs_before: Option<f64>,
}

impl<'a> Flight<'a> {
    pub(super) fn of(step: u64, why: &str, steps: &'a [Step]) -> Self {
        let first = first(steps);
        Self {
            step,
            why: why.to_string(),
            advice: advice(steps, first.as_ref()),
            first,
            steps,
        }
    }

    pub(super) fn render(&self) -> String {
        let taken = self.steps.iter().filter(|step| !step.is("stepped"));
        let skips: Vec<f64> = taken.map(|step| step.host.step as f64).collect();
        let of_host = |name: &str, value: fn(&Host) -> Option<f64>| {
            vec![self.line(name, 0, |step| value(&step.host))]
        };
        let chart = |title, scale, lines: &[Line]| chart::lines(title, "", scale, lines, &skips);
        let log = |title, lines: &[Line]| chart(title, Scale::Log, lines);
        let scale = of_host("loss scale", |host| host.loss_scale);
        let norm = of_host("norm", |host| host.norm);
        let forward = self.magnitudes(|seen| seen.value.max_abs);
        let back = self.magnitudes(|seen| seen.gradient.max_abs);
        let charts = [
            chart("loss scale", Scale::Binary, &scale),
            log("largest magnitudes on the way forward", &forward),
            log("largest magnitudes of gradients, unscaled", &back),
            log("norm of all gradients", &norm),
        ];
        let last = self.steps.last();
        let context = context! {
            title => format!("Flight recorder, step {}", self.step),
            flight => self,
            bad => self.first.is_some() || last.is_some_and(|last| !last.is("stepped")),
            skipped => count_skipped(self.steps),
            charts => charts.into_iter().flatten().collect::<Vec<_>>(),
            last,
        };
        page::render("flight.html", context)
    }

    fn line(&self, name: &str, color: usize, value: impl Fn(&Step) -> Option<f64>) -> Line {
        let points = self.steps.iter();
        let points = points.filter_map(|step| Some((step.host.step as f64, value(step)?)));
        Line {
            name: name.to_string(),
            color,
            is_dashed: false,
            points: points.collect(),
        }
    }

    /// A line for each probe: for the one that failed first, and for those around it.
    fn magnitudes(&self, of: fn(&Probed) -> f64) -> Vec<Line> {
        let probes = self.steps.last().map_or(&[][..], |last| &last.probes);
        let failed = |first: &First| probes.iter().position(|seen| seen.name == first.probe);
        let culprit = self.first.as_ref().and_then(failed).unwrap_or(0);
        let begin = culprit.saturating_sub(LINES / 2);
        let begin = begin.min(probes.len().saturating_sub(LINES));
        let names = probes.iter().skip(begin).take(LINES).map(|seen| &seen.name);
        let line = |(color, name): (usize, &String)| {
            let same = |step: &Step| step.probes.iter().find(|seen| seen.name == *name).map(of);
            self.line(name, color, same)
        };
        names.enumerate().map(line).collect()
    }
}

fn count_skipped(steps: &[Step]) -> usize {
    steps.iter().filter(|step| step.host.is_skipped()).count()
}

/// Forward, what is not finite and was finite in finite steps: a mask may be infinite by design. Backward, the last on the way forward.
fn first(steps: &[Step]) -> Option<First> {
    let (last, before) = steps.split_last()?;
    let is_usual = |seen: &Probed| {
        let finite = before.iter().filter(|step| step.is("stepped"));
        let mut same = finite.flat_map(|step| &step.probes);
        same.any(|other| other.name == seen.name && other.value.non_finite > 0)
    };
    type Side = fn(&Probed) -> Measures;
    let value: Side = |seen| seen.value;
    let gradient: Side = |seen| seen.gradient;
    let forward = |seen: &&Probed| seen.value.non_finite > 0 && !is_usual(seen);
    let (seen, way, side) = match last.probes.iter().find(forward) {
        Some(seen) => (seen, "forward", value),
        None => {
            let mut back = last.probes.iter().rev();
            let seen = back.find(|seen| seen.gradient.non_finite > 0)?;
            (seen, "backward", gradient)
        }
    };
    let earlier = before.iter().rev().flat_map(|step| &step.probes);
    let mut earlier =
        earlier.filter(|other| other.name == seen.name && side(other).non_finite == 0);
    Some(First {
        probe: seen.name.clone(),
        way,
        non_finite: side(seen).non_finite,
        max_abs_before: earlier.next().map(|other| side(other).max_abs),
    })
}

fn advice(steps: &[Step], first: Option<&First>) -> String {
    let Some(last) = steps.last() else {
        return "No step was made yet.".to_string();
    };
    let failed = last.host.error.iter();
    let failed = failed.map(|error| format!("The last step failed: {error}. "));
    let scale = last.host.loss_scale.map(page::power).unwrap_or_default();
    let before = |first: &First| match first.max_abs_before.map(page::tiny) {
        Some(size) => format!(" (largest magnitude in the last step where it was finite: {size})"),
        None => String::new(),
    };
    failed.collect::<String>() + &match first {
        Some(first) if first.way == "forward" => format!(
            "`{}` is not finite on the way forward{}: no loss scale helps. Look at the learning rate and the batch; if values are large \
             by design, run the layer `in_f32`. `audit` tries which layers need it.",
            first.probe,
            before(first)
        ),
        Some(first) if last.host.blamed_loss.is_some() => format!(
            "The gradient that comes from the loss is not finite, first seen at `{}`: the loss scale is not the cause. Look at the batch and at \
             the loss, for a logarithm of zero or a division by zero.",
            first.probe
        ),
        Some(first) => format!(
            "The gradient of `{}` is the first that is not finite on the way back{}, at loss scale {scale}. The scale is lowered by itself; \
             if it is skipped at every scale, run that layer `in_f32`, or give it a factor of its own by `rescaled`.",
            first.probe,
            before(first)
        ),
        None if last.is("guarded") => {
            let norm = last.host.norm.map(page::tiny).unwrap_or_default();
            format!("All is finite. A hook (a guard, as a rule) rejected the step, with a gradient norm of {norm}: look at the batch and the learning rate.")
        }
        None if last.host.blamed_loss == Some(false) => {
            "The model's output is infinite or NaN: the loss scale is not the cause. Name the layers by `probed` to see where it begins.".to_string()
        }
        None if last.host.blamed_loss == Some(true) => {
            "The gradient of the loss is infinite or NaN, and the model's output is finite: look at the batch and the loss.".to_string()
        }
        None if last.is("skipped") => match last.probes.is_empty() {
            true => format!("Gradients overflow at loss scale {scale}. Nothing is probed: name layers by `probed` to see where it begins."),
            false => format!("Gradients overflow at loss scale {scale}, and all probes are finite: it begins before the first of them on the way forward."),
        },
        None if last.host.error.is_some() => "No probe shows a cause.".to_string(),
        None => match count_skipped(steps) {
            0 => format!("Nothing is wrong: none of the last {} steps was skipped.", steps.len()),
            skipped => format!("The last step is right. Of the last {}, {skipped} were skipped.", steps.len()),
        },
    }
}
