//! The life of a layer in half precision, beside the same layer in f32.

use super::*;

/// How a layer runs inside `autocast`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// As it is.
    AsItIs,
    /// In `in_f32`: as it is, Burn refuses it, because it makes or holds f32 tensors.
    InF32,
}

/// Checks a layer in f16 and in bf16: trains it, and compares all that comes out of it with the layer in f32.
///
/// `forward` gets an input of values in (-1, 1). What else it needs it makes on the device it is given.
pub fn each_precision<M: Module, const D: usize, const E: usize>(
    runs: Runs,
    init: impl Fn(&Device) -> M,
    shape: [usize; D],
    forward: impl Fn(&M, Tensor<D>, &Device) -> Tensor<E>,
) {
    // Rounding is 2^-11 and 2^-8; layers add it up.
    for (dtype, tolerance) in [(FloatDType::F16, 1e-2), (FloatDType::BF16, 6e-2)] {
        let amp = MixedPrecision::new(dtype).with_scaler(at_scale(1024.0));
        let layer = Layer {
            runs,
            amp: amp.unwrap(),
            tolerance,
            init: &init,
            shape,
            forward: &forward,
        };
        layer.refuse();
        let (model, trained) = layer.compare();
        if !trained.is_empty() {
            layer.train(model, trained);
        }
    }
}

struct Layer<'a, M, const D: usize, const E: usize> {
    runs: Runs,
    amp: MixedPrecision,
    tolerance: f32,
    init: &'a dyn Fn(&Device) -> M,
    shape: [usize; D],
    forward: &'a dyn Fn(&M, Tensor<D>, &Device) -> Tensor<E>,
}

impl<M: Module, const D: usize, const E: usize> Layer<'_, M, D, E> {
    fn input(&self, device: &Device) -> Tensor<D> {
        tensor(self.shape, device)
    }

    /// The device of a run, which draws the same random numbers in every run of a process that [`is_alone`]. In another, what draws any
    /// would never be the same.
    fn device(&self, input: &Tensor<D>) -> Device {
        let device = input.device();
        if child_folder().is_some() {
            device.seed(7);
        }
        device
    }

    /// In f32.
    fn plain(&self, model: &M, input: Tensor<D>) -> Tensor<E> {
        let device = self.device(&input);
        (self.forward)(model, input, &device)
    }

    /// As the list has it.
    fn scoped(&self, model: &M, input: Tensor<D>) -> Tensor<E> {
        let device = self.device(&input);
        let half = DType::from(self.amp.dtype());
        let output = self.amp.autocast(input, |x| {
            let forward = |x| (self.forward)(model, x, &device);
            let output = match self.runs {
                Runs::AsItIs => forward(x),
                Runs::InF32 => in_f32(x, forward),
            };
            assert_eq!(output.dtype(), half);
            output
        });
        assert_eq!(output.dtype(), DType::F32);
        output
    }

    /// If this fails, Burn can do it, and the layer is listed wrongly.
    fn refuse(&self) {
        if self.runs == Runs::AsItIs {
            return;
        }
        let model = self.amp.attach((self.init)(&flex()));
        let forward = |x| (self.forward)(&model, x, &flex());
        let error = self.amp.try_autocast(self.input(&flex()), forward);
        let error = error.map(drop).expect_err("it runs as it is: list it so");
        is_error(&error, "Border { what: Clash", []);
    }

    /// The layer in half precision, whose outputs and gradients are close to those in f32, and the parameters that have gradients.
    fn compare(&self) -> (M, Vec<(String, DType)>) {
        let plain = fill((self.init)(&flex()), 0, 0.6);
        let model = self.amp.attach(plain.clone());

        // Forward and backward: the output, and the paths and values of all gradients. The largest of all is the measure for those that
        // are zero but for rounding.
        let run = |model: &M, forward: &dyn Fn(&M, Tensor<D>) -> Tensor<E>| {
            let input = self.input(&flex()).require_grad();
            let output = forward(model, input.clone());
            let grads = output.clone().square().mean().backward();
            let of_input = input.grad(&grads).map(values);
            let grads = GradientsParams::from_grads(grads, model);
            let found = gradients_by_path(&grads, model).into_iter();
            let found = found.map(|(path, dtype, values)| ((path, dtype), values));
            let (paths, mut all): (Vec<_>, Vec<_>) = found.unzip();
            all.extend(of_input);
            (values(output), paths, all.concat())
        };
        let (expected, trained, grads_of_plain) = run(&plain, &|model, x| self.plain(model, x));
        let (output, paths, grads) = run(&model, &|model, x| self.scoped(model, x));
        self.assert_close(&output, &expected, 1.0, "output");
        assert_ne!(output, expected, "not in half precision");
        assert_eq!(paths, trained);
        assert!(!grads.is_empty(), "nothing to compare");
        self.assert_close(&grads, &grads_of_plain, 2.0, "gradients");
        (model, trained)
    }

    /// Steps, validation, records.
    fn train(&self, model: M, trained: Vec<(String, DType)>) {
        let start = parameters(&model);
        let mut run = Player::with(AdamConfig::new().init(), model, &self.amp);
        let loss = |model: &M| self.scoped(model, self.input(&flex())).square().mean();
        let before: f32 = loss(&run.model).into_scalar();
        for _ in 0..4 {
            assert!(!run.train(1e-3, loss(&run.model)));
        }
        let model = run.model;
        let after: f32 = loss(&model).into_scalar();
        assert!(after < before, "loss went from {before} to {after}");
        let after = parameters(&model);
        for (path, _) in trained {
            assert_ne!(start[&path], after[&path], "`{path}` stands still");
        }

        // Validation, with a scope and without.
        let (valid, input) = (model.clone().valid(), || self.input(&Device::flex()));
        let output = self.scoped(&valid, input());
        assert!(!output.is_autodiff());
        let (output, expected) = (values(output), values(self.plain(&valid, input())));
        self.assert_close(&output, &expected, 1.0, "valid");

        // The record is that of the plain layer, in f32, and loads into it, and into the layer in half precision. Nothing at all may differ.
        let bytes = model.clone().into_record().into_bytes().unwrap();
        let record = ModuleRecord::from_bytes(bytes).unwrap();
        let loaded = (self.init)(&flex()).load_record(record.clone());
        let resumed = self.amp.attach((self.init)(&flex())).load_record(record);
        for layer in [&loaded, &resumed] {
            assert_eq!(stored(layer), stored(&model));
        }
        assert_eq!(values(self.plain(&loaded.valid(), input())), expected);
        assert_eq!(values(self.scoped(&resumed.valid(), input())), output);
    }

    fn assert_close(&self, actual: &[f32], expected: &[f32], share: f32, what: &str) {
        assert_eq!(actual.len(), expected.len());
        let errors = actual.iter().zip(expected).map(|(a, b)| (a - b).abs());
        let magnitudes = expected.iter().map(|value| value.abs());
        // The largest difference, relative to the largest magnitude. A NaN is larger than any.
        let largest = magnitudes.max_by(f32::total_cmp).unwrap();
        let error = errors.max_by(f32::total_cmp).unwrap() / largest;
        let (fits, amp) = (error < share * self.tolerance, &self.amp);
        assert!(fits, "{what}: off by {error} in {amp:?}");
    }
}
