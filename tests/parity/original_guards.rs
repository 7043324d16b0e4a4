//! ZClip, OLMo-core's and llm.c's guards as they are, bugs included: hooks of a program's own, step by step in an optimizer. In f32, where nothing is
//! tested for overflows, so that hooks see every step.

use burn_amp::hook::{Hook, Proposed, Verdict};

use super::*;

#[derive(Module, Debug)]
struct One {
    value: Param<Tensor<1>>,
}

impl One {
    /// In f64: a trace has norms that are no f32.
    fn of(value: f64) -> Self {
        let value = tensor(value, &flex()).require_grad();
        let value = Param::initialized(ParamId::from(7), value);
        Self { value }
    }
}

fn tensor(value: f64, device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::from([value]), (device, DType::F64))
}

fn only_value(tensor: Tensor<1>) -> f64 {
    tensor.into_data().iter::<f64>().next().unwrap()
}

/// A step of a trace: the loss, if there is one, and the norm.
type Step = (Option<f64>, f64);

/// Steps by plain SGD with a learning rate of 1 from zero. `check` sees the hook after each step, and what became of the gradient.
fn replay<H: Hook + Clone>(
    hook: H,
    max_norm: Option<f64>,
    steps: &[Step],
    mut check: impl FnMut(usize, &H, f64),
) {
    let amp = MixedPrecision::f32();
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp).with_hook(hook);
    if let Some(max) = max_norm {
        optim = optim.with_clipping(GradientClip::GlobalNorm(max));
    }
    for (index, (loss, norm)) in steps.iter().enumerate() {
        let model = One::of(0.0);
        let mut grads = GradientsParams::new();
        grads.register(model.value.id, tensor(*norm, &flex().inner()));
        if let Some(loss) = *loss {
            optim.set_loss(loss);
        }
        let model = optim.step(1.0, model, grads);
        check(
            index,
            optim.hook::<H>().unwrap(),
            -only_value(model.value.val().inner()),
        );
    }
}

/// The norm of the gradients, infinite or NaN where they are: a status counts both alike.
fn norm(step: &mut Proposed<'_>) -> f64 {
    let status = step.status().unwrap();
    let norm = status.norm();
    match status.has_overflow() {
        false => norm,
        true => {
            let id = step.parameters()[0].id();
            only_value(step.gradients().unwrap().get::<1>(id).unwrap())
        }
    }
}

fn verdict(is_rejected: bool) -> Verdict {
    match is_rejected {
        true => Verdict::Reject {
            reason: "as the original".to_string(),
        },
        false => Verdict::Apply,
    }
}

fn mean_and_variance(values: &[f64]) -> [f64; 2] {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    [mean, squares / count]
}

#[derive(Clone, Debug)]
struct OriginalZClip {
    settings: ZClip,
    norms: Vec<f64>,
    average: Option<[f64; 2]>,
    limit: Option<f64>,
}

impl OriginalZClip {
    /// One NaN stays in the averages, and turns the guard off for good.
    fn limit(&mut self, norm: f64) -> Option<f64> {
        let settings = self.settings;
        let Some([mean, var]) = &mut self.average else {
            self.norms.push(norm);
            let is_over = self.norms.len() >= settings.warmup_steps as usize;
            self.average = is_over.then(|| mean_and_variance(&self.norms));
            return None;
        };
        let (std, thresh) = (var.sqrt(), settings.z_thresh);
        let z = (norm - *mean) / (std + settings.eps);
        let far = || thresh * std * (thresh / z).powf(settings.falloff);
        let limit = (z > thresh).then(|| (*mean + far()) * settings.clip_factor);
        if limit.is_none() || !settings.skip_update_on_spike {
            let (alpha, seen) = (settings.alpha, limit.unwrap_or(norm));
            *mean = alpha * *mean + (1.0 - alpha) * seen;
            *var = alpha * *var + (1.0 - alpha) * (seen - *mean).powi(2);
        }
        limit
    }
}

impl Hook for OriginalZClip {
    fn name(&self) -> &str {
        "original_zclip"
    }

    fn judge(&mut self, step: &mut Proposed<'_>) -> Verdict {
        let norm = norm(step);
        self.limit = self.limit(norm);
        let factor = self.limit.map_or(1.0, |limit| limit / (norm + 1e-6));
        match factor {
            // An infinity: the original multiplies it by 0.
            0.0 => verdict(true),
            factor if factor < 1.0 => Verdict::Clip {
                factor,
                reason: "as the original".to_string(),
            },
            _ => Verdict::Apply,
        }
    }
}

