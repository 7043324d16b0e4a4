use burn::{tensor::Tensor, train::ItemLazy};

/// What a model has to say about training: the loss of a batch, and the item for the metrics.
///
/// Takes the place of Burn's [`TrainStep`](burn::train::TrainStep), which [`Scaled`](super::Scaled) implements with it: the
/// backward pass is the wrapper's, because the loss must be scaled before it.
///
/// ```
/// use burn::{
///     module::Module, nn::{Linear, loss::MseLoss, loss::Reduction}, tensor::Tensor, train::RegressionOutput,
/// };
/// use burn_amp::{LossStep, MixedPrecision};
///
/// #[derive(Module, Debug)]
/// struct Regressor {
///     linear: Linear,
/// }
///
/// impl LossStep for Regressor {
///     type Input = (Tensor<2>, Tensor<2>);
///     type Output = RegressionOutput;
///
///     fn loss_step(&self, (inputs, targets): Self::Input) -> (Tensor<1>, RegressionOutput) {
///         let output = MixedPrecision::f16().autocast(inputs, |x| self.linear.forward(x));
///         let loss = MseLoss::new().forward(output.clone(), targets.clone(), Reduction::Mean);
///         (loss.clone(), RegressionOutput::new(loss, output, targets))
///     }
/// }
/// ```
pub trait LossStep {
    /// A batch, as the training data loader gives it.
    type Input: Send + 'static;
    /// What the metrics of the training split read.
    type Output: ItemLazy + 'static;

    /// Computes the loss of a batch, unscaled, and the item for the metrics.
    ///
    /// The loss has shape `[1]`, on the model's autodiff device: the backward pass of one without autodiff panics. It is best
    /// a mean in f32: an f16 loss cannot pass a gradient of 65536 backwards. May wait for the device, at the price
    /// of a slower step; nothing here needs it to.
    fn loss_step(&self, batch: Self::Input) -> (Tensor<1>, Self::Output);
}
