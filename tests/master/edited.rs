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
        let values = tensors.into_values().map(|(_, values)| values);
        let numbers = values.flat_map(|(dtype, _, bytes)| f32s(dtype, bytes));
        numbers.collect::<Vec<f32>>()
    };
    type Edit<'a> = &'a dyn Fn(Tensor<2>) -> Tensor<2>;
    let edits: [(&str, usize, Edit); 4] = [
        ("one", 1, &|tensor| {
            let five = Tensor::full([1, 1], 5.0, (&tensor.device(), tensor.dtype()));
            tensor.slice_assign([2..3, 1..2], five)
        }),
        ("all", 48, &|tensor| tensor * 2.0 + 3.0),
        ("loaded", 48, &|_| old.hidden.weight.val().inner()),
        ("none", 0, &|tensor| tensor * 1.0),
    ];
    for (name, edited, edit) in edits {
        // After one step, masters differ from the net.
        let mut optim = adam();
        let mut net = step(&mut optim, 1e-2, old.clone(), 1.0);
        let masters = |optim: &_, net: &_| master_numbers(optim, net, "hidden.weight");
        let (mut expected, before) = (masters(&optim, &net), values(net.hidden.weight.val()));
        let decayed: Vec<f32> = moments(&optim).iter().map(|moment| moment * 0.9).collect();
        let edit = |tensor: Tensor<2>| Tensor::from_inner(edit(tensor.inner())).require_grad();
        net.hidden.weight = net.hidden.weight.map(edit);
        let after = values(net.hidden.weight.val());
        let net = step(&mut optim, 0.0, net, 0.0);

        let is_edited = |index: &usize| after[*index] != before[*index];
        let found: Vec<usize> = (0..after.len()).filter(is_edited).collect();
        found.iter().for_each(|at| expected[*at] = after[*at]);
        assert_eq!(found.len(), edited, "{name}");
        assert_eq!(masters(&optim, &net), expected, "{name}");
        assert_eq!(moments(&optim), decayed, "{name}");
        // And the edit is where the run goes on.
        assert_eq!(values(net.hidden.weight.val()), after, "{name}");
    }
}
