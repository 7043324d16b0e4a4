//! The audit: one loss in several precisions, and how they differ.

mod bench;
mod compare;
mod evidence;
mod minimal;
mod reference;
mod show;
mod table;
mod trace;
mod verdict;

use burn::module::Module;
use burn::tensor::{FloatDType, Tensor};
use burn_amp_core::{MixedPrecision, internal::observe};
// For the documentation.
#[cfg(doc)]
use burn_amp_core::AmpError;
use minijinja::context;
use serde::Serialize;
use std::{collections::BTreeSet, path::Path};

use crate::page::{self, power};
use crate::{chart, error::ReportError, file, place::dtype_name};
use bench::Bench;
use compare::Figures;
pub(crate) use trace::Trace;
use trace::Visit;
pub use verdict::Verdict;

/// Runs one loss and its backward pass in f32, in the dtype of `amp` (at 1/4, 1 and 4 times the loss scale), and in the other 16-bit dtype if the
/// device has it; compares them, and says what is wrong. Of an `amp` in f32, f16 is judged.
///
/// `loss` computes a loss as the training loop does, on a typical batch, with [`autocast`](MixedPrecision::autocast) of `amp` or a clone of it
/// inside (or in the model, for a `Learner`). It runs five times with the same weights; the scales are the present one, and those two binades
/// below and above it. Where something is wrong it runs more often: at another scale, and with layers in f32, to find
/// the smallest set of those that are [`probed`](crate::probed()) that fixes it.
///
/// It leaves no trace: running statistics are restored, and neither loss scale nor counters move. Seeds the device's random numbers before each run. Waits for
/// the device. While it runs, it holds the gradients of two runs more, and what passes the probes.
///
/// # Errors
///
/// [`ReportError::Amp`]: the device lacks the half precision ([`AmpError::UnsupportedDType`]), and what
/// [`check`](MixedPrecision::check) refuses before there are gradients: [`AmpError::NoScope`], [`AmpError::Border`],
/// [`AmpError::NoGradients`] and those of `try_autocast`.
///
/// # Panics
///
/// Where `loss` panics for another reason.
pub fn audit<M: Module, const D: usize>(
    model: &M,
    amp: &MixedPrecision,
    loss: impl FnMut(&M) -> Tensor<D>,
) -> Result<Audit, ReportError> {
    // The first is judged: that of the program.
    let mut formats = [FloatDType::F16, FloatDType::BF16];
    formats.sort_by_key(|dtype| *dtype != amp.dtype());
    observe::check_devices(amp, formats[0], model)?;
    let mut bench = Bench {
        model,
        amp,
        formats,
        loss,
        losses_computed: 0,
        note: None,
    };
    Ok(bench.audit()?)
}

/// The findings of an [`audit`]. `Display` is a text table.
#[derive(Clone, Debug, Serialize)]
pub struct Audit {
    verdict: Verdict,
    /// The verdict in words.
    advice: String,
    device: String,
    /// A remark on the verdict, if there is one.
    note: Option<&'static str>,
    /// The present loss scale.
    loss_scale: f64,
    /// The number of times that the loss was computed.
    losses_computed: u32,
    runs: Vec<Run>,
    parameters: Vec<Parameter>,
    layers: Vec<Layer>,
    /// Gradient values in f32 by exponent, times the loss scale.
    exponents: Vec<(i32, u64)>,
    formats: Vec<Format>,
    #[serde(skip)]
    reproduction: Option<Reproduction>,
}

/// One of the runs that are compared.
#[derive(Clone, Debug, Serialize)]
struct Run {
    name: String,
    loss_scale: f64,
    loss: f64,
    /// Set where no gradient is off.
    is_right: bool,
}

#[derive(Clone, Debug, Serialize)]
struct Parameter {
    pub path: String,
    elements: u64,
    /// The norm in f32; none where a value is infinite or NaN.
    norm: Option<f64>,
    max_abs: f64,
    zeros: u64,
    /// Set where it is read in half precision.
    is_half: bool,
    /// The figures of each run after the first.
    figures: Vec<Figures>,
}

#[derive(Clone, Debug, Serialize)]
struct Layer {
    name: String,
    /// The dtype in half precision.
    dtype: String,
    value: Passed,
    gradient: Option<Passed>,
}

/// The tensors that pass a probe.
#[derive(Clone, Debug, Serialize)]
struct Passed {
    /// The norm; none where a value is infinite or NaN.
    norm: Option<f64>,
    max_abs: f64,
    figures: Vec<Figures>,
}

/// Another format, and the values that it would lose.
#[derive(Clone, Debug, Serialize)]
struct Format {
    name: String,
    /// The share of the values that are not zero, from 0 to 1.
    lost: f64,
    /// Set where it was tried, and not only counted by exponents.
    is_measured: bool,
}

/// Values of a gradient that is off, for those who maintain the backend.
#[derive(Clone, Debug, Serialize)]
struct Reproduction {
    device: String,
    loss_scale: f64,
    tensors: Vec<Dump>,
}

#[derive(Clone, Debug, Serialize)]
struct Dump {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    /// The first [`DUMPED`] at most; in half precision without the loss scale. Not a number where there is none.
    values: Vec<Option<f32>>,
    in_f32: Vec<Option<f32>>,
}

const DUMPED: usize = 4096;

impl Audit {
    /// The verdict: what is wrong, and what to do.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// All figures, as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("figures are numbers, names and lists of them")
    }

    /// Writes `audit.html` (one page, without network), `audit.json`, and for [`Verdict::Backend`] `reproduce.json`: the gradients that are
    /// off, values beside those of f32; one of another audit is removed. Makes the folder. Files are written beside and renamed.
    ///
    /// # Errors
    ///
    /// [`ReportError::File`].
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<(), ReportError> {
        let folder = folder.as_ref();
        file::create_folder(folder)?;
        let path = folder.join("reproduce.json");
        match self.reproduction.as_ref().map(serde_json::to_string) {
            Some(text) => file::write(&path, &text.expect("names and numbers"))?,
            // That of another audit.
            None => file::remove(&path)?,
        }
        file::write(&folder.join("audit.json"), &self.to_json())?;
        let has_counts = self.exponents.iter().any(|(_, count)| *count > 0);
        let context = context! {
            title => "Audit of one step",
            audit => self,
            chart => has_counts.then(|| chart::exponents(&self.exponents)),
        };
        file::write(
            &folder.join("audit.html"),
            &page::render("audit.html", context),
        )
    }
}

/// One run, with its tensors.
struct Trial {
    dtype: FloatDType,
    loss_scale: f64,
    loss: f64,
    gradients: Vec<observe::Flat>,
    visits: Vec<Visit>,
    read: BTreeSet<String>,
    max_abs: f64,
    is_loss_inside: bool,
}

/// A run beside that in f32.
struct Compared {
    trial: Trial,
    figures: Vec<Figures>,
}

impl Compared {
    fn overflows(&self) -> bool {
        self.figures.iter().any(|figures| figures.non_finite > 0)
    }
}

impl Trial {
    fn name(&self) -> String {
        let name = dtype_name(self.dtype.into());
        match self.dtype != FloatDType::F16 && self.loss_scale == 1.0 {
            true => name,
            false => format!("{name} at {}", power(self.loss_scale)),
        }
    }
}
