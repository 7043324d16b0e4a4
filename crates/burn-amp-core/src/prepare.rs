//! A model and its optimizer made ready for half precision.

use burn::module::Module;

use crate::{border::MixedPrecision, optimizer::ScaledOptimizer, update::ModuleOptim};

impl MixedPrecision {
    /// A model that computes in this precision inside [`autocast`](Self::autocast), and the optimizer that steps it.
    ///
    /// `model` is any f32 module, also a tuple, an array or a `Vec` of them that one optimizer trains. It becomes what [`attach`](Self::attach)
    /// makes of it. `optim` is Burn's `ModuleOptimizer`, a `Fused` one, or any other [`ModuleOptim`]. It is wrapped as by
    /// [`ScaledOptimizer::new`]: each step tests the gradients, and steps or skips. Does not wait for the device.
    ///
    /// ```
    /// use burn::{nn::LinearConfig, optim::AdamConfig, tensor::Device};
    /// use burn_amp::MixedPrecision;
    ///
    /// let device = Device::flex().autodiff();
    /// let amp = MixedPrecision::f16();
    /// let (model, optim) = amp.prepare(LinearConfig::new(4, 2).init(&device), AdamConfig::new().init());
    /// # let _ = (model, optim);
    /// ```
    ///
    /// # Panics
    ///
    /// As [`attach`](Self::attach).
    pub fn prepare<M: Module, O: ModuleOptim>(
        &self,
        model: M,
        optim: O,
    ) -> (M, ScaledOptimizer<O>) {
        (self.attach(model), ScaledOptimizer::new(optim, self))
    }

    /// A model whose parameters are read in this precision inside [`autocast`](Self::autocast), and in f32 outside.
    ///
    /// For a model without an optimizer, as in inference, or with one that is made elsewhere. Parameters, records and optimizers stay f32.
    /// A model that has another `MixedPrecision` keeps that: call Burn's `materialize()` first, which takes it away.
    /// Does not wait for the device. It is Burn's `model.apply_reparameterization(amp.clone())`: a `MixedPrecision` is a
    /// [`Reparameterizer`](burn::module::Reparameterizer).
    ///
    /// # Panics
    ///
    /// If a device of the model cannot compute in this precision. [`check_device`](Self::check_device) returns that as an error.
    pub fn attach<M: Module>(&self, model: M) -> M {
        model.apply_reparameterization(self.clone())
    }
}
