//! The kernels, in the shapes in which they are launched.

use std::{collections::BTreeMap, fmt, sync::Arc};

use burn::{backend::cubecl::dtype_to_storage_type, tensor::DType};
use burn_amp_kernels::kernel::pass::{Form, Mode, loads, measure};
use burn_amp_kernels::kernel::schedule::{advance, decide, factors};
use burn_amp_kernels::kernel::{finish, histogram, schedule, update};
use burn_amp_kernels::{UpdateRule, kernel::elementwise::weigh};
use cubecl::ir::{DeviceIdentity, HardwareProperties, MemoryDeviceProperties};
use cubecl::{CubeKernel, ir::features::Features, prelude::*, profile::TimingMethod};

use crate::facts::{Facts, type_name};

/// Floats that the last reduction writes of a tensor.
const FIELDS: usize = 11;

/// Floats that a step takes of a parameter's row.
const ROW: usize = 12;

const SGD: UpdateRule = UpdateRule::Sgd {
    momentum: true,
    nesterov: true,
};
const ADAM: UpdateRule = UpdateRule::Adam { amsgrad: false };
const ADAMW: UpdateRule = UpdateRule::AdamW {
    amsgrad: true,
    cautious: true,
};

/// Units of a cube, as the launches choose them on a device that allows as many.
const UNITS: u32 = 256;

/// What launches depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) dtypes: &'static [DType],
    /// The most values of a vector. It has 16 bytes at most.
    pub(crate) values: usize,
    /// Units of a plane, or 1.
    pub(crate) plane: u32,
    /// Bindings of a launch beside the four that are no tensors.
    pub(crate) buffers: usize,
}

impl Target {
    /// Tensors of a launch that have so many buffers each, of so many.
    fn tensors(self, all: usize, each: usize) -> usize {
        (all / each).min(28)
    }
}

/// A kernel for cubes of so many units, with what it is launched with.
macro_rules! kernel {
    ($kernel:ty, $units:expr; $($arg:expr),*) => {
        Box::new(<$kernel>::new(settings($units), device(), Arc::default(), $($arg),*))
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Padded, or not.
    Pass(Mode, bool),
    Histogram,
    /// By a factor on the device, or on the host.
    MulCast(bool),
    /// In place, or not.
    Blend(bool),
    /// From gradients to parameters.
    Update(UpdateRule),
    /// Of the loss scale, with so many rows of what came to the border, and of what left it.
    Advance(usize),
    /// Rows of an update, whose gradients are clipped or not.
    Decide(UpdateRule, bool),
    /// The factors by which gradients are clipped.
    Factors,
    /// With so many units of a tensor.
    FinishStatus(u32),
    FinishHistogram,
}

/// A kernel in one shape: from `tensors` inputs to an output dtype, in vectors of `width` values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) kernel: Kernel,
    pub(crate) input: DType,
    pub(crate) output: DType,
    pub(crate) tensors: usize,
    pub(crate) width: usize,
    target: Target,
}

/// `inspect-f16-f32-28x8`
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = |is: bool, and: &'static str| if is { and } else { "" };
        let (kernel, and) = match self.kernel {
            Kernel::Pass(mode, padded) => (format!("{mode:?}"), when(padded, "_padded")),
            Kernel::MulCast(on_device) => ("mulcast".into(), when(on_device, "_on_device")),
            Kernel::Blend(in_place) => ("blend".into(), when(in_place, "_in_place")),
            Kernel::Update(rule) => (name(rule), ""),
            Kernel::Advance(border) => ("advance".into(), ["", "_at_border", "_given"][border]),
            Kernel::Decide(rule, clipped) => {
                let name = format!("decide_{}", name(rule));
                (name, when(clipped, "_clipped"))
            }
            Kernel::FinishStatus(units) => ("finishstatus".into(), when(units == 1, "_few")),
            other => (format!("{other:?}"), ""),
        };
        let (input, output) = (self.input.name(), self.output.name());
        let (kernel, tensors, width) = (kernel.to_lowercase(), self.tensors, self.width);
        write!(f, "{kernel}{and}-{input}-{output}-{tensors}x{width}")
    }
}

/// `adamw` for `AdamW { .. }`
fn name(rule: UpdateRule) -> String {
    let shown = format!("{rule:?}");
    let name = shown.split(' ').next().unwrap_or_default();
    name.to_lowercase()
}

