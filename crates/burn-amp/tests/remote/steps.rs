//! Loops of one's own: whatever becomes of a step, a remote device shows what Flex shows.

use crate::*;
use burn::nn::loss::{MseLoss, Reduction};
use burn_amp_tests::run::{adam, sgd};

/// What a batch is, beside its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Batch {
    Plain,
    /// Its gradient overflows once it is multiplied by the loss scale.
    Steep,
    /// The forward pass overflows in half precision.
    Large,
    /// NaN, in f32.
    BadLoss,
    /// An infinite input.
    BadInput,
    /// The gradient of a part in f32 is NaN.
    BadIsland,
    /// The gradient of a parameter outside of all scopes is NaN.
    BadOutside,
    /// All its gradients are zero.
    Zero,
}

use Batch::*;

const BATCHES: [Batch; 20] = [
    Plain, Plain, Steep, Plain, Large, BadLoss, Plain, BadIsland, Plain, Plain, BadInput, Zero,
    Plain, BadOutside, Plain, Steep, Large, Plain, Plain, Plain,
];

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    norm: LayerNorm,
    head: Linear,
    outside: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let (hidden, head, outside) = (linear(6, 32), linear(32, 4), linear(4, 2));
        let norm = LayerNormConfig::new(32).init(device);
        let net = Self {
            hidden,
            norm,
            head,
            outside,
        };
        fill_with_ids(net, 0, 0.5)
    }

    fn loss(&self, amp: &MixedPrecision, batch: Batch, step: usize, device: &Device) -> Tensor<1> {
        let input = random::<2>(10 * step, [16, 6], device);
        let input = match batch {
            BadInput => input * f32::INFINITY,
            _ => input,
        };
        let output = amp.autocast(input, |x| {
            let x = self.hidden.forward(x);
            let x = match batch {
                Large => x * 60000.0,
                _ => x,
            };
            let x = in_f32(x, |x| match batch {
                // The root of zero has an infinite gradient.
                BadIsland => self.norm.forward(x.clone()) + (x * 0.0).sqrt(),
                _ => self.norm.forward(x),
            });
            self.head.forward(tanh(x))
        });
        let output = self.outside.forward(output);
        let target = random::<2>(10 * step + 5, [16, 2], device);
        let loss = MseLoss::new().forward(output, target, Reduction::Mean);
        match batch {
            Steep => loss * 1e30,
            BadLoss => loss * f32::NAN,
            BadOutside => loss + (self.outside.weight.val() * 0.0).sqrt().sum(),
            Zero => loss * 0.0,
            _ => loss,
        }
    }
}

/// What each step has shown: the bits of its loss, the loss scale, the outcome and its cause.
type Shown = (u32, f32, Option<StepOutcome>, StepCounters);

/// What is left at the end.
type Left = (f32, StepCounters, BTreeMap<String, (u64, Values)>, Pack);

fn run<O: ModuleOptim>(
    batches: &[Batch],
    device: &Device,
    make: impl FnOnce(&MixedPrecision) -> ScaledOptimizer<O>,
) -> (Vec<Shown>, Left) {
    let settings = at_scale(1024.0).with_growth_interval(3);
    let amp = f16_under(settings.with_max_consecutive_skips(Some(100)));
    let mut model = amp.attach(Net::new(device));
    let mut optim = make(&amp);
    let shown = batches.iter().enumerate().map(|(step, batch)| {
        let loss = model.loss(&amp, *batch, step, device);
        let bits = loss.clone().into_scalar::<f32>().to_bits();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(0.05, model.clone(), grads);
        let (scale, outcome) = (amp.loss_scale(), amp.last_outcome());
        (bits, scale, outcome, amp.counters())
    });
    let shown: Vec<Shown> = shown.collect();
    // Which waits for steps in flight.
    let record = contents(&mut optim);
    let left = (amp.loss_scale(), amp.counters(), parameters(&model), record);
    (shown, left)
}

/// On a server and here. Each step shows the same, unless it is known later there: then the server moves the scale, which sees no part in f32.
fn compare<O: ModuleOptim>(is_waited: bool, make: impl Fn(&MixedPrecision) -> ScaledOptimizer<O>) {
    let server = Server::new();
    let mut batches = BATCHES.to_vec();
    batches.retain(|batch| is_waited || *batch != BadIsland);
    let [remote, local] = [server.device(), flex()].map(|device| run(&batches, &device, &make));
    for (step, (remote, local)) in remote.0.iter().zip(&local.0).enumerate() {
        let batch = batches[step];
        assert_eq!(remote.0, local.0, "the loss of step {step}, {batch:?}");
        assert!(
            !is_waited || remote == local,
            "step {step}, {batch:?}: {remote:?} {local:?}"
        );
    }
    let (remote, local) = (remote.1, local.1);
    assert_eq!((remote.0, remote.1), (local.0, local.1));
    assert!(remote.2 == local.2, "parameters");
    assert!(remote.3 == local.3, "the record");
}

#[test]
fn a_window_with_dropped_micro_batches() {
    let window = AccumulationConfig::new(2).with_skip_micro_batch(true);
    compare(true, |amp| sgd(amp).with_accumulation(window.clone()));
}

#[test]
fn clipped_and_averaged() {
    let (clip, ema) = (GradientClip::Norm(0.5), EmaConfig::new().with_momentum(0.9));
    compare(true, |amp| {
        adam(amp).with_clipping(clip).with_ema(ema.clone())
    });
}

/// One pass over all parameters, whose outcome is known later.
#[test]
fn fused() {
    compare(false, |amp| {
        ScaledOptimizer::new(FusedAdam::new(AdamConfig::new()), amp)
    });
}

/// Each shows what Flex here shows, in every step.
#[test]
fn two_devices_of_one_server() {
    let server = Server::with("--device flex --device flex --address 127.0.0.1:0", None);
    let devices: Vec<Device> = server.host().devices().unwrap().into_iter().collect();
    assert_eq!(devices.len(), 2);
    for device in devices {
        let [remote, local] = [device, Device::flex()].map(Device::autodiff);
        assert!(run(&BATCHES, &remote, adam) == run(&BATCHES, &local, adam));
    }
}