/// The last values of either kind, as OLMo-core has them: whole, in f32.
#[derive(Clone, Debug)]
struct OriginalSkipStep {
    settings: SkipStep,
    has_norms: bool,
    losses: Vec<f64>,
    norms: Vec<f64>,
}

impl OriginalSkipStep {
    /// Mean and unbiased deviation of all values but the newest. A single value has no deviation, and NaN is exceeded by every value.
    fn before_newest(values: &[f64]) -> [f64; 2] {
        let count = values.len() as f64 - 1.0;
        let [mean, var] = mean_and_variance(&values[..values.len() - 1]);
        [mean, (var * count / (count - 1.0)).sqrt()]
    }

    fn exceeds(settings: SkipStep, values: &mut Vec<f64>, value: f64) -> bool {
        let (value, length) = (
            f64::from(value as f32),
            settings.rolling_interval_length as usize,
        );
        values.push(value);
        if values.len() > length + 1 {
            values.remove(0);
        }
        let [mean, std] = Self::before_newest(values);
        let is_usual = value - mean <= settings.sigma_factor * std;
        values.len() >= 2.max(length / 2) && !is_usual
    }
}

impl Hook for OriginalSkipStep {
    fn name(&self) -> &str {
        "original_skip_step"
    }

    fn judge(&mut self, step: &mut Proposed<'_>) -> Verdict {
        let norm = norm(step);
        let settings = self.settings;
        let by_loss = step
            .loss()
            .is_some_and(|loss| Self::exceeds(settings, &mut self.losses, loss));
        let by_norm = self.has_norms && Self::exceeds(settings, &mut self.norms, norm);
        verdict(by_loss || by_norm)
    }
}

/// A window with running sums, as llm.c has it.
#[derive(Clone, Debug, Default)]
struct Window {
    values: Vec<f64>,
    sums: [f64; 2],
    z: f64,
}

impl Window {
    /// Takes a value in, and what it adds to the sums stays there: one NaN turns the guard off for good.
    fn push(&mut self, size: u32, value: f64) {
        let was_full = self.values.len() == size as usize;
        let [sum, sum_sq] = &mut self.sums;
        if was_full {
            let oldest = self.values.remove(0);
            *sum -= oldest;
            *sum_sq -= oldest * oldest;
        }
        self.values.push(value);
        *sum += value;
        *sum_sq += value * value;
        let mean = *sum / f64::from(size);
        let std = (*sum_sq / f64::from(size) - mean * mean).sqrt();
        let z = match std == 0.0 {
            true => 0.0,
            false => (value - mean) / std,
        };
        // It is an f32 there.
        self.z = if was_full {
            f64::from(z as f32)
        } else {
            f64::NAN
        };
    }

    fn is_outlier(&self, threshold: f64) -> bool {
        self.z.is_finite() && threshold != 0.0 && self.z > threshold
    }
}

#[derive(Clone, Debug)]
struct OriginalOutlier {
    settings: Outlier,
    losses: Window,
    norms: Window,
    action: &'static str,
}

impl Hook for OriginalOutlier {
    fn name(&self) -> &str {
        "original_outlier"
    }

    fn judge(&mut self, step: &mut Proposed<'_>) -> Verdict {
        let (norm, loss) = (norm(step), step.loss().unwrap());
        self.losses.push(self.settings.window, loss);
        self.norms.push(self.settings.window, norm);
        let by_loss = self.losses.is_outlier(self.settings.skip_update_lossz);
        let by_norm = self.norms.is_outlier(self.settings.skip_update_gradz);
        self.action = match (by_loss, by_norm) {
            (true, _) => "skip_loss",
            (false, true) => "skip_grad",
            (false, false) => "step",
        };
        verdict(by_loss || by_norm)
    }
}

/// A value of a trace at a step.
fn at(trace: &Value, step: usize, name: &str) -> Option<f64> {
    optional(&trace[name][step])
}

/// Asserts that ours is the trace's value, but for this share of it, or for so much.
#[track_caller]
fn close(trace: &Value, step: usize, name: &str, ours: Option<f64>, but: [f64; 2]) {
    let (theirs, [relative, absolute]) = (at(trace, step, name), but);
    let same = match (ours, theirs) {
        (Some(ours), Some(theirs)) => {
            ours == theirs
                || (ours.is_nan() && theirs.is_nan())
                || (ours - theirs).abs() <= (relative * theirs.abs()).max(absolute)
        }
        _ => ours == theirs,
    };
    let id = &trace["id"];
    assert!(same, "{id}, step {step}, {name}: {ours:?} for {theirs:?}");
}