impl Shape {
    /// Every kernel in the shapes that it is launched in.
    pub(crate) fn all(target: Target) -> Vec<Self> {
        let (mut shapes, float) = (Vec::new(), DType::F32);
        let mut add = |kernel, (input, output), tensors, width| {
            shapes.push(Self {
                kernel,
                input,
                output,
                tensors,
                width,
                target,
            });
        };
        for input in target.dtypes.iter().copied() {
            let widest = (16 / input.size()).min(target.values);
            for (tensors, width) in [(1, 1), (1, widest), (28, widest)] {
                let mut pass = |mode, output, tensors| {
                    add(Kernel::Pass(mode, false), (input, output), tensors, width);
                };
                let written = tensors.min(target.tensors(target.buffers, 2));
                pass(Mode::Inspect, float, tensors);
                pass(Mode::Write, float, written);
                pass(Mode::InPlace, input, tensors);
                if input != float {
                    pass(Mode::Write, input, written);
                }
                add(Kernel::Histogram, (input, float), tensors, width);
            }
            add(Kernel::Pass(Mode::InPlace, true), (input, input), 1, widest);
            add(
                Kernel::Pass(Mode::Inspect, true),
                (input, float),
                28,
                widest,
            );
            for width in [1, widest] {
                for output in target.dtypes.iter().copied() {
                    // Burn multiplies f32.
                    if input != float || output != float {
                        for on_device in [false, true] {
                            add(Kernel::MulCast(on_device), (input, output), 1, width);
                        }
                    }
                }
                for in_place in [true, false] {
                    add(Kernel::Blend(in_place), (input, float), 1, width.min(4));
                }
            }
        }
        // The fewest and the most buffers, and each way to compute.
        let half = *target.dtypes.last().expect("a dtype");
        for (rule, input, output, width) in [
            (SGD, float, float, 1),
            (ADAM, float, float, 4),
            (SGD, float, half, 1),
            (ADAMW, half, half, 4),
        ] {
            // Gradient and parameter, and a master of the latter.
            let buffers = 2 + usize::from(output != float) + rule.states();
            let tensors = match width {
                1 => 1,
                _ => target.tensors(target.buffers + 1, buffers),
            };
            add(Kernel::Update(rule), (input, output), tensors, width);
        }
        let mut others = vec![Kernel::Factors, Kernel::FinishHistogram];
        others.extend([1, finish::UNITS].map(Kernel::FinishStatus));
        others.extend([0, 1, 2].map(Kernel::Advance));
        for clipped in [false, true] {
            others.extend([SGD, ADAM, ADAMW].map(|rule| Kernel::Decide(rule, clipped)));
        }
        for kernel in others {
            add(kernel, (DType::U32, DType::U32), 1, 1);
        }
        shapes
    }

    /// Whether the kernel reads or writes this dtype.
    pub(crate) fn has(&self, dtype: DType) -> bool {
        self.input == dtype || self.output == dtype
    }

    /// What its sources are meant to show.
    pub(crate) fn expected(&self) -> Facts {
        let (tensors, width) = (self.tensors, self.width);
        let input = type_name(self.input.name(), width);
        let output = type_name(self.output.name(), width);
        let floats = |count| ("f32".to_string(), count);
        let (loads, stores, magnitudes) = match self.kernel {
            Kernel::Pass(mode, padded) => {
                let vectors = loads(mode, padded, width) as usize;
                let (loads, stores) = ((input, tensors * vectors), (output, tensors * vectors));
                // What is done with the values stands in the code once, whichever tensor they are of.
                let magnitudes = vectors * width;
                match mode {
                    Mode::Inspect => (vec![loads], vec![], magnitudes),
                    // After scaling, and before it.
                    _ => (vec![loads, floats(2)], vec![stores], 2 * magnitudes),
                }
            }
            Kernel::Histogram => (vec![(input, tensors)], vec![], width),
            Kernel::MulCast(on_device) => {
                let mut loads = vec![(input, 1)];
                loads.extend(on_device.then(|| floats(1)));
                (loads, vec![(output, 1)], 0)
            }
            Kernel::Blend(_) => (vec![(output.clone(), 1), (input, 1)], vec![(output, 1)], 0),
            Kernel::Update(rule) => {
                let wide = type_name("f32", width);
                let mut stores = vec![(wide, tensors * (1 + rule.states()))];
                if self.output != DType::F32 {
                    stores.push((output, tensors));
                }
                let loads = [&[(input, tensors), floats(ROW)], &stores[..]].concat();
                (loads, stores, 0)
            }
            Kernel::Advance(border) => {
                // Four counts of what is not finite in each; and the largest magnitude, at the border only where something has left it.
                let rows = 4 * (1 + border) + [1, 1, 3][border];
                (vec![floats(rows)], vec![], 0)
            }
            Kernel::Decide(rule, clipped) => {
                // Both betas; Adam's epsilon; the scale, and its factor.
                let loads = 2 + usize::from(rule == ADAM) + 2 * usize::from(clipped);
                // What was sent; whether it is taken and fresh; two that the step's time decides; the scale.
                let stores = 3 + 2 * usize::from(rule != SGD) + usize::from(clipped);
                (vec![floats(loads)], vec![floats(stores)], 0)
            }
            Kernel::Factors => (vec![], vec![floats(2)], 0),
            Kernel::FinishStatus(_) => (vec![], vec![floats(FIELDS)], 0),
            Kernel::FinishHistogram => (vec![], vec![floats(2)], 0),
        };
        Facts {
            loads: total(loads),
            stores: total(stores),
            magnitudes,
            unwanted: Vec::new(),
        }
    }

