//! The runs of an audit, and what follows from them.

use burn::tensor::{FloatDType, Tensor};
use burn::{module::Module, optim::GradientsParams};
use burn_amp_core::internal::observe::{self, DryRun, measure};
use burn_amp_core::{AmpError, BorderFault, MixedPrecision};
use std::sync::Arc;

use super::compare::Figures;
use super::evidence::{explain, of_forward, of_range};
use super::reference::{Noise, Reference};
use super::show::{passed, reproduction, value};
use super::{Audit, Compared, Run, Trace, Trial, Verdict, minimal::minimal, trace::Visit};

const BINADES: f64 = 4.0;
const SEED: u64 = 0x5ca1e;

pub(super) struct Bench<'a, M, F> {
    pub(super) model: &'a M,
    pub(super) amp: &'a MixedPrecision,
    /// The half precision that is judged, and the other one.
    pub(super) formats: [FloatDType; 2],
    pub(super) loss: F,
    pub(super) losses_computed: u32,
    /// A remark on the result, if there is one.
    pub(super) note: Option<&'static str>,
}

impl<M: Module, F: FnMut(&M) -> Tensor<D>, const D: usize> Bench<'_, M, F> {
    /// One loss and its gradients, with these layers in f32.
    fn run(
        &mut self,
        seed: u64,
        dtype: FloatDType,
        loss_scale: f64,
        trace: Trace,
        in_f32: &[String],
    ) -> Result<Trial, AmpError> {
        let trace = Arc::new(trace);
        let dry = Arc::new(DryRun {
            dtype: Some(dtype),
            seed: Some(seed),
            // From those in f32 the scale is computed.
            is_measured: dtype == FloatDType::F32,
            in_f32: in_f32.iter().cloned().collect(),
            observer: Some(trace.clone()),
            ..DryRun::at(self.amp, loss_scale)
        });
        let loss = observe::dry_loss(&dry, self.model, &mut self.loss);
        let is_refused = matches!(
            loss,
            Err(AmpError::Border {
                what: BorderFault::Loss,
                ..
            })
        );
        self.losses_computed += u32::from(!is_refused);
        let loss = loss?;
        let grads = loss.backward();
        let visits = trace.take(&grads);
        let grads = GradientsParams::from_grads(grads, self.model);
        let mut notes = dry.take();
        Ok(Trial {
            dtype,
            loss_scale,
            loss: loss.inner().into_data().iter::<f64>().sum(),
            gradients: observe::values(self.model, Some(&grads)),
            visits,
            read: std::mem::take(&mut notes.read),
            is_loss_inside: notes.is_loss_inside,
            max_abs: notes.measured().0.unwrap_or_default(),
        })
    }

    pub(super) fn audit(&mut self) -> Result<Audit, AmpError> {
        let [half, other] = self.formats;
        let present = match self.amp.dtype() {
            dtype if dtype == half => f64::from(self.amp.loss_scale()),
            _ => 65536.0,
        };
        let in_f32 = self.run(SEED, FloatDType::F32, 1.0, Trace::of_all(), &[])?;
        let mut reference = Reference::new(in_f32)?;
        let mut specs = vec![
            (half, present / BINADES),
            (half, present),
            (half, present * BINADES),
        ];
        if observe::check_devices(self.amp, other, self.model).is_ok() {
            let ideal = reference.ideal_scale();
            let ideal = ideal.filter(|_| other == FloatDType::F16);
            specs.push((other, ideal.unwrap_or(1.0)));
        }
        let mut runs = Vec::new();
        for (dtype, scale) in specs {
            match self.run(SEED, dtype, scale, Trace::of_all(), &[]) {
                Err(AmpError::Border {
                    what: BorderFault::Loss,
                    ..
                }) => {
                    return Ok(self.judged(&reference, present, Verdict::LossInHalf));
                }
                trial => runs.push(reference.compare(trial?)?),
            }
        }
        let verdict = match reference.is_finite() {
            false => self.not_finite(&reference)?,
            true => {
                let right = reference.is_right(&runs[1], None);
                if !right && runs[1].trial.loss.is_finite() {
                    self.look_for_noise(&mut reference)?;
                }
                self.judge(&reference, &runs, present)?
            }
        };
        let mut audit = self.judged(&reference, present, verdict);
        if matches!(&audit.verdict, Verdict::Backend { .. }) {
            audit.reproduction = Some(reproduction(&reference, &runs[1], &audit.device)?);
        }
        audit.show(&reference, &runs)?;
        Ok(audit)
    }

    /// An audit that shows nothing yet but the run in f32.
    fn judged(&self, reference: &Reference, present: f64, verdict: Verdict) -> Audit {
        let device = self.model.devices().into_iter().next();
        Audit {
            advice: match self.note {
                Some(note) => format!("{verdict} {note}"),
                None => verdict.to_string(),
            },
            verdict,
            device: device.map_or("none".to_string(), |device| format!("{:?}", device.inner())),
            note: self.note,
            loss_scale: present,
            losses_computed: self.losses_computed,
            runs: vec![Run {
                name: "f32".to_string(),
                loss_scale: 1.0,
                loss: reference.trial.loss,
                is_right: reference.is_finite(),
            }],
            parameters: Vec::new(),
            layers: Vec::new(),
            exponents: Vec::new(),
            formats: Vec::new(),
            reproduction: None,
        }
    }

    /// Devices draw other random numbers in f16 from one seed, so with dropout the runs differ.
    fn look_for_noise(&mut self, reference: &mut Reference) -> Result<(), AmpError> {
        let other = self.run(SEED + 1, FloatDType::F32, 1.0, Trace::of_all(), &[])?;
        let other = reference.compare(other)?;
        let error = |(index, figures): (usize, Figures)| Some((index, figures.error?));
        let values = passed(reference, &other, value)?.into_iter();
        let gradients = other.figures.iter().copied().enumerate();
        reference.noise = Noise {
            loss: (other.trial.loss - reference.trial.loss).abs(),
            gradients: gradients.filter_map(error).collect(),
            values: values.filter_map(error).collect(),
        };
        let mut errors = reference.noise.gradients.values();
        if errors.any(|error| *error > 1e-3) {
            self.note = Some(
                "The loss is random, as with dropout: differences are measured against those of two runs in f32.",
            );
        }
        Ok(())
    }

    fn not_finite(&self, reference: &Reference) -> Result<Verdict, AmpError> {
        let visits = reference.trial.visits.iter();
        let visits = visits.filter(|visit| !visit.is_output);
        let visits = visits.filter_map(|visit| Some((&visit.name, visit.value.as_ref()?)));
        let parameters = observe::values(self.model, None);
        let parameters = parameters.iter().map(|found| (&found.path, &found.values));
        Ok(Verdict::NotFinite {
            parameter: first_not_finite(parameters)?,
            at: first_not_finite(visits)?,
        })
    }

    fn judge(
        &mut self,
        reference: &Reference,
        runs: &[Compared],
        present: f64,
    ) -> Result<Verdict, AmpError> {
        let [low, now, high] = [&runs[0], &runs[1], &runs[2]];
        let leaking = leaking(low, now, high);
        if !leaking.is_empty() {
            return Ok(Verdict::Leak {
                parameters: reference.paths(&leaking),
            });
        }
        let off = reference.off(now, Some(high));
        if off.is_empty() && !reference.is_forward_off(now) {
            self.note = self.note.or(of_forward(reference, now)?);
            return Ok(dead(reference));
        }
        let overflows = now.overflows();
        if now.trial.is_loss_inside && overflows {
            return Ok(Verdict::LossInHalf);
        }
        if overflows && observe::is_dynamic(self.amp) && reference.is_right(low, None) {
            self.note = Some(
                "At the present loss scale something overflows, and two binades below nothing does: a skipped step or two lower the scale.",
            );
            return Ok(Verdict::Fine);
        }
        let parameters = reference.paths(&off);
        let mut last = None;
        if !reference.is_forward_off(now) {
            let tried = &*last.insert(self.look_for_scale(reference, present)?);
            let others = [tried, high, low].into_iter();
            let mut others = others.filter(|run| run.trial.loss_scale != present);
            if let Some(right) = others.find(|run| reference.is_right(run, None)) {
                let healing = right.trial.loss_scale;
                let is_above = healing < present;
                self.note = self.note.or(of_forward(reference, now)?);
                return Ok(of_range(is_above, Some(healing), parameters, Vec::new()));
            }
        }
        let best = (last.as_ref()).map_or(present, |tried| tried.trial.loss_scale);
        let in_f32 = self.layers_for_f32(reference, &now.trial.visits, &[present, best])?;
        let (verdict, note) = explain(reference, runs, last.as_ref(), parameters, in_f32)?;
        self.note = self.note.or(note);
        Ok(verdict)
    }

    /// The last run of a search for another scale at which all is right: it is, if one was found.
    fn look_for_scale(
        &mut self,
        reference: &Reference,
        present: f64,
    ) -> Result<Compared, AmpError> {
        let mut scale = reference.ideal_scale().unwrap_or(present);
        let mut tries = 0;
        loop {
            tries += 1;
            let tried = self.run(SEED, self.formats[0], scale, Trace::default(), &[])?;
            let tried = reference.compare(tried)?;
            if tries == 4 || !tried.overflows() {
                return Ok(tried);
            }
            scale /= 256.0;
        }
    }

    /// The smallest set of layers that fixes it in f32, at one of the scales.
    fn layers_for_f32(
        &mut self,
        reference: &Reference,
        visits: &[Visit],
        scales: &[f64],
    ) -> Result<Vec<String>, AmpError> {
        let mut layers: Vec<String> = Vec::new();
        for visit in visits.iter().filter(|visit| visit.is_layer) {
            if !layers.contains(&visit.layer) {
                layers.push(visit.layer.clone());
            }
        }
        if layers.is_empty() {
            return Ok(layers);
        }
        for scale in scales {
            let mut fixes = |layers: &[String]| {
                match self.run(SEED, self.formats[0], *scale, Trace::default(), layers) {
                    Ok(trial) => Ok(reference.is_right(&reference.compare(trial)?, None)),
                    // A tensor that the layer captures is f16.
                    Err(AmpError::Border {
                        what: BorderFault::Clash { .. },
                        ..
                    }) => Ok(false),
                    Err(error) => Err(error),
                }
            };
            if fixes(&layers)? {
                return minimal(&layers, &mut fixes);
            }
        }
        Ok(Vec::new())
    }
}

