//! What PopART counts near the top of f16 is counted by the pass that unscales and tests, at any loss scale.

use super::*;

#[test]
fn parity_popart_als_histogram() {
    let mut traces = traces::<Value>("popart_als");
    traces.retain(|(_, trace)| trace["kind"] == "histogram");
    assert!(!traces.is_empty());
    for (name, trace) in traces {
        for init_scale in [1.0, 1024.0, 65536.0] {
            let edge = number(&trace["params"]["bin_edge_location"]);
            let schedule = Schedule::NearTop(NearTop::new().with_edge(edge));
            let config = at_scale(init_scale).with_schedule(schedule);
            let scaled = list(&trace["scaled_grad"]).iter();
            let scaled: Vec<f32> = scaled.map(|grad| number(grad) as f32).collect();
            let grad = Tensor::<1>::from_data(scaled.as_slice(), &Device::default());
            let (grads, _) = unscaled(&GradScaler::new(config).unwrap(), grad);
            let (above, all) = (grads.status().above(), grads.status().elements());
            let at = format!("{name}, {}, loss scale {init_scale}", trace["id"]);
            let expected = json!([trace["count_below"], trace["count_above"]]);
            assert_eq!(json!([all - above, above]), expected, "{at}");
        }
    }
}
