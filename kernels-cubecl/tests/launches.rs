//! What a pass costs on a CubeCL device: launches, compilations, and when it waits.
//!
//! On the device that the features choose, or `BURN_DEVICE` where there are several. The hooks are process-wide:
//! one test at a time.
#![cfg(feature = "cubecl")]

#[path = "backend/alone.rs"]
mod alone;
#[path = "../benches/gradients/launches.rs"]
mod launches;

use alone::{GPT2, alone, cube, is_software, most_launches};
use burn::{
    backend::{AutodiffBackend, Backend, ops::FloatTensorOps},
    tensor::{DType, Device, FloatDType, Tensor, TensorData, bf16},
};
use burn_amp_kernels::{
    CastOps, Factor, TensorList, TensorVec, UpdateRow, UpdateRule, blend, histogram, inspect,
    scaled_cast, unscale, update,
};
use burn_autodiff::Autodiff;
use burn_cubecl::CubeBackend;
use cubecl::launched::LaunchedKernels;

/// The launches of this crate's kernels, by name.
fn ours(work: impl FnOnce()) -> Vec<&'static str> {
    let ours = |name: &&str| name.contains("burn_amp_kernels");
    all(work).into_iter().filter(ours).collect()
}

/// Burn's too.
fn all(work: impl FnOnce()) -> Vec<&'static str> {
    launches::names(work).1
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

/// Tensors of these lengths.
fn twos(lengths: &[usize]) -> TensorList {
    let device = Device::default();
    list((lengths.iter()).map(|length| Tensor::<1>::ones([*length], &device) * 2.0))
}

fn factor(value: f32) -> Tensor<1> {
    Tensor::from_floats([value], &Device::default())
}

fn step(list: TensorList, value: f32) -> TensorList {
    let (list, status) = unscale(list, factor(value)).expect("a supported dtype");
    assert_eq!(status.read().len(), list.len());
    list
}

fn settle() {
    alone::settle(&Device::default());
}

type Pass = fn(TensorList);

/// The bindings that a device allows decide it: WebGPU's minimum is 8, of which a launch needs 4 for itself.
#[test]
fn few_launches() {
    let _alone = alone();
    for dtype in [DType::F32, DType::F16] {
        if !Device::default().supports_dtype(dtype) {
            continue;
        }
        let list = gpt2(dtype);
        settle();
        // With 32 bindings, 27 tensors, or 13 that have products beside them; and the last reduction.
        let passes: [(&str, usize, Pass); 3] = [
            ("inspect", 7, |list| drop(inspect(list).unwrap().read())),
            ("unscale", 12, |list| drop(step(list, 0.5))),
            ("histogram", 7, |list| {
                let elements = histogram(list).unwrap().read().elements();
                assert_eq!(elements, 148 * 240 - 48);
            }),
        ];
        for (what, most, pass) in passes {
            let seen = ours(|| pass(list.clone()));
            let range = 2..=most_launches(most) + 1;
            assert!(range.contains(&seen.len()), "{what}, {dtype:?}: {seen:?}");
        }
    }
}

/// A branch that no unit takes costs time there, for each tensor of a launch.
#[test]
fn in_software_a_large_tensor_has_a_launch_of_its_own() {
    let _alone = alone();
    if !is_software() {
        return;
    }
    let launches = |lengths: &[usize]| {
        let list = twos(lengths);
        settle();
        let seen = ours(|| assert_eq!(inspect(list).unwrap().read()[0].max_abs, 2.0));
        // Without the last reduction.
        seen.len() - 1
    };
    assert_eq!(launches(&[100_000; 3]), 3);
    assert_eq!(launches(&[16; 8]), 2);
    assert_eq!(launches(&[16, 16, 100_000, 16, 16]), 3);
}

fn count(launches: &[&str], kernel: &str) -> usize {
    launches.iter().filter(|name| name.contains(kernel)).count()
}

/// Whether a pass has launched kernels that do this job.
fn does(job: &str, work: impl FnOnce()) -> bool {
    let launches = ours(work);
    launches
        .iter()
        .any(|name| name.contains("Measure<") && name.contains(job))
}

/// Gradients that nobody else holds are overwritten, whatever the order of their dimensions; others are not.
#[test]
fn in_place_where_it_may_be() {
    let _alone = alone();
    let [mut list, held] = [(); 2].map(|()| gpt2(DType::F32));
    let plane = Tensor::<2>::ones([64, 96], &Device::default()) * 3.0;
    let transposed = self::list([plane.transpose()]);
    settle();

    assert!(does("::Write", || drop(step(held.clone(), 0.5))));
    assert!(!does("InPlace", || drop(step(held.clone(), 0.5))));
    drop(held);

    for _ in 0..2 {
        let mut next = None;
        let work = || next = Some(step(list, 0.5));
        assert!(!does("::Write", work));
        list = next.unwrap();
    }
    assert!(does("InPlace", || drop(step(transposed, 0.5))));
}

