//! Averages of gradients over the ranks, bucket by bucket.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::sync_channel;
use std::thread;

use burn_amp_core::AmpError;
use burn_amp_core::internal::{
    AnyTensor, Entries, ParamTensor, Parameter, distinct_parameters, working_dtype,
};

use crate::ranks::{Call, Ranks};

/// Values of a bucket: 25 MB in f32, as those of PyTorch's `DistributedDataParallel`. Of one parameter there may be more.
const BUCKET: usize = 25 * 1024 * 1024 / 4;

/// A parameter that has a gradient on some rank.
struct Slot {
    parameter: Parameter,
    /// The gradient of this rank.
    gradient: Option<AnyTensor>,
}

impl Slot {
    fn len(&self) -> usize {
        self.parameter.shape().num_elements()
    }

    fn device(&self) -> Device {
        match &self.gradient {
            Some(gradient) => gradient.device(),
            None => self.parameter.value.device(),
        }
    }
}

pub(crate) fn average<M: Module>(
    ranks: &mut Ranks,
    module: &M,
    mut grads: GradientsParams,
) -> Result<GradientsParams, AmpError> {
    if let Err(error) = Entries::of(&grads, module) {
        return Err(ranks.fail(error));
    }
    let parameters = distinct_parameters(module);
    let line = |one: &Parameter| format!("`{}` of shape {:?}", one.path, one.shape().to_vec());
    let about: Vec<String> = parameters.iter().map(line).collect();
    ranks.begin_about(Call::Average, &about.join("\n"))?;

    let mut taken = Take {
        grads: &mut grads,
        taken: HashMap::new(),
    };
    module.visit(&mut taken);
    let mut taken = taken.taken;
    let own: Vec<u8> = (parameters.iter())
        .map(|parameter| taken.contains_key(&parameter.id).into())
        .collect();
    let any = ranks.world.any(&own).into_iter();
    let slots = parameters.into_iter().zip(any).filter(|(_, any)| *any > 0);
    let slots = slots.map(|(parameter, _)| Slot {
        gradient: taken.remove(&parameter.id),
        parameter,
    });
    let averages = sum(ranks, buckets(slots))?;
    module.visit(&mut Put {
        grads: &mut grads,
        averages,
    });
    Ok(grads)
}

/// Parts of at most a bucket's size, or of one parameter.
fn buckets(slots: impl Iterator<Item = Slot>) -> Vec<Vec<Slot>> {
    let (mut buckets, mut filled) = (Vec::<Vec<Slot>>::new(), usize::MAX);
    for slot in slots {
        filled = filled.saturating_add(slot.len());
        match buckets.last_mut().filter(|_| filled <= BUCKET) {
            Some(bucket) => bucket.push(slot),
            None => {
                filled = slot.len();
                buckets.push(vec![slot]);
            }
        }
    }
    buckets
}

/// Averages the buckets one after another, while a thread reads the next from its device.
fn sum(
    ranks: &mut Ranks,
    buckets: Vec<Vec<Slot>>,
) -> Result<HashMap<ParamId, AnyTensor>, AmpError> {
    let (world, mut averages) = (&ranks.world, HashMap::new());
    // The others wait for the sums: a rank whose device fails goes on, with zeros, and says so at the end.
    let (mut sum, mut failed) = (Vec::new(), false);
    thread::scope(|scope| {
        // No bucket waits between the two, so that there are never more than two of them.
        let (fetched, next) = sync_channel(0);
        let buckets = &buckets;
        scope.spawn(move || {
            for bucket in buckets {
                let values = catch_unwind(AssertUnwindSafe(|| read(bucket)));
                if fetched.send(values.ok()).is_err() {
                    return;
                }
            }
        });
        for bucket in buckets {
            let values = next.recv().ok().flatten();
            failed |= values.is_none();
            let zeros = || vec![0.0; bucket.iter().map(Slot::len).sum()];
            let mut values = values.unwrap_or_else(zeros);
            world.mean(&mut values, &mut sum);
            let written = catch_unwind(AssertUnwindSafe(|| {
                write(bucket, &values).collect::<Vec<_>>()
            }));
            failed |= written.is_err();
            averages.extend(written.unwrap_or_default());
        }
    });
    let own = if failed { world.rank() } else { world.size() };
    match world.lowest(own as u64) as usize {
        rank if rank == world.size() => Ok(averages),
        rank => Err(AmpError::Ranks {
            rank: Some(rank),
            reason: "its device has failed while gradients were averaged".to_string(),
        }),
    }
}

/// The gradients of a bucket, one behind another.
fn read(bucket: &[Slot]) -> Vec<f32> {
    let mut values = Vec::with_capacity(bucket.iter().map(Slot::len).sum());
    for slot in bucket {
        match &slot.gradient {
            Some(gradient) => {
                let data = gradient.clone().cast(FloatDType::F32).into_data();
                values.extend_from_slice(data.as_slice::<f32>().expect("it was cast to f32"));
            }
            None => values.resize(values.len() + slot.len(), 0.0),
        }
    }
    values
}

/// The averages of a bucket, on the devices of their gradients.
fn write<'a>(
    bucket: &'a [Slot],
    mut values: &'a [f32],
) -> impl Iterator<Item = (ParamId, AnyTensor)> + 'a {
    bucket.iter().map(move |slot| {
        let (own, rest) = values.split_at(slot.len());
        values = rest;
        let data = TensorData::new(own.to_vec(), slot.parameter.shape());
        let average = ParamTensor::from(data).live(&slot.device());
        let average = average.expect("it has the rank of a parameter");
        let wide = working_dtype(slot.parameter.value.dtype());
        (slot.parameter.id, average.cast(wide))
    })
}

/// Takes the gradients out.
struct Take<'a> {
    grads: &'a mut GradientsParams,
    taken: HashMap<ParamId, AnyTensor>,
}

impl ModuleVisitor for Take<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grad) = self.grads.remove::<D>(param.id) {
            self.taken
                .insert(param.id, AnyTensor::with_graph(grad.inner()));
        }
    }
}

/// Puts averages in.
struct Put<'a> {
    grads: &'a mut GradientsParams,
    averages: HashMap<ParamId, AnyTensor>,
}

impl ModuleVisitor for Put<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(average) = self.averages.remove(&param.id) {
            self.grads.register::<D>(param.id, average.into_tensor());
        }
    }
}
