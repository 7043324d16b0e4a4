//! What a pass costs on a CubeCL device: launches, compilations, and when it waits.
//!
//! On the device that the features choose, or `BURN_DEVICE` where there are several. The hooks are process-wide:
//! one test at a time.
#![cfg(feature = "cubecl")]

#[path = "backend/alone.rs"]
mod alone;
#[path = "../benches/gradients/launches.rs"]
mod launches;
#[path = "backend/skipped.rs"]
mod skipped;

use alone::{GPT2, alone, cube, drain, most_launches};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData, bf16};
use burn_amp_kernels::*;
use burn_autodiff::Autodiff;
use burn_cubecl::CubeBackend;
use cubecl::launched::LaunchedKernels;
use skipped::skipped;

/// What work gives, and the launches of this crate's kernels, by name.
fn ours<T>(work: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
    let (given, mut names) = launches::names(work);
    names.retain(|name| name.contains("burn_amp_kernels"));
    (given, names)
}

fn list<const D: usize>(tensors: impl IntoIterator<Item = Tensor<D>>) -> TensorList {
    let mut list = TensorList::new();
    tensors.into_iter().for_each(|tensor| list.push(tensor));
    list
}

/// As many tensors as GPT-2 124M has, with sizes that divide as its own do.
fn gpt2(dtype: DType) -> TensorList {
    let options = (&Device::default(), dtype);
    list((0..GPT2).map(|index| Tensor::<2>::ones([4 + index % 3, 48], options) * 0.5))
}

fn factor(value: f32) -> Tensor<1> {
    Tensor::from_floats([value], &Device::default())
}

fn step(list: TensorList, value: f32) -> TensorList {
    let (list, status) = unscale(list, factor(value)).expect("a supported dtype");
    assert_eq!(status.read().len(), list.len());
    list
}

/// The bindings that a device allows decide it: WebGPU's minimum is 8, of which a launch needs 4 for itself.
#[test]
fn few_launches() {
    let _alone = alone();
    let device = Device::default();
    let dtypes = [DType::F32, DType::F16].into_iter();
    for dtype in dtypes.filter(|dtype| device.supports_dtype(*dtype)) {
        let list = gpt2(dtype);
        drain(&device);
        // With 32 bindings, 27 tensors, or 13 that have products beside them; and the last reduction.
        let passes: [(_, _, fn(TensorList)); 3] = [
            ("inspect", 7, |list| drop(inspect(list).unwrap().read())),
            ("unscale", 12, |list| drop(step(list, 0.5))),
            ("histogram", 7, |list| _ = histogram(list).unwrap().read()),
        ];
        for (what, most, pass) in passes {
            let ((), seen) = ours(|| pass(list.clone()));
            let range = 2..=most_launches(most) + 1;
            assert!(range.contains(&seen.len()), "{what}, {dtype:?}: {seen:?}");
        }
    }
}

fn count(launches: &[&str], kernel: &str) -> usize {
    launches.iter().filter(|name| name.contains(kernel)).count()
}

/// The products of a step, and whether they have taken the place of the gradients.
fn in_place(list: TensorList) -> (TensorList, bool) {
    let before = list.addresses();
    let products = step(list, 0.5);
    let after = products.addresses();
    assert!(after.iter().all(Option::is_some));
    (products, after == before)
}

/// Gradients that nobody else holds are overwritten, whatever the order of their dimensions; others are not.
#[test]
fn in_place_where_it_may_be() {
    let _alone = alone();
    let [mut list, held] = [(); 2].map(|()| gpt2(DType::F32));
    let plane = Tensor::<2>::ones([64, 96], &Device::default()) * 3.0;
    let transposed = self::list([plane.transpose()]);
    drain(&Device::default());

    let kept = held.addresses();
    let (products, _) = in_place(held.clone());
    let taken = |place| kept.contains(place);
    assert!(!products.addresses().iter().any(taken));
    drop((held, products));
    for _ in 0..2 {
        let (products, is_in_place) = in_place(list);
        assert!(is_in_place);
        list = products;
    }
    assert!(in_place(transposed).1);
}

/// Nor is it in the way that the gradients were just made, and that others were read before.
#[test]
fn in_place_right_after_the_backward_pass() {
    let _alone = alone();
    let device = Device::default().autodiff();
    if std::env::var("BURN_DEVICE").is_ok_and(|name| name.starts_with("cpu")) {
        return skipped("the runtime for CPUs holds memory until the work on it is done");
    }
    for _ in 0..5 {
        let leaf = Tensor::<2>::ones([64, 96], &device).require_grad();
        let mut value = leaf.clone();
        for _ in 0..50 {
            value = value.matmul(leaf.clone().transpose()).matmul(leaf.clone()) * 1e-4;
        }
        let grad = leaf.grad(&value.sum().backward()).unwrap();
        let list = list([grad]);
        drop((leaf, Tensor::<2>::ones([64, 96], &device).into_data()));
        assert!(in_place(list).1);
    }
}

