//! The tensors of a batch: of what kind they are, and their copies where a recorded step reads them.

use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Bool, DType, Device, Int, Shape, Tensor};
use burn_amp_core::walk_arrays_and_tuples;
use burn_amp_kernels::BufferAddress;
use std::vec;

/// The kind of a batch, for which a step is recorded: its tensors, and the lengths of its lists, in the order in which they come.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Kind {
    tensors: Vec<(Shape, DType, Device)>,
    lists: Vec<usize>,
}

/// Goes from one tensor of a batch to the next: says of what kind they are, and copies them if it is to.
#[derive(Default)]
pub struct Walk {
    kind: Kind,
    /// Set if one of them requires gradients.
    is_tracked: bool,
    /// The places of copies, one after the other, and new memory if there are none left. None where it copies nothing.
    places: Option<vec::IntoIter<BridgeTensor>>,
    copied: Vec<BridgeTensor>,
}

/// The kind of a batch, and whether one of its tensors requires gradients.
pub(super) fn kind_of<B: CaptureInput>(batch: &B) -> (Kind, bool) {
    let mut walk = Walk::default();
    batch.clone().walked(&mut walk);
    (walk.kind, walk.is_tracked)
}

/// The batch in memory that nobody else holds, and its tensors: in the places of those of another batch, if there are any.
pub(super) fn copied_to<B: CaptureInput>(
    places: Vec<BridgeTensor>,
    batch: B,
) -> (B, Vec<BridgeTensor>) {
    let mut walk = Walk {
        places: Some(places.into_iter()),
        ..Walk::default()
    };
    let batch = batch.walked(&mut walk);
    (batch, walk.copied)
}

pub(super) fn addresses_of(tensors: &[BridgeTensor]) -> Vec<Option<BufferAddress>> {
    let address = |tensor: &BridgeTensor| BufferAddress::of(tensor.clone().into_parts().1);
    tensors.iter().map(address).collect()
}

/// A batch whose tensors a [`CapturedStep`](crate::CapturedStep) copies to where its recorded step reads them.
///
/// Implemented for tensors of floats, integers and booleans, and for `Option`, `Vec`, arrays and tuples of them. Not for numbers: they would stay as
/// they were when the step was recorded. Of a structure of your own pass the tensors, and build it in the closure.
#[diagnostic::on_unimplemented(
    message = "a captured step does not know how to copy `{Self}`",
    note = "pass tensors, or a tuple or `Vec` of them, and build `{Self}` in the closure",
    note = "a number would stay as it was when the step was recorded: pass it as a tensor"
)]
pub trait CaptureInput: Clone {
    /// Shows its tensors to a captured step, and takes what comes back in their places.
    fn walked(self, walk: &mut Walk) -> Self;
}

macro_rules! tensor {
    ($($kind:ty, $tracked:expr;)*) => {
        $(impl<const D: usize> CaptureInput for $kind {
            fn walked(self, walk: &mut Walk) -> Self {
                let tracked: fn(&Self) -> bool = $tracked;
                walk.is_tracked |= tracked(&self);
                walk.kind.tensors.push((self.shape(), self.dtype(), self.device()));
                let Some(places) = &mut walk.places else {
                    return self;
                };
                let checkpointing = self.gradient_checkpointing_strategy();
                let values = self.inner();
                let place = match places.next() {
                    Some(place) => Self::from_bridge(place),
                    None => Self::empty(values.shape(), (&values.device(), values.dtype())),
                };
                let copy = place.slice_assign([(); D].map(|()| ..), values);
                walk.copied.push(copy.clone().into_bridge());
                match checkpointing {
                    Some(strategy) => {
                        Self::from_inner(copy).with_gradient_checkpointing_strategy(strategy)
                    }
                    None => copy,
                }
            }
        })*
    };
}

tensor! {
    Tensor<D>, |tensor| tensor.is_tracked();
    Tensor<D, Int>, |_| false;
    Tensor<D, Bool>, |_| false;
}

impl<T: CaptureInput> CaptureInput for Vec<T> {
    fn walked(self, walk: &mut Walk) -> Self {
        walk.kind.lists.push(self.len());
        self.into_iter().map(|value| value.walked(walk)).collect()
    }
}

impl<T: CaptureInput> CaptureInput for Option<T> {
    fn walked(self, walk: &mut Walk) -> Self {
        walk.kind.lists.push(self.iter().len());
        self.map(|value| value.walked(walk))
    }
}

walk_arrays_and_tuples!(CaptureInput, walked, &mut Walk);
