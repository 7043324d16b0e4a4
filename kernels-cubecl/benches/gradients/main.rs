//! How long a pass over all gradients takes, beside a copy of them and the same job in Burn's operations.

mod jobs;
mod launches;
mod report;
mod save;
mod sets;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use burn::tensor::{DType, Device};
use clap::{Parser, ValueEnum};

use jobs::{Gradients, Run};
use report::{Row, Torch};

#[derive(Parser)]
struct Options {
    /// The device to measure.
    #[arg(long, value_enum, default_value_t = Backend::Flex)]
    backend: Backend,
    /// Few repetitions and, but for CUDA and ROCm, a smaller large tensor: less than a minute.
    #[arg(long)]
    quick: bool,
    /// Writes the rows to a file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The output of torch_peer.py, for a column of ratios.
    #[arg(long, value_name = "FILE")]
    torch: Option<PathBuf>,
    /// Measures the sets whose names contain this alone; several with commas between, in that order.
    #[arg(long, value_delimiter = ',', default_value = "")]
    set: Vec<String>,
    /// Leaves out the same job in Burn's operations: thousands of launches.
    #[arg(long)]
    without_composed: bool,
    /// Seconds for each set and dtype.
    #[arg(long)]
    seconds: Option<f64>,
    /// Cargo says so; it means nothing here.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Backend {
    Flex,
    Wgpu,
    Vulkan,
    Metal,
    Webgpu,
    Cuda,
    Rocm,
    Cpu,
}

impl Backend {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn device(self) -> Result<Device, String> {
        match self {
            #[cfg(feature = "flex")]
            Self::Flex => Ok(Device::flex()),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => Ok(Device::wgpu(burn::tensor::DeviceKind::default())),
            #[cfg(feature = "vulkan")]
            Self::Vulkan => Ok(Device::vulkan(burn::tensor::DeviceKind::default())),
            #[cfg(feature = "metal")]
            Self::Metal => Ok(Device::metal(burn::tensor::DeviceKind::default())),
            #[cfg(feature = "webgpu")]
            Self::Webgpu => Ok(Device::webgpu(burn::tensor::DeviceKind::default())),
            #[cfg(feature = "cuda")]
            Self::Cuda => Ok(Device::cuda(0)),
            #[cfg(feature = "rocm")]
            Self::Rocm => Ok(Device::rocm(0)),
            #[cfg(feature = "cpu")]
            Self::Cpu => Ok(Device::cpu()),
            #[allow(unreachable_patterns)]
            absent => {
                let name = absent.name();
                Err(format!(
                    "{name} is not compiled in: add `--features {name}`"
                ))
            }
        }
    }
}

fn main() {
    if let Err(message) = run(&Options::parse()) {
        eprintln!("error: {message}");
        std::process::exit(1);
    }
}

fn run(options: &Options) -> Result<(), String> {
    let device = options.backend.device()?;
    let backend = options.backend.name();
    let torch = options.torch.as_deref().map(Torch::load).transpose()?;
    if let Some(torch) = &torch {
        torch.check(&backend)?;
    }
    let seconds = options
        .seconds
        .unwrap_or(if options.quick { 1.5 } else { 30.0 });
    // So few lie in the cache of a GPU for servers.
    let is_server = matches!(options.backend, Backend::Cuda | Backend::Rocm);
    let large = match options.quick && !is_server {
        true => 1 << 24,
        false => large(),
    };
    let flex = options.backend == Backend::Flex;
    let threads = rayon::current_num_threads();
    println!("{backend}, {threads} CPU threads, median of interleaved runs");
    let mut rows = Vec::new();
    let named = |name| (sets::all(large).into_iter()).filter(move |set| set.name.contains(name));
    // In the order of the names.
    for set in options.set.iter().map(String::as_str).flat_map(named) {
        let (elements, tensors) = (set.elements(), set.shapes.len());
        println!("\n{}: {tensors} tensors, {elements} elements", set.name);
        report::header();
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            if !device.supports_dtype(dtype) {
                println!("{dtype:?} is not supported by this device");
                continue;
            }
            let mut gradients = Gradients::new(&set, dtype, &device, flex);
            let times = measure(
                &mut gradients,
                &jobs(&device, dtype, flex, !options.without_composed),
                !flex,
                Duration::from_secs_f64(seconds),
            );
            let found = Row::of(&backend, &set, dtype, &times, torch.as_ref());
            found.iter().for_each(Row::print);
            rows.extend(found);
            // Each time: whoever stops the bench keeps what was measured.
            if let Some(file) = &options.json {
                save::save(file, &report::File { rows: &rows })?;
            }
        }
    }
    Ok(())
}