/// The name of the first tensor that is not finite.
fn first_not_finite<'a>(
    tensors: impl Iterator<Item = (&'a String, &'a Tensor<1>)>,
) -> Result<Option<String>, AmpError> {
    let (names, tensors): (Vec<_>, Vec<_>) = tensors.unzip();
    let statuses = measure(tensors.into_iter())?;
    let first = statuses.iter().position(|status| status.non_finite > 0);
    Ok(first.map(|first| names[first].clone()))
}

/// Gradients that are zero in f32, where all are right.
fn dead(reference: &Reference) -> Verdict {
    let zero = |index: &usize| reference.statuses[*index].max_abs == 0.0;
    let dead: Vec<_> = (0..reference.statuses.len()).filter(zero).collect();
    match dead.is_empty() {
        true => Verdict::Fine,
        false => Verdict::Dead {
            parameters: reference.paths(&dead),
        },
    }
}

/// The gradients that grow with the scale.
fn leaking(low: &Compared, now: &Compared, high: &Compared) -> Vec<usize> {
    let grows = |index: &usize| {
        let ratio = |run: &Compared| run.figures[*index].norm_ratio;
        let (Some(low), Some(now), Some(high)) = (ratio(low), ratio(now), ratio(high)) else {
            return false;
        };
        let step = |less: f64, more: f64| (more / less - BINADES).abs() < 0.2;
        let falls = |less: f64, more: f64| (less / more - BINADES).abs() < 0.2;
        (now > 16.0 && step(low, now) && step(now, high))
            || (now < 1.0 / 16.0 && falls(low, now) && falls(now, high))
    };
    (0..now.figures.len()).filter(grows).collect()
}
