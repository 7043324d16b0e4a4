//! Parameters changed behind the optimizer's back.

use super::support::*;

/// A net after one small step, so that its masters differ from it.
fn stepped() -> (Net, MasterWeights) {
    let net = to_half(net(&flex()), FloatDType::F16, &[]);
    let mut optim = MasterWeights::new(SgdConfig::new().build());
    let net = step(&mut optim, 1e-5, net, 1.0);
    (net, optim)
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
        ("all", 48, |tensor| tensor * 2.0 + 3.0),
        ("none", 0, |tensor| tensor * 1.0),
    ];
    for (name, edited, edit) in edits {
        let (mut net, mut optim) = stepped();
        let masters = |optim: &_, net: &_| master_numbers(optim, net, "hidden.weight");
        let (mut expected, before) = (masters(&optim, &net), values(net.hidden.weight.val()));
        let edit = |tensor: Tensor<2>| Tensor::from_inner(edit(tensor.inner())).require_grad();
        net.hidden.weight = net.hidden.weight.map(edit);
        let after = values(net.hidden.weight.val());
        let net = step(&mut optim, 0.0, net, 1.0);

        let is_edited = |index: &usize| after[*index] != before[*index];
        let found: Vec<usize> = (0..after.len()).filter(is_edited).collect();
        found.iter().for_each(|at| expected[*at] = after[*at]);
        assert_eq!(found.len(), edited, "{name}");
        assert_eq!(masters(&optim, &net), expected, "{name}");
        // And the edit is where the run goes on.
        assert_eq!(values(net.hidden.weight.val()), after, "{name}");
    }
}

/// A load of older weights is an edit; the inner state stays, as with any optimizer.
#[test]
fn loaded_weights_are_followed() {
    let mut optim = adam();
    let old = to_half(net(&flex()), FloatDType::F16, &[]);
    let new = step(&mut optim, 0.1, old.clone(), 1.0);
    assert_ne!(parameters(&new), parameters(&old));
    let moments = |optim: &MasterWeights| {
        let mut tensors = state(optim).tensors;
        tensors.retain(|name, _| name.contains("moment_1"));
        let values = tensors.into_values().map(|(_, values)| values);
        let numbers = values.map(|(dtype, _, bytes)| f32s(dtype, bytes));
        numbers.collect::<Vec<_>>().concat()
    };
    let before = moments(&optim);
    let loaded = new.load_record(old.clone().into_record());
    let stepped = step(&mut optim, 0.0, loaded, 0.0);
    assert_eq!(parameters(&stepped), parameters(&old));
    // Moments decay, they are not reset.
    let decayed: Vec<f32> = before.iter().map(|moment| moment * 0.9).collect();
    assert_eq!(moments(&optim), decayed);
}