    /// Floats of a row that the rule does not name: a compiler may leave out to load them.
    pub(crate) fn unread(&self) -> usize {
        match self.kernel {
            Kernel::Update(SGD) => 5,
            Kernel::Update(ADAM) => 1,
            _ => 0,
        }
    }

    pub(crate) fn kernel(&self) -> Box<dyn CubeKernel> {
        let (tensors, width) = (self.tensors, self.width);
        let dtypes = [self.input, self.output].map(dtype_to_storage_type);
        match self.kernel {
            Kernel::Pass(mode, padded) => {
                let form = Form {
                    mode,
                    units: UNITS,
                    plane: self.target.plane,
                    padded,
                };
                let products = tensors * usize::from(mode == Mode::Write);
                let factors = usize::from(mode != Mode::Inspect);
                kernel!(
                    measure::Measure, UNITS;
                    buffers(tensors), buffers(products), buffers(factors), buffer(), buffer(), (), (), (), width, form, dtypes
                )
            }
            Kernel::MulCast(on_device) => kernel!(
                weigh::Weigh, UNITS;
                buffer(), buffers(0), buffer(), (), (), buffers(usize::from(on_device)), buffers(0), width, dtypes
            ),
            Kernel::Blend(in_place) => {
                // The target is the second buffer.
                let inplace = in_place.then_some(1);
                kernel!(
                    weigh::Weigh, UNITS;
                    buffer(), buffers(1), BufferCompilationArg { inplace }, (), (), buffers(0), buffers(0), width, dtypes
                )
            }
            Kernel::Histogram => kernel!(
                histogram::histogram_many::HistogramMany, histogram::UNITS;
                buffers(tensors), buffer(), (), (), buffer(), (), width, histogram::UNITS, dtypes[0]
            ),
            Kernel::Update(rule) => {
                let images = usize::from(self.output != DType::F32) * tensors;
                let wide = tensors * (1 + rule.states());
                let units = update::units(tensors + images + wide);
                kernel!(
                    update::update_many::UpdateMany, units;
                    buffers(tensors), buffers(images), buffers(wide), buffer(), (), buffer(), (), (), width, rule, units, dtypes
                )
            }
            Kernel::Advance(border) => kernel!(
                advance::Advance, schedule::UNITS;
                buffer(), buffer(), buffers(border), buffer(), (), schedule::UNITS
            ),
            Kernel::Decide(rule, clipped) => kernel!(
                decide::Decide, finish::UNITS;
                buffer(), buffer(), buffers(usize::from(clipped)), buffer(), rule
            ),
            Kernel::Factors => kernel!(
                factors::Factors, schedule::UNITS;
                buffer(), buffer(), buffer(), schedule::UNITS
            ),
            Kernel::FinishStatus(units) => kernel!(
                finish::finish_status::FinishStatus, finish::UNITS;
                buffer(), buffer(), buffer(), (), (), units
            ),
            Kernel::FinishHistogram => kernel!(
                histogram::finish_histogram::FinishHistogram, histogram::UNITS;
                buffer(), buffer(), (), histogram::UNITS
            ),
        }
    }
}

/// As `launch_unchecked` has it: no bound checks.
fn settings(units: u32) -> KernelSettings {
    let dim = *CubeDim::new_1d(units);
    KernelSettings::new(dim, ExecutionMode::Unchecked, AddressType::U32)
}

fn buffer() -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

fn buffers<T>(count: usize) -> SequenceCompilationArg<T>
where
    T: LaunchArg<CompilationArg = BufferCompilationArg>,
{
    (0..count).map(|_| buffer()).collect()
}

fn device() -> Arc<DeviceProperties> {
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: 32,
        plane_size_max: 32,
        max_bindings: 32,
        max_shared_memory_size: 16 * 1024,
        max_cube_count: (65_535, 65_535, 65_535),
        max_units_per_cube: 256,
        max_cube_dim: (256, 256, 64),
        num_streaming_multiprocessors: None,
        num_cpu_cores: None,
        last_level_cache_size: None,
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        max_vector_size: 4,
        cube_mma_reserved_shared_memory: 0,
    };
    Arc::new(DeviceProperties::new(
        Features::default(),
        MemoryDeviceProperties::new(u64::MAX, 256),
        hardware,
        TimingMethod::Device,
        DeviceIdentity::default(),
    ))
}

/// Sums of the counts of each type.
fn total(counts: Vec<(String, usize)>) -> BTreeMap<String, usize> {
    let mut sums = BTreeMap::new();
    for (name, count) in counts {
        *sums.entry(name).or_default() += count;
    }
    sums
}
