//! [`CapturedStep`]: a training step that a device records once and then makes again in one call.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, Param},
    optim::GradientsParams,
    tensor::{Bool, DType, Device, Distribution, Int, Shape, Tensor},
};
use burn_amp_kernels::{ClipTable, Graph, Place, Preparation};
use std::{marker::PhantomData, rc::Rc};

use crate::{
    convert::replace_value,
    error::{AmpError, StepError},
    module_optim::ModuleOptim,
    module_path::{self, ModulePath},
    optimizer::{Found, ScaledOptimizer, Stage, refused},
    rehearsal::Rehearses,
};

/// Runs before a recording: fusing backends find their kernels in the first ones, and memory is there after them.
const RUNS: usize = 3;

/// Shapes of batches whose steps are kept. Each keeps the memory of its activations.
const KEPT: usize = 4;

/// A training step that is recorded and made again: forward pass, backward pass, test, update and loss scale in one call of the device.
///
/// A step launches hundreds of kernels, and a fast device waits for the host that launches them. CUDA and HIP can record the launches as a
/// graph, and CubeCL keeps a list of them on WGPU. `step` copies the batch to where the recorded step reads it, and replays it. Results are those of
/// a [`ScaledOptimizer`] with a [fused optimizer](crate::Fused) that makes the same steps, bit for bit, and the host hears of them in the same way:
/// see [`ScaledOptimizer::synchronize`].
///
/// ```
/// use burn::{
///     module::Module, nn::{Linear, LinearConfig}, optim::AdamConfig, tensor::{Device, Distribution, Tensor},
/// };
/// use burn_amp::{CapturedStep, FusedAdam, MixedPrecision, ScaledOptimizer};
///
/// let device = Device::flex().autodiff();
/// let amp = MixedPrecision::f16();
/// let model = LinearConfig::new(4, 2).init(&device).apply_reparameterization(amp.clone());
/// let optim = ScaledOptimizer::new(FusedAdam::new(AdamConfig::new())?, &amp);
///
/// let mut train = CapturedStep::new(model, optim, |model: &Linear, (x, y): (Tensor<2>, Tensor<2>)| {
///     (amp.autocast(x, |x| model.forward(x)) - y).square().mean()
/// })?;
/// for _ in 0..10 {
///     let x = Tensor::random([8, 4], Distribution::Default, &device);
///     let y = Tensor::zeros([8, 2], &device);
///     let loss = train.step(1e-3, (x, y))?;       // a tensor, which nobody has read
///     # let _ = loss;
/// }
/// let (model, optim) = train.into_parts();        // to go on without, to validate, or to save
/// # let _ = (model, optim);
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
///
/// - **What is recorded** is what the closure launches. Values of the host are repeated: a number that a closure computes anew in each call is always that
///   of the recording. The learning rate, the optimizer's time and the loss scale are not among them. A closure that reads a tensor or makes
///   one of the host's values is refused, and so are random operations (dropout): a replay would repeat their numbers.
/// - **The closure** is called some times before a recording, with no effect on model and optimizer, and not in a replay. So it
///   should not count or collect anything.
/// - **Shapes**: a batch of another shape is recorded too. Four are kept, the ones that were used last. Each keeps the memory of its
///   activations.
/// - **Where a device has no graphs** (Flex, CubeCL's `cpu`) the closure is called in each step, and all else is the same.
/// - **One thread** makes all steps: this is not `Send`.
pub struct CapturedStep<M, B, O, F> {
    /// None while a step has it, and after one that has panicked.
    model: Option<M>,
    optim: ScaledOptimizer<O>,
    loss: F,
    /// Where the steps are recorded; none where they cannot be.
    device: Option<Device>,
    /// The one used last at the end.
    captured: Vec<Captured<B>>,
    /// Shared by all of them.
    scale: Option<burn_amp_kernels::DeviceScale>,
    /// A replay belongs to the thread that has recorded.
    thread: PhantomData<Rc<()>>,
}

/// One shape's step.
struct Captured<B> {
    kind: Vec<Kind>,
    inputs: B,
    /// Where the inputs were in the recording, until the first replay has found them there: nobody can hold them afterwards.
    places: Option<Vec<Option<Place>>>,
    recorded: Found,
    rows: Vec<Tensor<1>>,
    clip: Option<ClipTable>,
    graph: Graph,
}

