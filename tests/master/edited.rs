//! Parameters changed behind the optimizer's back.

use super::support::*;

/// A net after one small step, so that its masters differ from it.
fn stepped() -> (Net, MasterWeights) {
    let net = to_half(Net::new(&flex()), FloatDType::F16, &[]);
    let mut optim = MasterWeights::new(SgdConfig::new().build());
    let net = step(&mut optim, net, 1e-5);
    (net, optim)
}

fn step(optim: &mut MasterWeights, net: Net, lr: f64) -> Net {
    let grads = gradients(&net, 0, 1.0, FloatDType::F32);
    optim.step(lr, net, grads)
}

fn masters(optim: &MasterWeights, net: &Net) -> Vec<f32> {
    numbers_of(&master(optim, net, "hidden.weight").unwrap())
}

/// A step with a learning rate of 0 shows what the optimizer makes of the parameter: what was edited replaces its master, and what was not
/// keeps its digits.
#[test]
fn edited_values_replace_their_masters_only() {
    type Edit = fn(Tensor<2>) -> Tensor<2>;
    let edits: [(&str, usize, Edit); 3] = [
        ("one", 1, |tensor| {
            let five = Tensor::full([1, 1], 5.0, (&tensor.device(), tensor.dtype()));
            tensor.slice_assign([2..3, 1..2], five)
        }),
        ("all", 24, |tensor| tensor * 2.0 + 0.5),
        ("none", 0, |tensor| {
            tensor.cast(FloatDType::F32).cast(FloatDType::F16)
        }),
    ];
    for (name, edited, edit) in edits {
        let (mut net, mut optim) = stepped();
        let (masters_before, before) = (masters(&optim, &net), values(net.hidden.weight.val()));
        let edit = |tensor: Tensor<2>| Tensor::from_inner(edit(tensor.inner())).require_grad();
        net.hidden.weight = net.hidden.weight.map(edit);
        let after = values(net.hidden.weight.val());
        let net = step(&mut optim, net, 0.0);

        let mut expected = masters_before;
        let mut found = 0;
        for (index, value) in after.iter().enumerate() {
            if *value != before[index] {
                expected[index] = *value;
                found += 1;
            }
        }
        assert_eq!(found, edited, "{name}");
        assert_eq!(masters(&optim, &net), expected, "{name}");
        // And the edit is where the run goes on.
        assert_eq!(values(net.hidden.weight.val()), after, "{name}");
    }
}

/// A load of older weights is an edit; the inner state stays, as with any optimizer.
#[test]
fn loaded_weights_are_followed() {
    let device = flex();
    let mut optim = MasterWeights::new(AdamConfig::new().build());
    let old = to_half(Net::new(&device), FloatDType::F16, &[]);
    let new = step(&mut optim, old.clone(), 0.1);
    assert_ne!(parameters(&new), parameters(&old));
    let inner = |optim: &MasterWeights| {
        let mut tensors = state(optim).tensors;
        tensors.retain(|name, _| name.contains("moment_1"));
        tensors
    };
    let moments = inner(&optim);
    let loaded = new.load_record(old.clone().into_record());
    let grads = gradients(&loaded, 0, 0.0, FloatDType::F32);
    let stepped = optim.step(0.0, loaded, grads);
    assert_eq!(parameters(&stepped), parameters(&old));
    assert_eq!(inner(&optim).len(), moments.len());
    assert_ne!(inner(&optim), moments, "moments decay, they are not reset");
    let zero = |values: &burn_amp_tests::Values| numbers_of(values).iter().all(|v| *v == 0.0);
    assert!(inner(&optim).values().all(|(_, values)| !zero(values)));
}
