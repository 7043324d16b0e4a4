//! Averages of parameters that begin to be trained in a run.

use burn_amp_tests::prelude::*;

use super::unheard::{Net, Run, Waited, config, event};

fn adam() -> FusedAdam {
    FusedAdam::new(AdamConfig::new()).unwrap()
}

fn averaged<O: ModuleOptim>(net: &Net, optim: O, ema: EmaConfig) -> Run<O> {
    let mut run = Run::of(net, optim, config());
    let clip = GradientClip::GlobalNorm(0.1);
    run.optim = (run.optim.with_clipping(clip))
        .and_then(|optim| optim.with_ema(ema))
        .unwrap();
    run
}

fn averages<O: ModuleOptim>(run: &Run<O>) -> Vec<u32> {
    let value = |linear: &Linear| {
        let average = run.optim.ema().unwrap().get(&linear.weight);
        let average = average.map(Tensor::into_data);
        let values: Vec<f32> = average.iter().flat_map(|data| data.iter()).collect();
        values
    };
    let values = [value(&run.net.hidden), value(&run.net.output)].concat();
    values.into_iter().map(f32::to_bits).collect()
}

/// What has no average begins with one.
#[test]
fn a_parameter_that_is_thawed() {
    fn thawed(net: Net, id: ParamId) -> Net {
        struct Thaw(ParamId);

        impl burn::module::ModuleMapper for Thaw {
            fn map_float<const D: usize>(
                &mut self,
                param: burn::module::Param<Tensor<D>>,
            ) -> burn::module::Param<Tensor<D>> {
                let trained = param.id == self.0;
                match trained {
                    true => param.set_require_grad(true),
                    false => param,
                }
            }
        }

        net.map(&mut Thaw(id))
    }

    let mut net = Net::new(&Device::default().autodiff());
    let id = net.hidden.weight.id;
    net.hidden = net.hidden.no_grad();
    let ema = EmaConfig::new().with_momentum(0.9);
    let mut unheard = averaged(&net, adam(), ema.clone());
    let mut waited = averaged(&net, Waited(adam()), ema);
    for step in 10..30 {
        if step == 20 {
            unheard.net = thawed(unheard.net, id);
            waited.net = thawed(waited.net, id);
        }
        unheard.step(step, event(step)).unwrap();
        waited.step(step, event(step)).unwrap();
    }
    assert_eq!(unheard.values(), waited.values());
    assert_eq!(averages(&unheard), averages(&waited));
    assert_eq!(averages(&unheard).len(), 60 + 20);
}