impl<M, B, O, F> CapturedStep<M, B, O, F>
where
    M: Module,
    B: CaptureInput,
    O: ModuleOptim,
    F: FnMut(&M, B) -> Tensor<1>,
{
    /// Takes a model, its optimizer, and what computes the loss of a batch, of shape `[1]`. Nothing is recorded yet. Does not wait for the device.
    ///
    /// # Errors
    ///
    /// [`AmpError::CannotCapture`] if the optimizer is not a [fused one](crate::Fused), or waits for the device for another reason: with
    /// accumulation, a guard, averages, or a loss scale that the host moves. It names the reason.
    /// [`AmpError::ForeignRecord`] if the optimizer's state was loaded and is of another model.
    pub fn new(model: M, mut optim: ScaledOptimizer<O>, loss: F) -> Result<Self, AmpError> {
        optim.refuses_capture(&model)?;
        let devices = model.devices();
        let device = match devices.as_slice() {
            [device] => Some(device.clone().inner()).filter(Graph::is_supported),
            _ => None,
        };
        Ok(Self {
            model: Some(model),
            optim,
            loss,
            device,
            captured: Vec::new(),
            scale: None,
            thread: PhantomData,
        })
    }

    /// One training step: as [`ScaledOptimizer::try_step`] with the gradients of the closure's loss, which is given back in a tensor of its own,
    /// without autodiff.
    ///
    /// `lr` is a number, or Burn's learning rates of groups. Records the step if the batch's shapes are new, and waits for the device then. A replay does not wait.
    ///
    /// # Errors
    ///
    /// Model and optimizer are as they were. [`AmpError::CannotCapture`], with what stands in the way: random operations, a closure that reads or sends a
    /// tensor, running statistics (BatchNorm), several scopes, an input that requires gradients. As [`ScaledOptimizer::try_step`], of this step or of one
    /// before.
    ///
    /// # Panics
    ///
    /// If the closure does; also if an earlier step has panicked.
    pub fn step(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        batch: B,
    ) -> Result<Tensor<1>, AmpError> {
        let lr = lr.into();
        let mut kind = Vec::new();
        batch.describe(&mut kind);
        let is_tracked = |kind: &Kind| matches!(kind, Kind::Tensor { tracked: true, .. });
        if kind.iter().any(is_tracked) {
            return Err(refused(
                "a tensor of the batch requires gradients, which would end at its copy",
            ));
        }
        let Some(device) = self.device.clone() else {
            return self.run(lr, batch);
        };
        match self.captured.iter().position(|known| known.kind == kind) {
            Some(at) => {
                let known = self.captured.remove(at);
                self.captured.push(known);
            }
            None => {
                let captured = self.capture(&device, &lr, kind, &batch);
                if captured.is_err() {
                    // What was recorded has lost its scale.
                    self.captured.clear();
                    self.scale = None;
                    self.optim.end_recording();
                }
                self.captured.push(captured?);
                if self.captured.len() > KEPT {
                    self.captured.remove(0);
                }
            }
        }
        self.replay(&device, lr, batch)
    }

    /// A copy of the model, which later steps leave as it is: to validate with, or to save. Does not wait for the device.
    pub fn model(&self) -> M {
        module_path::map(self.here().clone(), &mut Copied)
    }

    /// The optimizer: its scaler, log and records. [`synchronize`](Self::synchronize) first, to have all steps counted; records do so by themselves.
    ///
    /// A clone of it shares the state's memory, which later steps write: take a record to keep a state.
    pub fn optim(&self) -> &ScaledOptimizer<O> {
        &self.optim
    }

    /// Waits until the outcomes of all steps are known: see [`ScaledOptimizer::try_synchronize`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn synchronize(&mut self) -> Result<(), AmpError> {
        self.optim.try_synchronize()
    }

    /// How many shapes are recorded: 0 on a device without graphs.
    pub fn shapes(&self) -> usize {
        self.captured.len()
    }

    /// Gives back model and optimizer, and frees what was recorded. Does not wait for the device.
    pub fn into_parts(mut self) -> (M, ScaledOptimizer<O>) {
        self.captured.clear();
        let model = self.model.take().expect(PANICKED);
        (model, self.optim)
    }

    fn here(&self) -> &M {
        self.model.as_ref().expect(PANICKED)
    }

    /// Calls the closure and steps.
    fn run(&mut self, lr: ModuleLearningRate, batch: B) -> Result<Tensor<1>, AmpError> {
        let model = self.model.take().expect(PANICKED);
        let loss = (self.loss)(&model, batch);
        let grads = GradientsParams::from_grads(loss.clone().backward(), &model);
        let stepped = self.optim.try_step(lr, model, grads);
        let (model, error) = match stepped {
            Ok(model) => (model, None),
            Err(StepError { error, module }) => (*module, Some(error)),
        };
        self.model = Some(model);
        match error {
            Some(error) => Err(error),
            None => Ok(loss.inner()),
        }
    }

    /// Records the step of a shape.
    fn capture(
        &mut self,
        device: &Device,
        lr: &ModuleLearningRate,
        kind: Vec<Kind>,
        batch: &B,
    ) -> Result<Captured<B>, AmpError> {
        // The scale is the host's, until the first replay.
        self.optim.try_synchronize()?;
        let inputs = batch.clone().copied(None);
        let scale = self.scale.take();
        let mut stage = Stage {
            scale: self.optim.scale_on(device, scale)?,
            rows: Vec::new(),
            clip: None,
        };
        let fails = |error: String| refused(error);
        let prepared = Preparation::new(device).map_err(fails)?;
        // In one run, another thread may have drawn them.
        let mut draws = true;
        for _ in 0..RUNS {
            let before = Draws::new(device);
            let kept;
            (stage, kept, _) = self.rehearse(Rehearses::Run, stage, lr, &inputs)?;
            // A fusing backend leaves out what is dropped before it runs.
            device.sync().map_err(|error| fails(error.to_string()))?;
            drop(kept);
            draws &= before.has_drawn();
        }
        if draws {
            return Err(refused(random_operations(self.here())));
        }
        // Without the update first: what a recording that fails would have written cannot be read any more.
        let loss = &mut self.loss;
        let (model, optim) = (self.model.as_ref().expect(PANICKED), &self.optim);
        let found = prepared
            .record(|| optim.find(&stage.scale, lr, model, |model| loss(model, inputs.clone())));
        let (graph, found) = found.map_err(|error| refused(host_values(&error)))?;
        drop((found?, graph));
        let prepared = Preparation::new(device).map_err(fails)?;
        let kept;
        (stage, kept, _) = self.rehearse(Rehearses::Run, stage, lr, &inputs)?;
        device.sync().map_err(|error| fails(error.to_string()))?;
        drop(kept);
        let recorded = prepared.record(|| self.rehearse(Rehearses::Recording, stage, lr, &inputs));
        let (graph, recorded) = recorded.map_err(fails)?;
        let (stage, recorded, stays) = recorded?;
        if !stays {
            return Err(refused(
                "parameters or state are held elsewhere, and are not written in their places",
            ));
        }
        self.scale = Some(stage.scale);
        Ok(Captured {
            kind,
            places: Some(places_of(&inputs)),
            inputs,
            recorded,
            rows: stage.rows,
            clip: stage.clip,
            graph,
        })
    }

    /// A step that changes nothing, or is recorded.
    fn rehearse(
        &mut self,
        what: Rehearses,
        stage: Stage,
        lr: &ModuleLearningRate,
        inputs: &B,
    ) -> Result<(Stage, Found, bool), AmpError> {
        let model = self.model.as_ref().expect(PANICKED);
        let loss = &mut self.loss;
        let (found, grads) =
            (self.optim).find(&stage.scale, lr, model, |model| loss(model, inputs.clone()))?;
        let model = self.model.take().expect(PANICKED);
        let (model, stage, stays) =
            (self.optim).rehearse(what, stage, lr.clone(), model, &found, grads);
        self.model = Some(model);
        Ok((stage, found, stays))
    }

    /// Makes the step of the last shape again.
    fn replay(
        &mut self,
        device: &Device,
        lr: ModuleLearningRate,
        batch: B,
    ) -> Result<Tensor<1>, AmpError> {
        if let Some(captured) = self.captured.last() {
            captured.recorded.check_rates(&lr)?;
        }
        let mut captured = self.captured.pop().expect("a shape that was recorded");
        captured.inputs = batch.copied(Some(captured.inputs));
        if let Some(places) = captured.places.take()
            && places != places_of(&captured.inputs)
        {
            return Err(refused("the closure keeps a tensor of the batch"));
        }
        let scale = self.scale.take().expect("that of what was recorded");
        let stage = Stage {
            scale,
            rows: captured.rows,
            clip: captured.clip,
        };
        let model = self.model.take().expect(PANICKED);
        let (model, stage) =
            (self.optim).begin_replay(stage, &captured.recorded, lr, model, device);
        self.model = Some(model);
        let stage = stage.inspect_err(|_| self.captured.clear())?;
        // SAFETY: inputs, rows and scale are in `captured` and `self`, parameters and state in model and optimizer, which nobody writes
        // elsewhere meanwhile (`places`, `stays` in `capture`). This is not `Send`.
        let replayed = unsafe { captured.graph.replay() };
        replayed.map_err(refused)?;
        self.optim.end_replay(&captured.recorded);
        let loss = copied(captured.recorded.loss.clone());
        captured.rows = stage.rows;
        captured.clip = stage.clip;
        self.scale = Some(stage.scale);
        self.captured.push(captured);
        Ok(loss)
    }
}

