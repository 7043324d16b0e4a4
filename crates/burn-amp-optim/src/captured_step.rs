//! [`CapturedStep`]: a training step that a device captures once and then replays in one call.

mod draws;
mod input;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleVisitor};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, kind::BridgeTensor};
use burn_amp_kernels::{BufferAddress, ClipTable, DeviceScale, Graph, Preparation, copied};
use std::{marker::PhantomData, rc::Rc};

use self::draws::with_draws;
pub use self::input::CaptureInput;
use self::input::{Kind, addresses_of, copied_to, kind_of};
use crate::PANICKED;
use burn_amp_core::internal::fused::{InspectedStep, Recorder, Rehearses, Stage, refused};
use burn_amp_core::internal::replaced;
use burn_amp_core::{AmpError, AmpRecord, ModuleOptim, ScaledOptimizer, StepError};

/// Runs before a recording: fusing backends find their kernels in the first ones, and memory is there after them.
const RUNS: usize = 3;

/// The cost of a recording, in steps. Beside those runs there are one that is thrown away, one before the recording, and that.
const COST: usize = RUNS + 3;

/// Shapes of batches whose steps are kept. Each keeps the memory of its activations.
const MAX_SHAPES: usize = 4;

/// Recordings that may make room for others before they were worth their cost.
const MAX_WASTED: usize = 1;

/// A training step that is captured and replayed: forward pass, backward pass, test, update and loss scale in one call of the device.
///
/// A step launches hundreds of kernels, and a fast device waits for the host that launches them. CUDA and HIP can record the launches as a
/// graph, and CubeCL keeps a list of them on WGPU. `step` copies the batch to where the recorded step reads it, and replays it. Results are those of
/// a [`ScaledOptimizer`] with a [fused optimizer](crate::Fused) that makes the same steps, bit for bit, and they are resolved in the same way:
/// see [`ScaledOptimizer::synchronize`].
///
/// ```
/// use burn::{
///     nn::{Linear, LinearConfig}, optim::AdamConfig, tensor::{Device, Distribution, Tensor},
/// };
/// use burn_amp::{optim::CapturedStep, optim::FusedAdam, MixedPrecision};
///
/// let device = Device::flex().autodiff();
/// let amp = MixedPrecision::f16();
/// let (model, optim) = amp.prepare(LinearConfig::new(4, 2).init(&device), FusedAdam::new(AdamConfig::new()));
///
/// let mut train = CapturedStep::new(model, optim, |model: &Linear, (x, y): (Tensor<2>, Tensor<2>)| {
///     (amp.autocast(x, |x| model.forward(x)) - y).square().mean()
/// })?;
/// let inner = device.clone().inner();             // batches made on the autodiff device cost memory with each replay
/// for _ in 0..10 {
///     let x = Tensor::random([8, 4], Distribution::Default, &inner);
///     let y = Tensor::zeros([8, 2], &inner);
///     let batch = (Tensor::from_inner(x), Tensor::from_inner(y));
///     let loss = train.step(1e-3, batch)?;        // a tensor, which nobody has read
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
///   activations. Where more than four come in turn, each step would be a recording, which costs as much as six: a warning says so, and from there
///   on nothing is recorded.
/// - **Where a device has no graphs** (Flex, CubeCL's `cpu`), and where a model is on several devices, the closure is called in each step, and all else is the same.
/// - **One thread** makes all steps: this is not `Send`.
pub struct CapturedStep<M, B, O, F> {
    /// The model; none while a step has it, and after one that has panicked.
    model: Option<M>,
    optim: ScaledOptimizer<O>,
    loss: F,
    /// The device that records the steps; none where it cannot.
    device: Option<Device>,
    /// The one used last at the end.
    captured: Vec<Captured>,
    /// Recordings that have made room for others before they were worth their cost.
    wasted: usize,
    /// Shared by all of them.
    scale: Option<DeviceScale>,
    /// A replay belongs to the thread that has recorded.
    thread: PhantomData<(Rc<()>, B)>,
}

