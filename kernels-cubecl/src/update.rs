use burn::{
    backend::TensorMetadata,
    tensor::{DType, Device, Tensor},
};

#[cfg(feature = "cubecl")]
use cubecl::prelude::*;

use crate::{
    backends::has_kernels,
    error::UnsupportedDType,
    list::TensorList,
    ops::Job,
    run::{assert_one_device, way},
    schedule::data_of,
    words::words,
};

/// Words of one that is not decided: the row's, how many steps the parameter has, and where its gradient is among those that were measured.
pub(crate) const UNDECIDED: usize = ROW + 2;

/// Which of Burn's optimizers takes a step, and what it keeps of each parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "cubecl",
    derive(CubeType, IntoRuntime),
    cube(no_constructors)
)]
pub enum UpdateRule {
    /// Stochastic gradient descent; with momentum it keeps the velocity.
    Sgd {
        /// Whether there is momentum.
        momentum: bool,
        /// Whether it is Nesterov's.
        nesterov: bool,
    },
    /// Adam (Kingma and Ba, 2015): keeps both moments, and with AMSGrad (Reddi et al., 2018) the largest second one.
    Adam {
        /// Whether it is AMSGrad.
        amsgrad: bool,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019): keeps what Adam keeps.
    AdamW {
        /// Whether it is AMSGrad.
        amsgrad: bool,
        /// Whether weights decay only where the update makes them smaller (arXiv 2510.12402).
        cautious: bool,
    },
}

words! {
    /// The numbers of one parameter's step, as Burn's optimizers take them: in f32.
    ///
    /// What a rule does not name it does not read.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    UpdateRow, ROW, column:
    /// Whether the step is taken: 1, or 0 to leave parameter and state as they are.
    0 TAKEN taken: f32,
    /// What the gradient is multiplied by, after it was widened to f32.
    1 SCALE scale: f32,
    /// The learning rate.
    2 LR lr: f32,
    /// Whether there is no state yet: 1, and what stands in its tensors is not read; or 0.
    3 FRESH fresh: f32,
    /// `Sgd` and `Adam`: the penalty, 0 for none. `AdamW`: the rate times the penalty if it is cautious, or else what the
    /// parameter is multiplied by.
    4 DECAY decay: f32,
    /// The momentum, or the first of Adam's betas.
    5 BETA_1 beta_1: f32,
    /// What the gradient is multiplied by on its way into the velocity, or into the first moment.
    6 FACTOR_1 factor_1: f32,
    /// The second of Adam's betas.
    7 BETA_2 beta_2: f32,
    /// What the gradient's square is multiplied by on its way into the second moment.
    8 FACTOR_2 factor_2: f32,
    /// `Adam`: what the first moment is multiplied by. `AdamW`: what it is divided by.
    9 CORRECTION_1 correction_1: f32,
    /// `AdamW`: what the second moment is divided by.
    10 CORRECTION_2 correction_2: f32,
    /// What is added to the root of the second moment.
    11 EPSILON epsilon: f32,
}

impl UpdateRow {
    /// Rows as a tensor of shape `[parameters, 12]` in f32, which [`update`] reads on the device.
    pub fn upload(rows: &[Self], device: &Device) -> Tensor<2> {
        let words = rows.iter().flat_map(|row| row.words());
        let data = data_of(words, [rows.len(), ROW]);
        Tensor::from_data(data, (device, DType::F32))
    }
}

impl UpdateRule {
    /// Tensors of state that it keeps of a parameter, all in f32.
    pub fn states(self) -> usize {
        match self {
            Self::Sgd { momentum, .. } => momentum.into(),
            Self::Adam { amsgrad } | Self::AdamW { amsgrad, .. } => 2 + usize::from(amsgrad),
        }
    }

    /// Tensors that a parameter of this dtype has in the list of [`update`]: gradient, parameter, master, state.
    pub(crate) fn tensors(self, parameter: DType) -> usize {
        2 + usize::from(has_master(parameter)) + self.states()
    }
}

/// Whether a parameter has a copy in f32, of which it is the rounded image.
pub(crate) fn has_master(parameter: DType) -> bool {
    matches!(parameter, DType::F16 | DType::BF16)
}

/// Whether [`update`] has a kernel for parameters like this one: in f16, bf16 or f32, on Flex and on CubeCL devices.
pub fn can_update<const D: usize>(parameter: &Tensor<D>) -> bool {
    let parameter = parameter.clone().inner().into_dispatch();
    parameter.dtype() != DType::F64 && has_kernels(&parameter)
}

/// Steps many parameters in one pass: reads gradients, states and parameters, and writes states and parameters.
///
/// The list has, for each parameter in turn, its gradient (f16, bf16 or f32), itself (f16, bf16 or f32), its master in f32 if it is
/// in half precision, and its states in f32: all of the parameter's shape, on one device. Given back are, for each in turn, the parameter,
/// the master and the states; those that nobody else holds are overwritten in place. `rows` has one [`UpdateRow`] for each parameter
/// ([`UpdateRow::upload`]).
///
/// The arithmetic is that of Burn 0.22.1's optimizers, operation by operation in f32: on Flex bit for bit. A master whose rounded image is no
/// longer the parameter, which was changed elsewhere, takes the parameter's value first. Where a row is not taken, nothing changes.
/// Does not wait for the device.
///
/// # Errors
///
/// [`UnsupportedDType`] if the device cannot read a tensor's dtype, or there is no kernel for it (see [`can_update`]).
///
/// # Panics
///
/// If the list is not of that form, or not all tensors are on one device.
pub fn update(
    rule: UpdateRule,
    list: TensorList,
    rows: Tensor<2>,
) -> Result<TensorList, UnsupportedDType> {
    let Some(way) = way(&list)? else {
        return Ok(list);
    };
    assert_eq!(rows.dtype(), DType::F32, "rows are in f32");
    check(rule, &list, rows.dims());
    if let Some(tensor) = list
        .tensors
        .iter()
        .find(|tensor| tensor.dtype() == DType::F64 || !has_kernels(tensor))
    {
        return Err(UnsupportedDType::new(&way.home, tensor.dtype()));
    }
    let rows = rows.inner();
    assert_one_device(&way.home, &rows.device());
    let mut tensors = list.tensors;
    tensors.push(rows.into_dispatch());
    let (updated, _) = way.run(tensors, Job::Update { rule });
    Ok(TensorList::of(updated))
}

/// A kernel over other shapes than it was told of would read other memory.
fn check(rule: UpdateRule, list: &TensorList, rows: [usize; 2]) {
    let tensors = &list.tensors;
    let (mut at, mut parameters) = (0, 0);
    while let Some(parameter) = tensors.get(at + 1) {
        let own = tensors.get(at..at + rule.tensors(parameter.dtype()));
        let own = own.expect("each parameter has its gradient, its master and its states");
        let shape = parameter.shape();
        assert!(
            own.iter().all(|tensor| tensor.shape() == shape),
            "gradient, master and states have the parameter's shape"
        );
        assert!(
            own[2..].iter().all(|tensor| tensor.dtype() == DType::F32),
            "masters and states are in f32"
        );
        at += own.len();
        parameters += 1;
    }
    assert_eq!(at, tensors.len(), "a gradient without its parameter");
    assert_eq!(rows, [parameters, ROW], "a row for each parameter");
}