/// As few launches as bindings allow, in place, and nothing beside them: each takes as many parameters as there are bindings
/// for, up to 28.
#[test]
fn a_step_is_a_few_launches() {
    let _alone = alone();
    let device = Device::default();
    let tensor = |index: usize| Tensor::<2>::ones([4 + index % 3, 48], &device);
    let mut kept: Vec<Tensor<2>> = (0..3 * GPT2).map(|index| tensor(index / 3)).collect();
    for taken in [1.0, 1.0, 0.0] {
        let own = kept.chunks_exact(3).enumerate();
        let list = list(own.flat_map(|(index, own)| [&[tensor(index)][..], own].concat()));
        kept.clear();
        let rows = Tensor::full([GPT2, 12], taken, &device);
        drain(&device);
        let (updated, seen) = launches::names(|| {
            let updated = update(UpdateRule::Adam { amsgrad: false }, list, rows);
            drain(&device);
            updated.expect("kernels")
        });
        // With 32 bindings, 7 parameters.
        let is_wgpu = format!("{device:?}").contains("Wgpu");
        let most = if is_wgpu { most_launches(22) } else { 8 };
        assert!((2..=most).contains(&seen.len()), "{seen:?}");
        assert_eq!(count(&seen, "UpdateMany"), seen.len(), "{seen:?}");
        kept.extend((0..updated.len()).map(|index| updated.get(index)));
    }
}

/// One launch, in place; or none of ours, where Fusion has put the sum into a kernel of its own.
#[test]
fn a_sum_is_one_kernel() {
    let _alone = alone();
    let device = Device::default();
    let target = Tensor::<1>::ones([4096], &device) * 2.0;
    let source = Tensor::<1>::ones([4096], &device) * 3.0;
    drain(&device);
    let (sum, launches) = ours(|| blend(target, source, 0.5, 2.0).into_data());
    assert_eq!(sum, TensorData::new(vec![7f32; 4096], [4096]));
    match cfg!(feature = "fusion") {
        true => assert_eq!(launches, Vec::<&str>::new()),
        false => assert_eq!((launches.len(), count(&launches, "weigh")), (1, 1)),
    }
}

/// None of ours in the backward pass of a cast, which Fusion has put into a kernel of its own; and no more of them with a factor that is on the device, but one
/// where that is multiplied by a ratio.
#[test]
#[cfg(feature = "fusion")]
fn a_scaled_gradient_is_in_a_kernel_of_fusions() {
    let _alone = alone();
    let device = Device::default().autodiff();
    if !device.supports_dtype(DType::F16) {
        return skipped("no f16");
    }
    let backward = |by: Factor| {
        let input = Tensor::<2>::ones([64, 64], (&device, DType::F16)).require_grad();
        let output = scaled_cast(input.clone(), FloatDType::F32, by) * 2.0;
        drain(&device);
        let (grad, launches) = launches::names(|| {
            let grads = output.sum().backward();
            input.grad(&grads).unwrap().into_data()
        });
        assert!(grad.iter::<f32>().all(|value| value == 8.0));
        assert_eq!(count(&launches, "burn_amp_kernels"), 0, "{launches:?}");
        launches.len()
    };
    let most = backward(4.0.into());
    assert!(backward(Factor::on_device(1.0, factor(4.0))) <= most);
    assert!(backward(Factor::on_device(0.5, factor(8.0))) <= most + 1);
}

/// Nothing has run when the backward pass is over: so nothing was read.
#[test]
#[cfg(feature = "fusion")]
fn a_factor_on_the_device_is_not_read() {
    let _alone = alone();
    if !Device::default().supports_dtype(DType::F16) {
        return skipped("no f16");
    }
    let input = Tensor::<2>::ones([8, 8], &Device::default().autodiff()).require_grad();
    drain(&Device::default());
    let (grad, launches) = launches::names(|| {
        let there = Factor::on_device(0.5, factor(4.0) * 2.0);
        let output = scaled_cast(input.clone() * 3.0, FloatDType::F16, there);
        let grads = output.cast(FloatDType::F32).sum().backward();
        input.grad(&grads)
    });
    assert_eq!(launches, Vec::<&str>::new());
    let grad: Vec<f32> = grad.unwrap().into_data().iter().collect();
    assert_eq!(grad, vec![12.0; 64]);
}

