//! Parameters changed behind the optimizer's back.

use super::support::*;

/// A step with a learning rate of 0 shows what the optimizer makes of a parameter: what was edited, or loaded, replaces its master, and what was not keeps its
/// digits. Moments decay with it, as with any optimizer: they are not reset.
#[test]
fn edited_values_replace_their_masters_only() {
    let old = to_half(net(&flex()), FloatDType::F16, &[]);
    let moments = |optim: &MasterWeights| {
        let mut tensors = state(optim).tensors;
        tensors.retain(|name, _| name.contains("moment_1"));
        let values = tensors.into_values();
        let numbers = values.flat_map(|(_, (dtype, _, bytes))| f32s(dtype, bytes));
        numbers.collect::<Vec<f32>>()
    };
    for edited in [0, 1, 48] {
        // After one step, masters differ from the net.
        let mut optim = adam();
        let mut net = step(&mut optim, 1e-2, old.clone(), 1.0);
        let masters = |optim: &_, net: &_| master_numbers(optim, net, "hidden.weight");
        let (mut expected, mut after) = (masters(&optim, &net), values(net.hidden.weight.val()));
        let decayed: Vec<f32> = moments(&optim).iter().map(|moment| moment * 0.9).collect();
        expected[..edited].fill(5.0);
        after[..edited].fill(5.0);
        net.hidden.weight = net.hidden.weight.map(|tensor| {
            let data = TensorData::new(after.clone(), tensor.shape());
            Tensor::from_data(data, (&flex(), tensor.dtype())).require_grad()
        });
        let net = step(&mut optim, 0.0, net, 0.0);

        assert_eq!(masters(&optim, &net), expected, "{edited}");
        assert_eq!(moments(&optim), decayed, "{edited}");
        // And the edit is where the run goes on.
        assert_eq!(values(net.hidden.weight.val()), after, "{edited}");
    }
}