fn places_of<B: CaptureInput>(inputs: &B) -> Vec<Option<Place>> {
    let mut places = Vec::new();
    inputs.places(&mut places);
    places
}

const PANICKED: &str = "an earlier step has panicked: go on from the last record";

impl<M, B, O, F> std::fmt::Debug for CapturedStep<M, B, O, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CapturedStep")
            .field("optim", &self.optim)
            .field("device", &self.device)
            .field("shapes", &self.captured.len())
            .finish_non_exhaustive()
    }
}

/// What a device says of a closure that goes through the host.
fn host_values(error: &str) -> String {
    format!(
        "the closure reads a tensor, or sends values of the host to the device, which a replay cannot repeat. Pass what changes in the batch, and \
         make what stays before (the device says: {error})"
    )
}

/// Says whether random numbers were drawn on a device: those that come next tell.
struct Draws {
    device: Device,
    seeds: [u64; 2],
    expected: Vec<f32>,
}

impl Draws {
    fn new(device: &Device) -> Self {
        let mut draws = Self {
            device: device.clone(),
            seeds: [0; 2],
            expected: Vec::new(),
        };
        draws.seeds = [(); 2].map(|()| {
            let bits = draws.draw().into_iter().map(f32::to_bits).map(u64::from);
            bits.fold(0u64, |seed, bits| seed.rotate_left(17) ^ bits)
        });
        device.seed(draws.seeds[0]);
        draws.expected = draws.draw();
        device.seed(draws.seeds[0]);
        draws
    }

