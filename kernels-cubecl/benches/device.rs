//! What a device can do: products of two large matrices, and a copy. Other benches' figures are read beside these.
//!
//! ```sh
//! cargo bench -p burn-amp-kernels --bench device                                             # Flex, a smaller product
//! BURN_DEVICE=cuda cargo bench -p burn-amp-kernels --bench device --features cuda -- --size 8192
//! ```
//!
//! `torch_peer.py device` does the same in torch.

#[path = "gradients/save.rs"]
mod save;

use burn::tensor::{DType, Device, Distribution, FloatDType, Tensor};
use clap::Parser;
use serde::Serialize;
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

#[derive(Parser)]
struct Options {
    /// Rows and columns of the matrices
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Values of the tensor that is copied
    #[arg(long, default_value_t = 1 << 24)]
    copied: usize,
    /// Seconds for each row
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Writes the rows to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Cargo says so; it means nothing here
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Serialize)]
struct Row {
    what: &'static str,
    dtype: &'static str,
    /// What factors are rounded to before they are multiplied, as a product of them shows.
    rounded_to: Option<&'static str>,
    /// Of the first run, which compiles kernels, and chooses one of many if `autotune` is on.
    first_seconds: f64,
    seconds: f64,
    /// 10^12 operations a second of a product, 10^9 bytes a second of a copy.
    rate: f64,
}

#[derive(Serialize)]
struct File {
    device: String,
    size: usize,
    copied: usize,
    rows: Vec<Row>,
}

/// How many of a factor's bits count: the sum of `size` products of 1 and 1 + 2^-b is above `size` if b does.
fn rounded_to(size: usize, dtype: FloatDType, device: &Device) -> &'static str {
    let ones = Tensor::<2>::ones([size, size], (device, DType::F32)).cast(dtype);
    let keeps = |bit: i32| {
        let more = ones.clone().cast(FloatDType::F32) * (1.0 + 2f64.powi(-bit));
        let product = more.cast(dtype).matmul(ones.clone());
        let value = product.cast(FloatDType::F32).slice([0..1, 0..1]);
        value.into_scalar::<f32>() > size as f32
    };
    match (dtype, keeps(7), keeps(10), keeps(16)) {
        (FloatDType::F32, _, _, true) => "f32",
        (FloatDType::F32, _, true, false) => "tf32",
        (FloatDType::F32, true, false, false) => "bf16",
        (FloatDType::F16, ..) => "f16",
        (FloatDType::BF16, ..) => "bf16",
        _ => "unknown",
    }
}

/// The seconds of the first run, and the median of those that follow.
fn measure(limit: f64, device: &Device, mut work: impl FnMut()) -> (f64, f64) {
    let mut time = || {
        let start = Instant::now();
        work();
        device.sync().expect("the device is well");
        start.elapsed().as_secs_f64()
    };
    let first = time();
    let start = Instant::now();
    let mut seconds = Vec::new();
    while seconds.len() < 3
        || (seconds.len() < 100 && start.elapsed() < Duration::from_secs_f64(limit))
    {
        seconds.push(time());
    }
    seconds.sort_by(f64::total_cmp);
    (first, seconds[seconds.len() / 2])
}

fn main() {
    if let Err(error) = run(&Options::parse()) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

fn run(options: &Options) -> Result<(), String> {
    let device = Device::default();
    let mut file = File {
        device: format!("{device:?}"),
        size: options.size,
        copied: options.copied,
        rows: Vec::new(),
    };
    let mut add = |row: Row| {
        let rounded = row
            .rounded_to
            .map_or(String::new(), |to| format!(", factors in {to}"));
        println!(
            "{} in {}: {:.3} ms, {:.3}{rounded}",
            row.what,
            row.dtype,
            1e3 * row.seconds,
            row.rate
        );
        file.rows.push(row);
        options
            .json
            .as_ref()
            .map_or(Ok(()), |path| save::save(path, &file))
    };
    println!("{device:?}; 10^12 operations a second of products, 10^9 bytes a second of copies\n");
    let whole = Tensor::<1>::ones([options.copied], (&device, DType::F32));
    let (first_seconds, seconds) = measure(options.seconds, &device, || {
        drop(whole.clone().mul_scalar(1.0));
    });
    add(Row {
        what: "copy",
        dtype: "f32",
        rounded_to: None,
        first_seconds,
        seconds,
        rate: 8.0 * options.copied as f64 / seconds / 1e9,
    })?;
    drop(whole);
    for (name, dtype) in [
        ("f16", FloatDType::F16),
        ("bf16", FloatDType::BF16),
        ("f32", FloatDType::F32),
    ] {
        if !device.supports_dtype(DType::from(dtype)) {
            continue;
        }
        let noise = || {
            let noise = Distribution::Uniform(-1.0, 1.0);
            Tensor::<2>::random([options.size; 2], noise, &device).cast(dtype)
        };
        let (left, right) = (noise(), noise());
        let (first_seconds, seconds) = measure(options.seconds, &device, || {
            drop(left.clone().matmul(right.clone()));
        });
        add(Row {
            what: "product",
            dtype: name,
            rounded_to: Some(rounded_to(options.size, dtype, &device)),
            first_seconds,
            seconds,
            rate: 2.0 * (options.size as f64).powi(3) / seconds / 1e12,
        })?;
    }
    Ok(())
}