/// Nor is it in the way that the gradients were just made, and that others were read before. (CubeCL's runtime for CPUs holds
/// memory until the work on it is done: there they are new memory.)
#[test]
fn in_place_right_after_the_backward_pass() {
    let _alone = alone();
    let device = Device::default().autodiff();
    if std::env::var("BURN_DEVICE").is_ok_and(|name| name.starts_with("cpu")) {
        return;
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
        assert!(does("InPlace", || drop(step(list, 0.5))));
    }
}

/// As few launches as bindings allow, in place, and nothing beside them: each takes as many parameters as there are bindings
/// for, up to 28.
#[test]
fn a_step_is_a_few_launches() {
    let _alone = alone();
    let device = Device::default();
    let tensor = |index: usize| {
        let shape = [4 + index % 3, 48];
        let data = TensorData::new(vec![0.5f32; shape[0] * shape[1]], shape);
        Tensor::<2>::from_data(data, &device)
    };
    let mut kept: Vec<Tensor<2>> = (0..3 * GPT2).map(|index| tensor(index / 3)).collect();
    for taken in [1.0, 1.0, 0.0] {
        let own = kept.chunks_exact(3).enumerate();
        let list = list(own.flat_map(|(index, own)| [&[tensor(index)][..], own].concat()));
        kept.clear();
        let row = UpdateRow {
            taken,
            scale: 1.0,
            lr: 0.5,
            factor_1: 1.0,
            beta_2: 1.0,
            correction_1: 1.0,
            ..UpdateRow::default()
        };
        let rows = UpdateRow::upload(&[row; GPT2], &device);
        settle();
        let mut updated = None;
        let seen = all(|| {
            let rule = UpdateRule::Adam { amsgrad: false };
            updated = Some(update(rule, list, rows).expect("kernels"));
            settle();
        });
        // With 32 bindings, 7 parameters.
        let most = match format!("{device:?}").contains("Wgpu") {
            true => most_launches(22),
            false => 8,
        };
        assert!((2..=most).contains(&seen.len()), "{seen:?}");
        assert_eq!(count(&seen, "UpdateMany"), seen.len(), "{seen:?}");
        let updated = updated.expect("all that was stepped");
        kept.extend((0..updated.len()).map(|index| updated.get(index)));
    }
    // Two steps of 0.5 * 0.5 / 0.5.sqrt().
    let values: Vec<f32> = kept[0].to_data().iter().collect();
    let expected = 0.5 - 0.5f32.sqrt();
    assert!(values.iter().all(|value| (value - expected).abs() < 1e-6));
}

/// One launch, in place; or none of ours, where Fusion has put the sum into a kernel of its own.
#[test]
fn a_sum_is_one_kernel() {
    let _alone = alone();
    let device = Device::default();
    let target = Tensor::<1>::ones([4096], &device) * 2.0;
    let source = Tensor::<1>::ones([4096], &device) * 3.0;
    settle();
    let mut sum = None;
    let launches = ours(|| sum = Some(blend(target, source, 0.5, 2.0).into_data()));
    assert_eq!(sum.unwrap(), TensorData::new(vec![7f32; 4096], [4096]));
    match cfg!(feature = "fusion") {
        true => assert_eq!(launches, Vec::<&str>::new()),
        false => assert_eq!((launches.len(), count(&launches, "weigh")), (1, 1)),
    }
}

/// One launch for the backward pass of one cast; or none of ours, where Fusion has put it into a kernel of its own.
#[test]
fn a_scaled_gradient_is_one_kernel() {
    let _alone = alone();
    let device = Device::default().autodiff();
    let half = DType::F16;
    if !device.supports_dtype(half) {
        return;
    }
    let backward = |by: Factor| {
        let input = Tensor::<2>::ones([64, 64], (&device, half)).require_grad();
        let output = scaled_cast(input.clone(), FloatDType::F32, by) * 2.0;
        settle();
        let mut grad = None;
        let launches = all(|| {
            let grads = output.sum().backward();
            grad = Some(input.grad(&grads).unwrap().into_data());
        });
        assert!(grad.unwrap().iter::<f32>().all(|value| value == 8.0));
        launches
    };
    let launches = backward(4.0.into());
    let ours = usize::from(!cfg!(feature = "fusion"));
    assert_eq!(count(&launches, "burn_amp_kernels"), ours, "{launches:?}");
    assert_eq!(count(&launches, "weigh"), ours, "{launches:?}");
    // No more of them with a factor that is on the device; where Fusion multiplies it by a ratio, one for that.
    for ratio in [1.0, 0.5] {
        let there = Factor::on_device(ratio, factor(4.0 / ratio as f32));
        let found = backward(there);
        let more = usize::from(cfg!(feature = "fusion") && ratio != 1.0);
        let few = found.len() <= launches.len() + more;
        assert!(few, "{found:?}, {launches:?}");
        assert_eq!(count(&found, "weigh"), ours, "{found:?}");
    }
}