/// One shape's step.
struct Captured {
    kind: Kind,
    /// The tensors of a batch, where the recorded step reads them.
    inputs: Vec<BridgeTensor>,
    /// The addresses of the inputs in the recording, and of what else it reads: a replay finds them there.
    input_addresses: Vec<Option<BufferAddress>>,
    stage_addresses: Vec<Option<BufferAddress>>,
    recorded: InspectedStep,
    rows: Vec<Tensor<1>>,
    clip: Option<ClipTable>,
    graph: Graph,
    replays: usize,
}

impl<M, B, O, F> CapturedStep<M, B, O, F>
where
    M: Module,
    B: CaptureInput,
    O: ModuleOptim,
    F: FnMut(&M, B) -> Tensor<1>,
{
    /// Takes a model, its optimizer, and what computes the loss of a batch, of shape `[1]`. Nothing is recorded yet. Does not wait for the device.
    /// Warns of dropout where the device records nothing, because one that records refuses it.
    ///
    /// # Errors
    ///
    /// [`AmpError::CannotCapture`] if the optimizer is not a [fused one](crate::Fused), or waits for the device for another reason: with
    /// accumulation, a guard, averages, or a loss scale that the host moves. It names the reason.
    /// [`AmpError::ForeignRecord`] if the optimizer's state was loaded and is of another model, [`AmpError::InvalidValue`] for a setting out of its range,
    /// and what is wrong with gradients that were dropped before.
    pub fn new(model: M, mut optim: ScaledOptimizer<O>, loss: F) -> Result<Self, AmpError> {
        Recorder(&mut optim).refuses_capture(&model)?;
        let devices = model.devices();
        let device = match devices.as_slice() {
            [device] => Some(device.clone().inner()).filter(Graph::is_supported),
            _ => None,
        };
        let random = random_layers(&model);
        if device.is_none() && !random.is_empty() {
            burn_amp_core::warn!(
                "this device records no step, so none is replayed. A device that records refuses this model if {random} draw random numbers, because a \
                 replay would draw the same numbers"
            );
        }
        Ok(Self {
            model: Some(model),
            optim,
            loss,
            device,
            captured: Vec::new(),
            wasted: 0,
            scale: None,
            thread: PhantomData,
        })
    }

    /// One training step: as [`ScaledOptimizer::try_step`] with the gradients of the closure's loss, which is given back in a tensor of its own,
    /// without autodiff.
    ///
    /// `lr` is a number, or Burn's learning rates of groups. Records the step if the batch's shapes are new, and waits for the device then. A replay does not wait. A
    /// recording seeds the device's random numbers.
    ///
    /// # Errors
    ///
    /// Model and optimizer are as they were. [`AmpError::CannotCapture`], with what stands in the way: random operations, a closure that reads or sends a
    /// tensor, running statistics (BatchNorm), several scopes, an input that requires gradients. As [`ScaledOptimizer::try_step`], of this step or of one
    /// before.
    ///
    /// # Panics
    ///
    /// If the closure does, which loses nothing; also if the optimizer has panicked in an earlier step.
    pub fn step(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        batch: B,
    ) -> Result<Tensor<1>, AmpError> {
        let lr = lr.into();
        let (kind, is_tracked) = kind_of(&batch);
        if is_tracked {
            return Err(refused(
                "a tensor of the batch requires gradients, which would end at its copy",
            ));
        }
        let Some(device) = self.device.clone() else {
            return self.run(lr, batch);
        };
        if self.scale.is_none() {
            // The closure has panicked in a recording: what was recorded before moves a scale that is gone.
            self.captured.clear();
        }
        let captured = match self.captured.iter().position(|known| known.kind == kind) {
            Some(at) => {
                self.captured[at].recorded.check_rates(&lr)?;
                self.captured.remove(at)
            }
            None if !self.make_room() => return self.run(lr, batch),
            None => {
                let captured = self.capture(&device, &lr, kind, &batch);
                // What was recorded has lost its scale.
                captured.inspect_err(|_| self.forget())?
            }
        };
        self.replay(captured, &device, lr, batch)
    }

    /// A copy of the model, which later steps leave as it is: to validate with, or to save. Does not wait for the device.
    ///
    /// # Panics
    ///
    /// If the optimizer has panicked in an earlier step.
    pub fn model(&self) -> M {
        replaced(self.here().clone(), |_, parameter| {
            Some(parameter().value.copied())
        })
    }

    /// The optimizer, with its scaler. [`synchronize`](Self::synchronize) first, to have all steps counted.
    ///
    /// A clone of it shares the state's memory, which later steps write: take a record to keep a state.
    pub fn optim(&self) -> &ScaledOptimizer<O> {
        &self.optim
    }

    /// The optimizer's state, to be stored: see [`ScaledOptimizer::to_record`]. Waits for the device.
    pub fn to_record(&mut self) -> AmpRecord {
        self.optim.to_record()
    }

    /// Waits until the outcomes of all steps are known: see [`ScaledOptimizer::synchronize`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn synchronize(&mut self) -> Result<(), AmpError> {
        self.optim.synchronize()
    }

    /// The number of shapes that are recorded: 0 on a device without graphs.
    pub fn shapes(&self) -> usize {
        self.captured.len()
    }

    /// Gives back model and optimizer, and frees what was recorded. Does not wait for the device.
    ///
    /// # Panics
    ///
    /// If the optimizer has panicked in an earlier step.
    pub fn into_parts(self) -> (M, ScaledOptimizer<O>) {
        (self.model.expect(PANICKED), self.optim)
    }

    /// Makes room for one more shape. Where recordings are not worth their cost, because too many shapes come in turn, it ends them.
    fn make_room(&mut self) -> bool {
        if self.captured.len() < MAX_SHAPES {
            return true;
        }
        let oldest = self.captured.remove(0);
        self.wasted += usize::from(oldest.replays < COST);
        if self.wasted <= MAX_WASTED {
            return true;
        }
        burn_amp_core::warn!(
            "batches of more than {MAX_SHAPES} shapes come in turn, and a step that is recorded costs as much as {COST}: from here on none is recorded,              and the closure is called in each. Pad batches to at most {MAX_SHAPES} shapes"
        );
        self.forget();
        self.device = None;
        false
    }

    /// Frees what was recorded. The next scale is the host's.
    fn forget(&mut self) {
        self.captured.clear();
        self.scale = None;
        Recorder(&mut self.optim).end_recording();
    }

    fn here(&self) -> &M {
        self.model.as_ref().expect(PANICKED)
    }

    /// Calls the closure and steps.
    fn run(&mut self, lr: ModuleLearningRate, batch: B) -> Result<Tensor<1>, AmpError> {
        let model = self.model.as_ref().expect(PANICKED);
        let loss = (self.loss)(model, batch);
        let grads = GradientsParams::from_grads(loss.clone().backward(), model);
        let model = self.model.take().expect(PANICKED);
        let stepped = self.optim.try_step(lr, model, grads);
        let (model, stepped) = StepError::split(stepped);
        self.model = Some(model);
        stepped.map(|()| loss.inner())
    }

    /// Records the step of a shape.
    fn capture(
        &mut self,
        device: &Device,
        lr: &ModuleLearningRate,
        kind: Kind,
        batch: &B,
    ) -> Result<Captured, AmpError> {
        // The scale is the host's, until the first replay.
        self.optim.synchronize()?;
        let (batch, inputs) = copied_to(Vec::new(), batch.clone());
        let stage = Stage {
            scale: Recorder(&mut self.optim).scale_on(device, self.scale.take())?,
            rows: Vec::new(),
            clip: None,
        };
        let prepared = Preparation::new(device).map_err(refused)?;
        let stage = self.warm_up(device, stage, lr, &batch)?;
        // Without the update first: what a recording that fails would have written cannot be read any more.
        let found = prepared.record(|| self.find(&stage.scale, lr, &batch));
        let (graph, found) = found.map_err(|error| {
            refused(format!(
                "the closure reads a tensor, or sends values of the host to the device, which a replay cannot repeat. Pass what changes in the \
                 batch, and make what stays before (the device says: {error})"
            ))
        })?;
        drop((found?, graph));
        let prepared = Preparation::new(device).map_err(refused)?;
        let (stage, ..) = self.rehearse(Rehearses::Run, device, stage, lr, &batch)?;
        let recording = Rehearses::Recording;
        let recorded = prepared.record(|| self.rehearse(recording, device, stage, lr, &batch));
        let (graph, recorded) = recorded.map_err(refused)?;
        let (stage, recorded, stays) = recorded?;
        if !stays {
            return Err(refused(
                "parameters or state are held elsewhere, and are not written in their places",
            ));
        }
        let stage_addresses = stage.addresses();
        self.scale = Some(stage.scale);
        Ok(Captured {
            kind,
            input_addresses: addresses_of(&inputs),
            stage_addresses,
            inputs,
            recorded,
            rows: stage.rows,
            clip: stage.clip,
            graph,
            replays: 0,
        })
    }

    /// Runs the step some times before its recording, and refuses it if it draws random numbers.
    fn warm_up(
        &mut self,
        device: &Device,
        mut stage: Stage,
        lr: &ModuleLearningRate,
        batch: &B,
    ) -> Result<Stage, AmpError> {
        // In one run, another thread may have drawn them.
        let mut draws = true;
        // What was read before, and is looked at later, shows what its memory holds then: the first run leaves that to it. Not with graphs
        // that know where parameters are.
        let mut before = self.captured.is_empty().then(|| self.here().clone());
        for _ in 0..RUNS {
            let run = || self.rehearse(Rehearses::Run, device, stage, lr, batch);
            let ((after, ..), has_drawn) = with_draws(device, run)?;
            stage = after;
            drop(before.take());
            draws &= has_drawn;
        }
        match draws {
            true => Err(refused(random_operations(self.here()))),
            false => Ok(stage),
        }
    }

    /// Computes the loss of a batch and its gradients, and looks at them on the device.
    fn find(
        &mut self,
        scale: &DeviceScale,
        lr: &ModuleLearningRate,
        batch: &B,
    ) -> Result<(InspectedStep, GradientsParams), AmpError> {
        let model = self.model.as_ref().expect(PANICKED);
        let loss = |model: &M| (self.loss)(model, batch.clone());
        Recorder(&mut self.optim).find(scale, lr, model, loss)
    }

    /// A step that changes nothing, or is recorded. Says whether all that it writes stays in its place.
    fn rehearse(
        &mut self,
        what: Rehearses,
        device: &Device,
        stage: Stage,
        lr: &ModuleLearningRate,
        batch: &B,
    ) -> Result<(Stage, InspectedStep, bool), AmpError> {
        let (found, grads) = self.find(&stage.scale, lr, batch)?;
        let model = self.model.take().expect(PANICKED);
        let (model, stage, stays) =
            Recorder(&mut self.optim).rehearse(what, stage, lr.clone(), model, &found, grads);
        self.model = Some(model);
        if what == Rehearses::Run {
            // A fusing backend leaves out what is dropped before it runs.
            (device.sync()).map_err(|error| refused(error.to_string()))?;
        }
        Ok((stage, found, stays))
    }

    /// Makes the recorded step of a shape again.
    fn replay(
        &mut self,
        mut captured: Captured,
        device: &Device,
        lr: ModuleLearningRate,
        batch: B,
    ) -> Result<Tensor<1>, AmpError> {
        (_, captured.inputs) = copied_to(captured.inputs, batch);
        if captured.input_addresses != addresses_of(&captured.inputs) {
            return Err(refused("the closure keeps a tensor of the batch"));
        }
        let stage = Stage {
            scale: self.scale.take().expect("that of what was recorded"),
            rows: captured.rows,
            clip: captured.clip,
        };
        let model = self.model.as_ref().expect(PANICKED);
        let stage =
            Recorder(&mut self.optim).begin_replay(stage, &captured.recorded, lr, model, device);
        let stage = stage.inspect_err(|_| self.captured.clear())?;
        if captured.stage_addresses != stage.addresses() {
            Recorder(&mut self.optim).undo_step();
            self.forget();
            return Err(refused(
                "learning rate, time or loss scale were not sent to where the recorded step reads them. The next step is recorded anew",
            ));
        }
        // SAFETY: inputs, rows and scale are in `captured` and `self`, parameters and state in model and optimizer, which nobody writes
        // elsewhere meanwhile (the addresses above, `stays` in `capture`). This is not `Send`.
        let replayed = unsafe { captured.graph.replay() };
        let loss = match replayed {
            Ok(()) => {
                Recorder(&mut self.optim).end_replay(&captured.recorded);
                captured.replays += 1;
                Ok(copied(captured.recorded.loss.clone()))
            }
            Err(error) => {
                Recorder(&mut self.optim).undo_step();
                Err(refused(error))
            }
        };
        captured.rows = stage.rows;
        captured.clip = stage.clip;
        self.scale = Some(stage.scale);
        self.captured.push(captured);
        loss
    }
}

