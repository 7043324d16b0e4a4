use burn::tensor::{DType, FloatDType, Tensor};
use std::cell::RefCell;

/// The factor that one call of [`GradScaler::scale`](super::GradScaler::scale) multiplies losses by.
///
/// Users meet it only when they implement [`ScaleLoss`] for a structure of their own.
#[derive(Debug)]
pub struct LossFactor {
    scale: f32,
    seen: RefCell<Vec<Tensor<1>>>,
}

impl LossFactor {
    pub(super) fn new(scale: f32) -> Self {
        Self {
            scale,
            seen: RefCell::default(),
        }
    }

    /// Multiplies one loss, of any rank, in f32 (in f64 if it is f64). Does not wait for the device.
    pub fn apply<const D: usize>(&self, loss: Tensor<D>) -> Tensor<D> {
        let elements = loss.shape().num_elements();
        // `reshape` reads a 0 as "keep this dimension".
        if elements > 0 {
            let seen = loss.clone().inner().reshape([elements]);
            self.seen.borrow_mut().push(seen);
        }
        // 65536 is infinite in f16, and so would be most products with it.
        let loss = match loss.dtype() {
            DType::F64 => loss,
            _ => loss.cast(FloatDType::F32),
        };
        loss.mul_scalar(self.scale)
    }

    pub(super) fn into_seen(self) -> Vec<Tensor<1>> {
        self.seen.into_inner()
    }
}

/// A loss, or a structure of losses, that [`GradScaler::scale`](super::GradScaler::scale) can multiply.
///
/// Implemented for tensors of any rank and for `Option`, `Vec`, arrays and tuples of them. A structure of one's
/// own passes each loss to [`LossFactor::apply`]:
///
/// ```
/// use burn::tensor::Tensor;
/// use burn_amp::{LossFactor, ScaleLoss};
///
/// struct Losses {
///     reconstruction: Tensor<1>,
///     regularization: Tensor<1>,
/// }
///
/// impl ScaleLoss for Losses {
///     fn scale_loss(self, factor: &LossFactor) -> Self {
///         Self {
///             reconstruction: factor.apply(self.reconstruction),
///             regularization: factor.apply(self.regularization),
///         }
///     }
/// }
/// ```
pub trait ScaleLoss {
    /// Returns the same structure with every loss multiplied by `factor`.
    fn scale_loss(self, factor: &LossFactor) -> Self;
}

impl<const D: usize> ScaleLoss for Tensor<D> {
    fn scale_loss(self, factor: &LossFactor) -> Self {
        factor.apply(self)
    }
}

impl<L: ScaleLoss> ScaleLoss for Option<L> {
    fn scale_loss(self, factor: &LossFactor) -> Self {
        self.map(|loss| loss.scale_loss(factor))
    }
}

impl<L: ScaleLoss> ScaleLoss for Vec<L> {
    fn scale_loss(self, factor: &LossFactor) -> Self {
        self.into_iter()
            .map(|loss| loss.scale_loss(factor))
            .collect()
    }
}

impl<L: ScaleLoss, const N: usize> ScaleLoss for [L; N] {
    fn scale_loss(self, factor: &LossFactor) -> Self {
        self.map(|loss| loss.scale_loss(factor))
    }
}

macro_rules! scale_loss_tuple {
    ($($name:ident),+) => {
        impl<$($name: ScaleLoss),+> ScaleLoss for ($($name,)+) {
            #[allow(non_snake_case)]
            fn scale_loss(self, factor: &LossFactor) -> Self {
                let ($($name,)+) = self;
                ($($name.scale_loss(factor),)+)
            }
        }
    };
}

scale_loss_tuple!(A);
scale_loss_tuple!(A, B);
scale_loss_tuple!(A, B, C);
scale_loss_tuple!(A, B, C, E);
scale_loss_tuple!(A, B, C, E, F);
scale_loss_tuple!(A, B, C, E, F, G);