/// Nothing has run when the backward pass is over: so nothing was read.
#[test]
#[cfg(feature = "fusion")]
fn a_factor_on_the_device_is_not_read() {
    let _alone = alone();
    if !Device::default().supports_dtype(DType::F16) {
        return;
    }
    let input = Tensor::<2>::ones([8, 8], &Device::default().autodiff()).require_grad();
    settle();
    let mut grad = None;
    let launches = all(|| {
        let there = Factor::on_device(0.5, factor(4.0) * 2.0);
        let output = scaled_cast(input.clone() * 3.0, FloatDType::F16, there);
        let grads = output.cast(FloatDType::F32).sum().backward();
        grad = input.grad(&grads);
    });
    assert_eq!(launches, Vec::<&str>::new());
    let grad: Vec<f32> = grad.unwrap().into_data().iter().collect();
    assert_eq!(grad, vec![12.0; 64]);
}

/// The same on the backend below Fusion, Burn's kernels included.
#[test]
fn a_scaled_gradient_is_one_launch_without_fusion() {
    type Unfused = Autodiff<CubeBackend>;
    let _alone = alone();
    let device = Device::default();
    let Some(unfused) = cube(&device) else {
        return;
    };
    let dtypes = [FloatDType::F16, FloatDType::BF16, FloatDType::F32];
    let dtypes = || (dtypes.into_iter()).filter(|dtype| device.supports_dtype(*dtype));
    for (from, to) in dtypes().flat_map(|from| dtypes().map(move |to| (from, to))) {
        let ones = |dtype| Unfused::float_ones([64, 64].into(), unfused, dtype);
        let input = Unfused::float_set_require_grad(ones(from), true);
        let backward = |output| {
            let settled = Unfused::sync(unfused);
            settled.expect("the device is well");
            let mut grads = None;
            let launches = all(|| grads = Some(Unfused::backward(output)));
            assert!(Unfused::grad(&input, &grads.unwrap()).is_some());
            launches
        };
        // What Burn launches for the gradient of an output alone.
        let without = backward(Unfused::float_mul_scalar(input.clone(), 1.0.into()));
        let number = TensorVec(Vec::new());
        let four = Unfused::float_from_data([4.0f32].into(), unfused);
        let tensor = TensorVec(vec![four]);
        for (factor, scale) in [(4.0, number), (1.0, tensor)] {
            let with = backward(Unfused::amp_cast(input.clone(), to, factor, scale, None));
            assert_eq!(
                with.len(),
                without.len(),
                "{from:?} to {to:?}: {with:?}, {without:?}"
            );
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
    settle();

    let first = LaunchedKernels::new();
    let list = step(list, 0.25);
    let first = first.finish();
    assert!(!first.is_empty());

    let later = LaunchedKernels::new();
    let mut list = step(list, 1.0 / 65536.0);
    for value in [f32::INFINITY, 2.0, f32::MIN_POSITIVE] {
        list = step(list, value);
    }
    let later = later.finish();
    let new = later.difference(&first).count();
    assert_eq!(new, 0, "{new} kernels of {} are new", later.len());
}

/// More tensors need more launches, not more kernels: full groups share one.
#[test]
fn kernels_are_those_of_groups() {
    let _alone = alone();
    let kernels = |count: usize| {
        let list = twos(&vec![64; count]);
        settle();
        let launched = LaunchedKernels::new();
        let launches = ours(|| drop(step(list, 0.5))).len();
        (launched.finish(), launches)
    };
    let (few, few_launches) = kernels(2 * 28);
    let (many, many_launches) = kernels(5 * 28);
    assert!(many_launches > few_launches);
    // That of full groups, of what is left, and the last reduction.
    assert!(many.len().max(few.len()) <= 3, "{few:?} and {many:?}");
}

/// Lists may have another length every step: frozen and unused parameters have no gradients.
#[test]
fn lengths_of_lists_share_kernels() {
    let _alone = alone();
    let lists: Vec<_> = (1..=28).map(|count| twos(&vec![64; count])).collect();
    settle();
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
    settle();
    let mut pending = None;
    let before = ours(|| pending = Some(unscale(list, factor(0.5)).unwrap()));
    assert_eq!(before, Vec::<&str>::new());
    let (_products, status) = pending.unwrap();
    let after = ours(|| drop(status.read()));
    assert!(after.len() > 1, "{after:?}");
    let again = ours(settle);
    assert_eq!(again, Vec::<&str>::new());
}

/// WGSL has no bf16: an error that says where, and what to train in, ahead of any compiler.
#[test]
fn a_dtype_that_the_device_lacks() {
    let _alone = alone();
    let device = Device::default();
    let list = || {
        let data = TensorData::new(vec![bf16::ONE; 4], [4]);
        list([Tensor::<1>::from_data(data, (&device, DType::BF16))])
    };
    if device.supports_dtype(DType::BF16) {
        assert_eq!(inspect(list()).unwrap().read()[0].max_abs, 1.0);
        return;
    }
    let launched = ours(|| {
        for error in [
            inspect(list()).unwrap_err(),
            unscale(list(), factor(1.0)).unwrap_err(),
            histogram(list()).unwrap_err(),
        ] {
            assert_eq!(error.dtype, DType::BF16);
            assert!(!error.instead.contains(&DType::BF16));
            assert!(error.instead.contains(&DType::F32));
            let message = error.to_string();
            assert!(
                message.contains("has no BF16: train in F16 or F32 there"),
                "{message}"
            );
            assert!(message.contains(&error.device), "{message}");
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
