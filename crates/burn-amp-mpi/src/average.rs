//! Averages of gradients over the ranks, bucket by bucket.

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, TensorData};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::sync_channel;
use std::thread;

use burn_amp_core::AmpError;
use burn_amp_core::internal::{
    AnyTensor, ParamTensor, Parameter, distinct_parameters, put_gradient, take_gradient,
    working_dtype,
};

use crate::ranks::Ranks;

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
    // The one traversal of the module: gradients are found by the ids.
    let parameters = distinct_parameters(module);
    let mut taken = Vec::with_capacity(parameters.len());
    for parameter in &parameters {
        match take_gradient(parameter, &mut grads) {
            Ok(gradient) => taken.push(gradient),
            Err(error) => return Err(ranks.fail(error)),
        }
    }
    ranks.begin_average(&parameters)?;

    let own: Vec<u8> = taken.iter().map(|one| one.is_some().into()).collect();
    let any = ranks.world.any(&own).into_iter();
    let slots = parameters.into_iter().zip(taken).zip(any);
    let slots = slots.filter(|(_, any)| *any > 0).map(|(slot, _)| {
        let (parameter, gradient) = slot;
        Slot {
            parameter,
            gradient,
        }
    });
    for (id, average) in sum(ranks, &buckets(slots))? {
        put_gradient(id, &mut grads, average);
    }
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

/// Averages the buckets one after another.
fn sum(ranks: &mut Ranks, buckets: &[Vec<Slot>]) -> Result<Vec<(ParamId, AnyTensor)>, AmpError> {
    let (world, mut averages) = (&ranks.world, Vec::new());
    // The others wait for the sums: a rank whose device fails goes on, with zeros, and says so at the end.
    let (mut sum, mut failed) = (Vec::new(), false);
    let read = |bucket: &Vec<Slot>| catch_unwind(AssertUnwindSafe(|| read(bucket))).ok();
    read_ahead(buckets, read, |bucket, values| {
        let values = values.flatten();
        failed |= values.is_none();
        let zeros = || vec![0.0; bucket.iter().map(Slot::len).sum()];
        let mut values = values.unwrap_or_else(zeros);
        world.mean(&mut values, &mut sum);
        let written = || write(bucket, &values).collect::<Vec<_>>();
        let written = catch_unwind(AssertUnwindSafe(written));
        failed |= written.is_err();
        averages.extend(written.unwrap_or_default());
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

/// Gives the values of one item after another to `then`, while a thread reads those of the next: never of more than that. There are none where reading
/// panics.
pub(crate) fn read_ahead<T: Sync, V: Send>(
    items: &[T],
    read: impl Fn(&T) -> V + Send,
    mut then: impl FnMut(&T, Option<V>),
) {
    // Nothing to read meanwhile.
    if let [only] = items {
        return then(only, Some(read(only)));
    }
    thread::scope(|scope| {
        let (values, next) = sync_channel(0);
        scope.spawn(move || {
            // It ends early where nobody waits for more.
            let _sent = items
                .iter()
                .map(read)
                .try_for_each(|read| values.send(read));
        });
        for item in items {
            then(item, next.recv().ok());
        }
    });
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
