//! What was read, or put into a record, before a step is what it was. On CubeCL devices a read is done when the values are looked
//! at, so that a step in place would show in it.

use crate::support::*;

const GRADIENT: [f64; 10] = [0.25, -0.5, 1.25, 0.5, -2.5, 0.75, -0.125, 0.25, 3.0, -0.625];

fn go_on<O: ModuleOptim>(run: &mut Trial<O>) {
    (0..4).for_each(|_| run.step(GRADIENT));
}

/// Moments, masters, an open window, averages: all of a record. Nor does a copy of the model change.
#[test]
fn a_record_stays() {
    fn check<O: ModuleOptim>(optim: O, dtype: DType) -> Trial<O> {
        let optim = ScaledOptimizer::new(optim, at_scale(16.0).init().unwrap());
        let optim = optim.with_accumulation(2).with_ema(EmaConfig::new());
        let mut run = Trial::new(optim).with_dtype(dtype);
        run.step(GRADIENT);
        go_on(&mut run);
        let (before, held) = (contents(&mut run.optim), run.optim.to_record());
        let (copy, values) = (run.model.clone(), run.values());
        go_on(&mut run);
        assert!(contents(&mut run.optim) != before);
        let held = pack(held.into_bytes().unwrap());
        assert!(held == before, "the record has changed");
        assert_eq!(copy.values(), values);
        assert_eq!(run.model.weight.val().dtype(), dtype);
        run
    }
    let masters = || MasterWeights::new(AdamConfig::new().build());
    check(masters(), DType::F32);
    check(AdamConfig::new().init(), DType::F32);
    check(FusedAdam::new(AdamConfig::new()), DType::F32);
    let mut run = check(masters(), DType::F16);
    // Nor does that of the optimizer by itself. (Burn's own may.)
    let inner = run.optim.optimizer();
    let (before, held) = (state(inner), inner.to_record().unwrap());
    go_on(&mut run);
    assert!(state(run.optim.optimizer()) != before);
    assert!(pack(held.into_bytes().unwrap()) == before);
}

/// A sum that was read from an open window is not added to.
#[test]
fn a_sum_that_was_read_stays() {
    let mut run = ByHand::of(Pair::of(0.0), at_scale(65536.0));
    let mut window = AccumulationConfig::new(9).init().unwrap();
    for count in 1..4 {
        run.accumulate(&mut window, GRADIENT);
        let sum = window.sum(&run.model.bias).unwrap();
        let read = sum.to_data();
        // Under fusion Burn adds the sums, and changes what it has read itself: until then, the handle keeps it.
        let held = cfg!(feature = "fusion").then_some(sum);
        run.accumulate(&mut window.clone(), GRADIENT);
        let expected = count as f32 * 3.0 * 65536.0;
        assert_eq!(read.as_slice::<f32>().unwrap()[2], expected);
        drop(held);
    }
}