/// The steps of a trace with these columns. A norm that is not there is one of which the guard knows nothing.
fn steps(trace: &Value, loss: &str, norm: &str) -> Vec<Step> {
    let column = [norm, loss].map(|name| trace[name].as_array().map_or(0, Vec::len));
    let steps = 0..column.into_iter().max().unwrap();
    let step = |step| (at(trace, step, loss), at(trace, step, norm).unwrap_or(1.0));
    steps.map(step).collect()
}

fn zclip(trace: &Value) -> ZClip {
    let params = &trace["params"];
    let float = |name: &str| number(&params[name]);
    let percentile = params["mode"] == "percentile";
    let to_mean = !percentile && params["clip_option"] == "mean";
    ZClip {
        alpha: float("alpha"),
        z_thresh: float("z_thresh"),
        eps: if percentile { 0.0 } else { float("eps") },
        warmup_steps: float("warmup_steps") as u32,
        falloff: match (percentile, to_mean) {
            (true, _) => 0.0,
            (_, true) => f64::INFINITY,
            _ => 1.0,
        },
        clip_factor: match percentile || to_mean {
            true => 1.0,
            false => float("clip_factor"),
        },
        skip_update_on_spike: params["skip_update_on_spike"] == true,
    }
}

fn skip_step(trace: &Value) -> SkipStep {
    SkipStep {
        rolling_interval_length: number(&trace["params"]["rolling_interval_length"]) as u32,
        sigma_factor: number(&trace["params"]["sigma_factor"]),
    }
}

fn outlier(trace: &Value) -> Outlier {
    let float = |name: &str| number(&trace["params"][name]);
    Outlier {
        window: float("window") as u32,
        skip_update_lossz: float("skip_update_lossz"),
        skip_update_gradz: float("skip_update_gradz"),
    }
}

#[test]
fn parity_zclip() {
    for (_, trace) in traces::<Value>("zclip") {
        let hook = OriginalZClip {
            settings: zclip(&trace),
            norms: Vec::new(),
            average: None,
            limit: None,
        };
        let steps = steps(&trace, "none", "norm");
        let max_norm = optional(&trace["params"]["max_grad_norm"]);
        replay(hook, max_norm, &steps, |step, hook, grad| {
            let [mean, var] = hook.average.map_or([None; 2], |of| of.map(Some));
            for (name, ours, relative) in [
                ("clip_val", hook.limit, 1e-12),
                ("mean", mean, 1e-12),
                ("var", var, 1e-9),
            ] {
                close(&trace, step, name, ours, [relative, 0.0]);
            }
            match hook.limit {
                // There it is an infinity times 0, and the step is made with NaN.
                Some(_) if steps[step].1.is_infinite() => {
                    assert_eq!(grad, 0.0);
                    assert!(at(&trace, step, "grad_after").unwrap().is_nan());
                }
                _ => close(&trace, step, "grad_after", Some(grad), [2e-7, 0.0]),
            }
        });
    }
}

#[test]
fn parity_olmo_skipstep() {
    for (id, trace) in traces::<Value>("olmo_skipstep") {
        let hook = OriginalSkipStep {
            settings: skip_step(&trace),
            has_norms: !trace["grad_norm"].is_null(),
            losses: Vec::new(),
            norms: Vec::new(),
        };
        replay(
            hook,
            None,
            &steps(&trace, "loss", "grad_norm"),
            |step, hook, grad| {
                let factor = at(&trace, step, "step_factor").unwrap();
                assert_eq!(grad == 0.0, factor == 0.0, "{id}, step {step}");
                for (values, name) in [(&hook.losses, "loss"), (&hook.norms, "grad_norm")] {
                    let [mean_name, std_name] = ["mean", "std"].map(|of| format!("{name}_{of}"));
                    let Some(theirs) = at(&trace, step, &mean_name) else {
                        continue;
                    };
                    let [mean, std] = OriginalSkipStep::before_newest(values);
                    match theirs.is_finite() {
                        true => {
                            close(&trace, step, &mean_name, Some(mean), [1e-6, 0.0]);
                            close(&trace, step, &std_name, Some(std), [1e-4, 1e-6]);
                        }
                        // By the position of the infinity it is infinite or NaN.
                        false => assert!(!mean.is_finite(), "{id}, step {step}, {name}: {mean}"),
                    }
                }
            },
        );
    }
}