impl<M, B, O, F> std::fmt::Debug for CapturedStep<M, B, O, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CapturedStep")
            .field("optim", &self.optim)
            .field("device", &self.device)
            .field("shapes", &self.captured.len())
            .finish_non_exhaustive()
    }
}

/// Paths of the layers that draw random numbers, as a list in words.
fn random_layers<M: Module>(model: &M) -> String {
    #[derive(Default)]
    struct Named {
        path: Vec<String>,
        layers: Vec<String>,
    }

    impl ModuleVisitor for Named {
        fn enter_module(&mut self, name: &str, container_type: &str) {
            if container_type.contains("Dropout") || container_type.contains("Noise") {
                self.layers.push(format!("`{}`", self.path.join(".")));
            }
            self.path.push(name.to_string());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }
    }

    let mut named = Named::default();
    model.visit(&mut named);
    named.layers.dedup();
    named.layers.join(", ")
}

fn random_operations<M: Module>(model: &M) -> String {
    let layers = match random_layers(model) {
        none if none.is_empty() => none,
        layers => format!(" ({layers})"),
    };
    format!(
        "the closure draws random numbers{layers}, and a replay would draw the same again. Make them outside and pass them in the batch, or \
         train without dropout"
    )
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::AdamConfig;

    use super::*;
    use crate::FusedAdam;
    use burn_amp_core::MixedPrecision;

    /// It would train on with the learning rate, or the batch, of an earlier step.
    #[test]
    fn a_replay_that_would_read_elsewhere_is_an_error_and_no_step() {
        let device = Device::default().autodiff();
        let amp = MixedPrecision::f16();
        let optim = FusedAdam::new(AdamConfig::new());
        let (model, optim) = amp.prepare(LinearConfig::new(4, 2).init(&device), optim);
        let loss = |model: &Linear, x: Tensor<2>| amp.autocast(x, |x| model.forward(x)).mean();
        let mut step = CapturedStep::new(model, optim, loss).unwrap();
        let batch = Tensor::<2>::ones([3, 4], &device);
        step.step(0.1, batch.clone()).unwrap();
        let moves: [fn(&mut Captured); 2] = [
            |captured| captured.rows[0] = copied(captured.rows[0].clone()),
            |captured| {
                let input = Tensor::<2>::from_bridge(captured.inputs[0].clone());
                captured.inputs[0] = copied(input).into_bridge();
            },
        ];
        for moves in moves {
            // A device without graphs.
            let Some(captured) = step.captured.last_mut() else {
                return;
            };
            moves(captured);
            let before = step.model().weight.val().into_data();
            let error = step.step(0.1, batch.clone()).unwrap_err();
            assert!(matches!(error, AmpError::CannotCapture { .. }), "{error}");
            assert_eq!(step.model().weight.val().into_data(), before);
            step.step(0.1, batch.clone()).unwrap();
            assert!(step.model().weight.val().into_data() != before);
        }
    }
}
