//! What a flight shows: the first thing that went wrong, the steps before, advice.

use minijinja::context;
use serde::Serialize;

use super::ring::{Seen, Step};
use crate::{
    audit::power,
    chart::{self, Line, Scale},
    page,
};

/// Lines in a chart: more of them cannot be told apart.
const LINES: usize = 8;

/// The last steps, and what is to be said of them.
#[derive(Serialize)]
pub(super) struct Flight<'a> {
    step: u64,
    /// Why it was written.
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

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("names and numbers")
    }

    pub(super) fn render(&self) -> String {
        let skips: Vec<f64> = (self.steps.iter())
            .filter(|known| known.host.outcome != "stepped")
            .map(|known| known.host.step as f64)
            .collect();
        let draw =
            |title: &str, scale, lines: &[Line]| chart::lines(title, "step", scale, lines, &skips);
        let of_host = |name: &str, value: &dyn Fn(&Step) -> Option<f64>| Line {
            name: name.to_string(),
            color: 0,
            points: (self.steps.iter())
                .filter_map(|known| Some((known.host.step as f64, value(known)?)))
                .collect(),
        };
        let charts: Vec<String> = [
            draw(
                "loss scale",
                Scale::Binary,
                &[of_host("loss scale", &|known| Some(known.host.loss_scale))],
            ),
            draw(
                "largest magnitudes on the way forward",
                Scale::Log,
                &self.magnitudes(|seen| seen.value.max_abs),
            ),
            draw(
                "largest magnitudes of gradients, unscaled",
                Scale::Log,
                &self.magnitudes(|seen| seen.gradient.max_abs),
            ),
            draw(
                "norm of all gradients",
                Scale::Log,
                &[of_host("norm", &|known| known.host.norm)],
            ),
        ]
        .into_iter()
        .flatten()
        .collect();
        let skipped = self
            .steps
            .iter()
            .filter(|known| known.host.outcome == "skipped")
            .count();
        let rows: Vec<_> = (self.steps.iter().rev())
            .map(|known| {
                context! {
                    step => known.host.step,
                    outcome => known.host.outcome,
                    scale => power(known.host.loss_scale),
                    norm => known.host.norm.filter(|_| known.host.outcome != "skipped").map(page::tiny),
                    zeros => known.host.zero_share,
                    overflow => known.host.overflows.first().map(|first| &first.parameter),
                }
            })
            .collect();
        let last = self.steps.last();
        let context = context! {
            title => format!("Flight recorder, step {}", self.step),
            flight => self,
            bad => self.first.is_some() || last.is_some_and(|last| last.host.outcome != "stepped"),
            skipped,
            count => self.steps.len(),
            charts,
            rows,
            last,
        };
        page::render("flight.html", context)
    }

    /// A line for each probe: for the one that failed first, and for those around it.
    fn magnitudes(&self, of: impl Fn(&Seen) -> f64) -> Vec<Line> {
        let Some(last) = self.steps.last() else {
            return Vec::new();
        };
        let culprit = self
            .first
            .as_ref()
            .and_then(|first| last.probes.iter().position(|seen| seen.name == first.probe));
        let begin = culprit.unwrap_or(0).saturating_sub(LINES / 2);
        let begin = begin.min(last.probes.len().saturating_sub(LINES));
        let names = last
            .probes
            .iter()
            .skip(begin)
            .take(LINES)
            .map(|seen| &seen.name);
        let line = |(color, name): (usize, &String)| Line {
            name: name.clone(),
            color,
            points: (self.steps.iter())
                .filter_map(|known| {
                    let seen = known.probes.iter().find(|seen| seen.name == *name)?;
                    Some((known.host.step as f64, of(seen)))
                })
                .collect(),
        };
        names.enumerate().map(line).collect()
    }
}

/// Forward, what is not finite and was finite in clean steps: a mask may be infinite by design. Backward, the last on the way forward.
fn first(steps: &[Step]) -> Option<First> {
    let (last, before) = steps.split_last()?;
    let is_usual = |seen: &Seen| {
        let clean = before
            .iter()
            .filter(|known| known.host.outcome == "stepped");
        let mut same = clean.flat_map(|known| &known.probes);
        same.any(|other| other.name == seen.name && other.value.non_finite > 0)
    };
    let forward = last
        .probes
        .iter()
        .find(|seen| seen.value.non_finite > 0 && !is_usual(seen));
    let backward = || {
        last.probes
            .iter()
            .rev()
            .find(|seen| seen.gradient.non_finite > 0)
    };
    let (seen, way) = match forward {
        Some(seen) => (seen, "forward"),
        None => (backward()?, "backward"),
    };
    let is_forward = way == "forward";
    let side = |seen: &Seen| {
        if is_forward {
            seen.value
        } else {
            seen.gradient
        }
    };
    let earlier = before.iter().rev().flat_map(|known| &known.probes);
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
    let scale = power(last.host.loss_scale);
    let before = |first: &First| match first.max_abs_before {
        Some(max_abs) => format!(
            " (largest magnitude in the last step in which it was finite: {})",
            page::tiny(max_abs)
        ),
        None => String::new(),
    };
    match first {
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
        None if last.host.outcome == "guarded" => {
            let norm = last.host.norm.map(page::tiny).unwrap_or_default();
            format!("All is finite. The guard held the step back, with a gradient norm of {norm}: look at the batch and the learning rate.")
        }
        None if last.host.blamed_loss == Some(false) => {
            "The model's output is infinite or NaN: the loss scale is not the cause. Name the layers by `probed` to see where it begins.".to_string()
        }
        None if last.host.blamed_loss == Some(true) => {
            "The gradient of the loss is infinite or NaN, and the model's output is finite: look at the batch and the loss.".to_string()
        }
        None if last.host.outcome == "skipped" => match last.probes.is_empty() {
            true => format!("Gradients overflow at loss scale {scale}. Nothing is probed: name layers by `probed` to see where it begins."),
            false => format!("Gradients overflow at loss scale {scale}, and all probes are finite: it begins before the first of them on the way forward."),
        },
        None => match steps.iter().filter(|known| known.host.outcome == "skipped").count() {
            0 => format!("Nothing is wrong: none of the last {} steps was skipped.", steps.len()),
            skipped => format!("The last step is right. Of the last {}, {skipped} were skipped.", steps.len()),
        },
    }
}