    fn draw(&self) -> Vec<f32> {
        let drawn = Tensor::<1>::random([4], Distribution::Default, (&self.device, DType::F32));
        drawn.into_data().iter::<f32>().collect()
    }

    /// Goes on with other random numbers, as a program with one seed has them in each run.
    fn has_drawn(self) -> bool {
        let drawn = self.draw() != self.expected;
        self.device.seed(self.seeds[1]);
        drawn
    }
}

/// Names the layers that draw random numbers.
fn random_operations<M: Module>(model: &M) -> String {
    struct Named(Vec<String>);

    impl module_path::Visit for Named {
        fn parameter<const D: usize>(&mut self, _path: &ModulePath, _param: &Param<Tensor<D>>) {}

        fn enter(&mut self, path: &ModulePath, _name: &str, container_type: &str) {
            if container_type.contains("Dropout") || container_type.contains("Noise") {
                let layer = format!("`{}`", path.as_str());
                if self.0.last() != Some(&layer) {
                    self.0.push(layer);
                }
            }
        }
    }

    let mut named = Named(Vec::new());
    module_path::visit(model, &mut named);
    let layers = match named.0.is_empty() {
        true => String::new(),
        false => format!(" ({})", named.0.join(", ")),
    };
    format!(
        "the closure draws random numbers{layers}, and a replay would draw the same again. Make them outside and pass them in the batch, or \
         train without dropout"
    )
}

/// Copies the parameters.
struct Copied;

impl module_path::Map for Copied {
    fn parameter<const D: usize>(
        &mut self,
        _path: &ModulePath,
        param: Param<Tensor<D>>,
    ) -> Param<Tensor<D>> {
        let id = param.id;
        param.map(|tensor| {
            let own = copied(tensor.clone().inner());
            replace_value(tensor, own, id)
        })
    }
}

/// A copy that shares no memory with the tensor.
fn copied<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    Tensor::empty(tensor.shape(), (&tensor.device(), tensor.dtype()))
        .slice_assign([(); D].map(|()| ..), tensor)
}

/// What a batch consists of: steps are recorded for one such list.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    Tensor {
        shape: Shape,
        dtype: DType,
        device: Device,
        tracked: bool,
    },
    /// As many values follow.
    List(usize),
}

