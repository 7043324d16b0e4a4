//! The kernels, in the shapes in which they are launched.

use std::{fmt, sync::Arc};

use burn::tensor::{DType, bf16, f16};
use cubecl::{
    CubeKernel,
    ir::{DeviceIdentity, HardwareProperties, MemoryDeviceProperties, features::Features},
    prelude::*,
    profile::TimingMethod,
};

use crate::kernel::{
    HISTOGRAM_UNITS, finish_histogram, finish_status, histogram_many, inspect_many, mul_cast,
    unscale_in_place, unscale_many,
};

/// Units of a cube, as the launches choose them on a device that allows as many.
const UNITS: u32 = 256;

/// Which kernel a case is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    UnscaleMany,
    UnscaleInPlace,
    InspectMany,
    HistogramMany,
    /// To this dtype.
    MulCast(DType),
    FinishStatus,
    FinishHistogram,
}

/// A kernel in one shape: `tensors` inputs of `dtype`, read in vectors of `width` values.
#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) job: Job,
    pub(super) dtype: DType,
    pub(super) tensors: usize,
    pub(super) width: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            job,
            dtype,
            tensors,
            width,
        } = self;
        write!(f, "{job:?}-{}-{tensors}x{width}", dtype.name())
    }
}

impl Case {
    /// Every kernel in every shape that it is launched in, for inputs of these dtypes.
    pub(super) fn all(dtypes: &[DType]) -> Vec<Self> {
        let mut cases = Vec::new();
        for tensors in [1, 28] {
            for width in [1, 4] {
                let case = |job, dtype| Self {
                    job,
                    dtype,
                    tensors,
                    width,
                };
                for dtype in dtypes {
                    for job in [Job::UnscaleMany, Job::InspectMany, Job::HistogramMany] {
                        cases.push(case(job, *dtype));
                    }
                }
                cases.push(case(Job::UnscaleInPlace, DType::F32));
            }
        }
        for width in [1, 2, 4] {
            for dtype in dtypes {
                for output in dtypes {
                    // Burn multiplies f32.
                    if (*dtype, *output) != (DType::F32, DType::F32) {
                        cases.push(Self {
                            job: Job::MulCast(*output),
                            dtype: *dtype,
                            tensors: 1,
                            width,
                        });
                    }
                }
            }
        }
        for job in [Job::FinishStatus, Job::FinishHistogram] {
            cases.push(Self {
                job,
                dtype: DType::U32,
                tensors: 1,
                width: 1,
            });
        }
        cases
    }

    /// Whether the kernel reads or writes this dtype.
    pub(super) fn has(&self, dtype: DType) -> bool {
        self.dtype == dtype || self.job == Job::MulCast(dtype)
    }

    pub(super) fn kernel(&self) -> Box<dyn CubeKernel> {
        match self.dtype {
            DType::F16 => self.kernel_of::<f16>(),
            DType::BF16 => self.kernel_of::<bf16>(),
            _ => self.kernel_of::<f32>(),
        }
    }

    fn kernel_of<I: Float + CubeElement>(&self) -> Box<dyn CubeKernel> {
        let (tensors, width) = (self.tensors, self.width);
        match self.job {
            Job::UnscaleMany => Box::new(unscale_many::UnscaleMany::<I, f32>::new(
                settings(UNITS),
                device(),
                target(),
                buffers(tensors),
                buffer(),
                scalars(tensors),
                scalars(tensors),
                scalars(tensors + 1),
                buffer(),
                buffer(),
                scalars(tensors),
                (),
                width,
                UNITS,
            )),
            Job::UnscaleInPlace => Box::new(unscale_in_place::UnscaleInPlace::new(
                settings(UNITS),
                device(),
                target(),
                buffers(tensors),
                scalars(tensors),
                scalars(tensors + 1),
                buffer(),
                buffer(),
                scalars(tensors),
                (),
                width,
                UNITS,
            )),
            Job::InspectMany => Box::new(inspect_many::InspectMany::<I>::new(
                settings(UNITS),
                device(),
                target(),
                buffers(tensors),
                scalars(tensors),
                scalars(tensors + 1),
                buffer(),
                scalars(tensors),
                (),
                width,
                UNITS,
            )),
            Job::HistogramMany => Box::new(histogram_many::HistogramMany::<I>::new(
                settings(HISTOGRAM_UNITS),
                device(),
                target(),
                buffers(tensors),
                scalars(tensors + 1),
                buffer(),
                (),
                width,
                HISTOGRAM_UNITS,
            )),
            Job::MulCast(DType::F16) => mul_cast_of::<I, f16>(width),
            Job::MulCast(DType::BF16) => mul_cast_of::<I, bf16>(width),
            Job::MulCast(_) => mul_cast_of::<I, f32>(width),
            Job::FinishStatus => Box::new(finish_status::FinishStatus::new(
                settings(UNITS),
                device(),
                target(),
                buffer(),
                buffer(),
                (),
                UNITS,
            )),
            Job::FinishHistogram => Box::new(finish_histogram::FinishHistogram::new(
                settings(HISTOGRAM_UNITS),
                device(),
                target(),
                buffer(),
                buffer(),
                (),
                HISTOGRAM_UNITS,
            )),
        }
    }
}

fn mul_cast_of<I: Float + CubeElement, O: Float + CubeElement>(
    width: usize,
) -> Box<dyn CubeKernel> {
    Box::new(mul_cast::MulCast::<I, O>::new(
        settings(UNITS),
        device(),
        target(),
        buffer(),
        buffer(),
        (),
        width,
    ))
}

/// As `launch_unchecked` has it: no bound checks.
fn settings(units: u32) -> KernelSettings {
    KernelSettings::new(
        *CubeDim::new_1d(units),
        ExecutionMode::Unchecked,
        AddressType::U32,
    )
}

fn target() -> Arc<TargetProperties> {
    Arc::new(TargetProperties::default())
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

fn scalars(count: usize) -> SequenceCompilationArg<u32> {
    (0..count).map(|_| ()).collect()
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
    let identity = DeviceIdentity {
        name: "none".to_string(),
        fingerprint: "none".to_string(),
        physical: None,
    };
    Arc::new(DeviceProperties::new(
        Features::default(),
        MemoryDeviceProperties::new(u64::MAX, 256),
        hardware,
        TimingMethod::Device,
        identity,
    ))
}