#[test]
fn parity_llmc_outlier() {
    for (id, trace) in traces::<Value>("llmc_outlier") {
        let hook = OriginalOutlier {
            settings: outlier(&trace),
            losses: Window::default(),
            norms: Window::default(),
            action: "",
        };
        replay(
            hook,
            None,
            &steps(&trace, "loss", "grad_norm"),
            |step, hook, grad| {
                let [sum, sum_sq] = hook.norms.sums;
                for (name, ours) in [
                    ("zloss", hook.losses.z),
                    ("zgrad", hook.norms.z),
                    ("grad_sum", sum),
                    ("grad_sum_sq", sum_sq),
                ] {
                    close(&trace, step, name, Some(ours), [0.0; 2]);
                }
                assert_eq!(trace["action"][step], hook.action, "{id}, step {step}");
                assert_eq!(grad == 0.0, hook.action != "step", "{id}, step {step}");
            },
        );
    }
}

/// Compares the factors of ours with those of a trace, up to the first value that is not finite, or the first rejection, which is ours too. Returns how many were compared.
fn follows(trace: &Value, guard: Guard, steps: &[Step], rejects: impl Fn(usize) -> bool) -> usize {
    let Ok(factors) = guard.replay(steps.iter().copied()) else {
        return 0;
    };
    let is_bad =
        |(loss, norm): &Step| !norm.is_finite() || loss.is_some_and(|loss| !loss.is_finite());
    let end = steps.iter().position(is_bad).unwrap_or(steps.len());
    let first = (0..end).find(|step| rejects(*step));
    let same = first.unwrap_or(end);
    assert!(
        factors[..same].iter().all(|factor| *factor == 1.0),
        "{}",
        trace["id"]
    );
    // The usual values differ: else their deviation is 0, NaN, or what is left of a sum.
    let differ = |value: fn(&Step) -> Option<f64>| {
        let first = first.unwrap_or(0);
        steps[..first]
            .windows(2)
            .any(|pair| value(&pair[0]) != value(&pair[1]))
    };
    if let Some(first) = first
        && differ(|(loss, _)| *loss)
        && differ(|(_, norm)| Some(*norm))
    {
        assert_eq!(factors[first], 0.0, "{}", trace["id"]);
    }
    same
}

/// Ours are these rules where their bugs do not show: ZClip's until a norm is not finite, the others until the first spike, which blinds them.
#[test]
fn guards_do_as_the_originals_until_their_bugs_show() {
    for (_, trace) in traces::<Value>("zclip") {
        let steps = steps(&trace, "none", "norm");
        let factors = Guard::ZClip(zclip(&trace))
            .replay(steps.iter().copied())
            .unwrap();
        let is_finite = |step: &&(usize, &Step)| step.1.1.is_finite();
        for (step, (_, norm)) in steps.iter().enumerate().take_while(|step| is_finite(&step)) {
            let limit = at(&trace, step, "clip_val").filter(|limit| norm > limit);
            let theirs = limit.map_or(1.0, |limit| limit / (norm + 1e-6));
            let same = (factors[step] - theirs).abs() <= 1e-12 * theirs;
            assert!(
                same,
                "{}, step {step}: {} for {theirs}",
                trace["id"], factors[step]
            );
        }
    }
    let mut compared = 0;
    for (_, trace) in traces::<Value>("olmo_skipstep") {
        let mut steps = steps(&trace, "loss", "grad_norm");
        if trace["grad_norm"].is_null() {
            steps
                .iter_mut()
                .enumerate()
                .for_each(|(index, step)| step.1 = 1.0 + (index % 2) as f64);
        }
        let rejects = |step: usize| at(&trace, step, "step_factor") == Some(0.0);
        compared += follows(&trace, Guard::SkipStep(skip_step(&trace)), &steps, rejects);
    }
    for (_, trace) in traces::<Value>("llmc_outlier") {
        let rejects = |step: usize| trace["action"][step] != "step";
        let steps = steps(&trace, "loss", "grad_norm");
        compared += follows(&trace, Guard::Outlier(outlier(&trace)), &steps, rejects);
    }
    assert!(compared > 500, "{compared}");
}
