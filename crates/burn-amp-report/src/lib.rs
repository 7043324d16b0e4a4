//! Why did my half-precision run fail? The answer of one call, of the last steps before the failure, and of a whole run.
//!
//! ```
//! use burn::{nn::LinearConfig, tensor::{Device, Distribution, Tensor}};
//! use burn_amp::MixedPrecision;
//! use burn_amp_report::{Verdict, audit};
//!
//! let device = Device::flex().autodiff();
//! let amp = MixedPrecision::f16();
//! let model = amp.attach(LinearConfig::new(4, 2).init(&device));
//! let batch = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//!
//! let audit = audit(&model, &amp, |m| amp.autocast(batch.clone(), |x| m.forward(x)).square().mean())?;
//! assert_eq!(audit.verdict(), &Verdict::Fine);
//! println!("{audit}"); // a table; `audit.save(folder)` writes a page and JSON
//! # Ok::<(), burn_amp_report::ReportError>(())
//! ```
//!
//! - [`audit`]: the same weights and batch in f32, f16 and bf16, at three loss scales in the one that the program uses. A [`Verdict`] in words.
//! - [`FlightRecorder`]: the last 21 steps, written down when something goes wrong.
//! - [`report`], and the command `burn-amp-report RUN_FOLDER`: a page of a whole run, or of several beside each other.
//! - [`probe`] and [`probed`]: name tensors and layers of a model, so that audit and recorder can say where something happens.

mod audit;
mod chart;
mod error;
mod file;
mod flight;
mod page;
mod place;
mod probe;
mod run;

pub use audit::{Audit, Verdict, audit};
pub use error::ReportError;
pub use flight::FlightRecorder;
pub use probe::{probe, probed};
pub use run::report;