/// One launch for the backward pass of a cast on the backend below Fusion, Burn's kernels included.
#[test]
fn a_scaled_gradient_is_one_launch_without_fusion() {
    type Unfused = Autodiff<CubeBackend>;
    let _alone = alone();
    let device = Device::default();
    let Some(unfused) = cube(&device) else {
        return skipped("not a device of CubeCL's");
    };
    let dtypes = [FloatDType::F16, FloatDType::BF16, FloatDType::F32];
    let dtypes = || (dtypes.into_iter()).filter(|dtype| device.supports_dtype(*dtype));
    for (from, to) in dtypes().flat_map(|from| dtypes().map(move |to| (from, to))) {
        let ones = |dtype| Unfused::float_ones([64, 64].into(), unfused, dtype);
        let input = Unfused::float_set_require_grad(ones(from), true);
        let backward = |output| {
            Unfused::sync(unfused).expect("the device is well");
            let (grads, launches) = launches::names(|| Unfused::backward(output));
            assert!(Unfused::grad(&input, &grads).is_some());
            launches
        };
        // What Burn launches for the gradient of an output alone.
        let without = backward(Unfused::float_mul_scalar(input.clone(), 1.0.into()));
        let four = Unfused::float_from_data([4.0f32].into(), unfused);
        for (factor, scale) in [(4.0, vec![]), (1.0, vec![four])] {
            let scale = TensorVec(scale);
            let with = backward(Unfused::amp_cast(input.clone(), to, factor, scale, None));
            let what = format!("{from:?} to {to:?}: {with:?}, {without:?}");
            assert_eq!(with.len(), without.len(), "{what}");
            let ours = usize::from((from, to) != (FloatDType::F32, FloatDType::F32));
            assert_eq!(count(&with, "weigh"), ours, "{with:?}");
        }
    }
}

/// Later steps launch kernels that the first has compiled, whatever scale and values are.
#[test]
fn nothing_is_compiled_after_the_first_step() {
    let _alone = alone();
    let list = gpt2(DType::F32);
    drain(&Device::default());
    let first = LaunchedKernels::new();
    let mut list = step(list, 0.25);
    let first = first.finish();
    assert!(!first.is_empty());
    let later = LaunchedKernels::new();
    for value in [1.0 / 65536.0, f32::INFINITY, 2.0, f32::MIN_POSITIVE] {
        list = step(list, value);
    }
    assert_eq!(later.finish().difference(&first).count(), 0, "are new");
}

/// Lists may have another length every step: frozen and unused parameters have no gradients.
#[test]
fn lengths_of_lists_share_kernels() {
    let _alone = alone();
    let twos = || Tensor::<1>::ones([64], &Device::default()) * 2.0;
    let lists = Vec::from_iter((1..=28).map(|count| list((0..count).map(|_| twos()))));
    drain(&Device::default());
    let launched = LaunchedKernels::new();
    for list in lists {
        assert_eq!(inspect(list).unwrap().read()[0].max_abs, 2.0);
    }
    let kernels = launched.finish().len();
    // The last reduction is one of them.
    assert!((2..=4).contains(&kernels), "{kernels} kernels");
}

/// With fusion nothing runs until somebody asks, and then everything does.
#[test]
#[cfg(feature = "fusion")]
fn lazy_with_fusion() {
    let _alone = alone();
    let list = gpt2(DType::F32);
    let device = Device::default();
    drain(&device);
    let ((_products, status), before) = ours(|| unscale(list, factor(0.5)).unwrap());
    let (rows, after) = ours(|| status.read());
    assert!(!rows.is_empty() && after.len() > 1, "{after:?}");
    let ((), again) = ours(|| drain(&device));
    assert_eq!([before, again], [const { Vec::<&str>::new() }; 2]);
}

/// WGSL has no bf16: an error that says where, and what to train in, ahead of any compiler.
#[test]
fn a_dtype_that_the_device_lacks() {
    let _alone = alone();
    let device = Device::default();
    let ones = TensorData::new(vec![bf16::ONE; 4], [4]);
    let list = || list([Tensor::<1>::from_data(ones.clone(), (&device, DType::BF16))]);
    if device.supports_dtype(DType::BF16) {
        return skipped("it has bf16");
    }
    let ((), launched) = ours(|| {
        for error in [
            inspect(list()).unwrap_err(),
            unscale(list(), factor(1.0)).unwrap_err(),
            histogram(list()).unwrap_err(),
        ] {
            let place = &error.device;
            let message = format!("{place} has no BF16: train in F16 or F32 there");
            assert_eq!(error.to_string(), message);
        }
    });
    assert_eq!(launched, Vec::<&str>::new());
}

/// A kernel that reads the memory of another device would read anything.
#[test]
#[should_panic(expected = "are on one device")]
#[cfg(feature = "flex")]
fn tensors_of_two_devices_are_refused() {
    let devices = [Device::default(), Device::flex()];
    let _ = inspect(list(devices.map(|device| Tensor::<1>::ones([4], &device))));
}