/// A batch whose tensors a [`CapturedStep`] copies to where its recorded step reads them.
///
/// Implemented for tensors of floats, integers and booleans, and for `Option`, `Vec`, arrays and tuples of them. Not for numbers: they would stay as
/// they were when the step was recorded. Of a structure of your own pass the tensors, and build it in the closure.
#[diagnostic::on_unimplemented(
    message = "a captured step does not know how to copy `{Self}`",
    note = "pass tensors, or a tuple or `Vec` of them, and build `{Self}` in the closure",
    note = "a number would stay as it was when the step was recorded: pass it as a tensor"
)]
pub trait CaptureInput: Clone {
    /// The values of this in memory that nobody else holds, that of `place` if there is one.
    #[doc(hidden)]
    fn copied(self, place: Option<Self>) -> Self;

    #[doc(hidden)]
    fn describe(&self, kinds: &mut Vec<Kind>);

    #[doc(hidden)]
    fn places(&self, places: &mut Vec<Option<Place>>);
}

macro_rules! tensor {
    ($($kind:ty, $tracked:expr;)*) => {
        $(impl<const D: usize> CaptureInput for $kind {
            fn copied(self, place: Option<Self>) -> Self {
                let is_autodiff = self.device().is_autodiff();
                let values = self.inner();
                let new = || Self::empty(values.shape(), (&values.device(), values.dtype()));
                let place = place.map_or_else(new, Self::inner);
                let copy = place.slice_assign([(); D].map(|()| ..), values);
                match is_autodiff {
                    true => Self::from_inner(copy),
                    false => copy,
                }
            }

            fn describe(&self, kinds: &mut Vec<Kind>) {
                let tracked: fn(&Self) -> bool = $tracked;
                kinds.push(Kind::Tensor {
                    shape: self.shape(),
                    dtype: self.dtype(),
                    device: self.device(),
                    tracked: tracked(self),
                });
            }

            fn places(&self, places: &mut Vec<Option<Place>>) {
                places.push(Place::of(self.clone().inner().into_dispatch()));
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
    fn copied(self, place: Option<Self>) -> Self {
        let mut places = place.into_iter().flatten();
        let values = self.into_iter();
        values.map(|value| value.copied(places.next())).collect()
    }

    fn describe(&self, kinds: &mut Vec<Kind>) {
        kinds.push(Kind::List(self.iter().len()));
        self.iter().for_each(|value| value.describe(kinds));
    }

    fn places(&self, places: &mut Vec<Option<Place>>) {
        self.iter().for_each(|value| value.places(places));
    }
}

impl<T: CaptureInput> CaptureInput for Option<T> {
    fn copied(self, place: Option<Self>) -> Self {
        self.map(|value| value.copied(place.flatten()))
    }

    fn describe(&self, kinds: &mut Vec<Kind>) {
        kinds.push(Kind::List(self.iter().len()));
        self.iter().for_each(|value| value.describe(kinds));
    }

    fn places(&self, places: &mut Vec<Option<Place>>) {
        self.iter().for_each(|value| value.places(places));
    }
}

impl<T: CaptureInput, const N: usize> CaptureInput for [T; N] {
    fn copied(self, place: Option<Self>) -> Self {
        let mut places = place.into_iter().flatten();
        self.map(|value| value.copied(places.next()))
    }

    fn describe(&self, kinds: &mut Vec<Kind>) {
        kinds.push(Kind::List(self.iter().len()));
        self.iter().for_each(|value| value.describe(kinds));
    }

    fn places(&self, places: &mut Vec<Option<Place>>) {
        self.iter().for_each(|value| value.places(places));
    }
}

macro_rules! tuple {
    ($($name:ident $place:ident),+) => {
        impl<$($name: CaptureInput),+> CaptureInput for ($($name,)+) {
            #[allow(non_snake_case)]
            fn copied(self, place: Option<Self>) -> Self {
                let ($($name,)+) = self;
                match place {
                    Some(($($place,)+)) => ($($name.copied(Some($place)),)+),
                    None => ($($name.copied(None),)+),
                }
            }

            #[allow(non_snake_case)]
            fn describe(&self, kinds: &mut Vec<Kind>) {
                let ($($name,)+) = self;
                $($name.describe(kinds);)+
            }

            #[allow(non_snake_case)]
            fn places(&self, places: &mut Vec<Option<Place>>) {
                let ($($name,)+) = self;
                $($name.places(places);)+
            }
        }
    };
}

tuple!(A a);
tuple!(A a, B b);
tuple!(A a, B b, C c);
tuple!(A a, B b, C c, D d);
tuple!(A a, B b, C c, D d, E e);
tuple!(A a, B b, C c, D d, E e, F f);
