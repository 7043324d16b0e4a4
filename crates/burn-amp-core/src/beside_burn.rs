//! What goes beside Burn's `ModuleOptimizer`, which holds our optimizers of single parameters and their states, and shows them to nobody.
//!
//! Three values are there for the time of one call of Burn's, in a variable of the thread:
//!
//! - The pass of a fused step (`fused/pass.rs`). It collects the parameters that `ModuleOptimizer::step` hands over one by one, and knows who
//!   decides the step. With a method `DynOptimizer::step_many`, called once for all parameters of a group, there would be no need of it.
//! - The masters of half-precision parameters (`master_weights.rs`), which averages are made of. Only `ModuleOptimizer::to_record` looks at
//!   states, and copies them to the host. With `ModuleOptimizer::states`, which shows each with its parameter's id, there would be no need of it.
//! - The steps of a `Learner` (`train/checkpoint.rs`), whose state goes with the optimizer's. With a place in Burn's checkpoint for others, there
//!   would be no need of it.

use std::{cell::RefCell, thread::LocalKey};

/// A place for a value, empty as a rule.
pub type Beside<T> = RefCell<Option<T>>;

/// Calls `f` while `value` is there. Gives back what both have become.
pub fn during<T: Default, R>(
    place: &'static LocalKey<Beside<T>>,
    value: T,
    f: impl FnOnce() -> R,
) -> (R, T) {
    /// It must not stay when `f` panics: later calls would find it.
    struct Clear<T: 'static>(&'static LocalKey<Beside<T>>);

    impl<T> Drop for Clear<T> {
        fn drop(&mut self) {
            self.0.set(None);
        }
    }

    place.set(Some(value));
    let _clear = Clear(place);
    let result = f();
    (result, place.take().unwrap_or_default())
}