/// 256 M elements need 12 GB with all copies and an optimizer's state; 64 M where that much is not free.
fn large() -> usize {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory.lines().find_map(|line| {
        let kilobytes = line
            .strip_prefix("MemAvailable:")?
            .trim()
            .strip_suffix(" kB")?;
        kilobytes.parse::<u64>().ok()
    });
    let enough = available.is_some_and(|kilobytes| kilobytes > 16 << 20);
    if enough { 1 << 28 } else { 1 << 26 }
}

struct Job {
    name: &'static str,
    work: fn(&mut Gradients) -> Run,
}

/// The seconds of each run of a job.
struct Times {
    job: &'static str,
    seconds: Vec<f64>,
    reads: u32,
    /// Of one run, on a CubeCL device.
    launches: Option<u32>,
}

fn jobs(device: &Device, dtype: DType, flex: bool, composed: bool) -> Vec<Job> {
    let mut jobs = vec![
        Job {
            name: "unscale_in_place",
            work: |g| g.in_place(),
        },
        Job {
            name: "unscale",
            work: |g| g.out_of_place(),
        },
        Job {
            name: "inspect",
            work: |g| g.inspect(),
        },
        Job {
            name: "histogram",
            work: |g| g.histogram(),
        },
        Job {
            name: "copy",
            work: |g| g.copy(),
        },
        Job {
            name: "composed",
            work: |g| g.composed(true),
        },
        Job {
            name: "composed_inspect",
            work: |g| g.composed(false),
        },
    ];
    jobs.push(Job {
        name: "clip",
        work: |g| g.clip(),
    });
    // Optimizers are given gradients in f32.
    if dtype == DType::F32 {
        jobs.extend([
            Job {
                name: "sgd",
                work: |g| g.update(jobs::SGD),
            },
            Job {
                name: "adam",
                work: |g| g.update(jobs::ADAM),
            },
            Job {
                name: "adamw",
                work: |g| g.update(jobs::ADAM_W),
            },
        ]);
    }
    // From f32 to f16, or from either half to f32.
    if dtype != DType::F32 || device.supports_dtype(DType::F16) {
        jobs.push(Job {
            name: "scaled_cast",
            work: |g| g.cast(false),
        });
        jobs.push(Job {
            name: "composed_cast",
            work: |g| g.cast(true),
        });
    }
    if flex {
        jobs.push(Job {
            name: "copy_into",
            work: |g| g.copy_into(),
        });
    }
    jobs.retain(|job| composed || !job.name.starts_with("composed"));
    jobs
}

/// Each job in turn, until the time is over: at least three times, at most 101 times, and once what takes all that time.
fn measure(gradients: &mut Gradients, jobs: &[Job], on_cube: bool, limit: Duration) -> Vec<Times> {
    let times = |job: &Job| Times {
        job: job.name,
        seconds: Vec::new(),
        reads: 0,
        launches: None,
    };
    let mut times: Vec<Times> = jobs.iter().map(times).collect();
    let most = limit.as_secs_f64();
    let start = Instant::now();
    for round in 0..=101 {
        for (job, times) in jobs.iter().zip(&mut times) {
            // The first round compiles kernels and warms caches.
            if round == 0 {
                let (run, launches) = launches::count(on_cube, || (job.work)(gradients));
                (times.reads, times.launches) = (run.reads, launches);
            } else if times.seconds.first().is_none_or(|first| *first < most) {
                times.seconds.push((job.work)(gradients).time.as_secs_f64());
            }
        }
        if round >= 3 && start.elapsed() > limit {
            break;
        }
    }
    times
}
