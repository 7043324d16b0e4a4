//! Tests and benches of burn-amp in one program: `carry.sh` adds them below as modules. What is here is for `run.sh` alone.
#![allow(dead_code, missing_docs)]

mod page;

/// Whether kernels compute. With a stand-in for the driver they do not, and only their compilation and their launches are tried.
fn computes() -> bool {
    std::env::var_os("CARRY_EMULATED").is_none()
}

/// The first question to a machine: one kernel of each kind, a product among them, and the right results.
#[test]
#[ignore = "a step of run.sh"]
fn probe() {
    use burn::tensor::{DType, Device, FloatDType, Tensor};
    let device = Device::default();
    let values = Tensor::<1>::from_floats([1.0, 2.0, f32::INFINITY], &device);
    let mut list = burn_amp_kernels::TensorList::new();
    list.push(values.clone() + 1.0);
    let status = burn_amp_kernels::inspect(list).expect("f32 is known");
    let found = status.read()[0].non_finite;
    let size = [64, 64];
    let dtypes = [FloatDType::F32, FloatDType::F16, FloatDType::BF16];
    let known = dtypes
        .into_iter()
        .filter(|dtype| device.supports_dtype(DType::from(*dtype)));
    let products = known.map(|dtype| {
        let ones = Tensor::<2>::ones(size, (&device, DType::from(dtype)));
        ones.clone()
            .matmul(ones)
            .cast(FloatDType::F32)
            .sum()
            .into_scalar::<f32>()
    });
    let products: Vec<f32> = products.collect();
    if computes() {
        assert_eq!(found, 1, "values that are not finite");
        let sum = 64.0 * 64.0 * 64.0;
        assert!(
            products.iter().all(|product| *product == sum),
            "{products:?}"
        );
    }
    println!("\ndevice: {device:?}");
}

/// The digits in f32, f16 and scaled f16: what the loss scale is for.
#[test]
#[ignore = "a step of run.sh"]
fn digits_table() {
    use digits::data::Digits;
    use digits::report::{Summary, table};
    use digits::training::{Run, Trainer};
    let device = burn::tensor::Device::default();
    let data = Digits::load(&device).expect("the data is in the program");
    let mut summaries = Vec::new();
    for run in Run::ALL {
        let mut trainer = Trainer::new(run, 0, 300, &device).expect("the dtype is known");
        while !trainer.is_done() {
            trainer.step(&data).expect("a step");
        }
        let accuracy = trainer.test_accuracy(&data);
        summaries.push(Summary::new(run, &trainer.history, accuracy));
        // Each time: whoever stops the program keeps what was trained.
        println!("\n{}", table(&summaries));
    }
    let [full, _, scaled] = [0, 1, 2].map(|index| summaries[index].test_accuracy);
    let alike = (scaled - full).abs() < 0.03;
    assert!(
        alike || !computes(),
        "f16 with a loss scale trains like f32"
    );
}

/// A bench's options: the test program has options of its own.
fn arguments() -> Vec<String> {
    let given = std::env::var("CARRY_ARGUMENTS").unwrap_or_default();
    let given = given.split_whitespace().map(String::from);
    std::iter::once("carry".to_owned()).chain(given).collect()
}
