//! What is known of a thread, because Burn's calls have no place for it: each with the hook in Burn that would make it needless.
//!
//! For the time of one call of Burn's ([`during`]), beside `ModuleOptimizer`, which holds our optimizers of single parameters and their states, and
//! shows them to nobody:
//!
//! - `OPEN` (`fused/pass.rs`): the pass of a fused step. It collects the parameters that `ModuleOptimizer::step` hands over one by one, and knows who
//!   decides the step. The hook: a method `DynOptimizer::step_many`, called once for all parameters of a group.
//! - `MASTERS` (`update/masters.rs`): the masters of half-precision parameters, which averages are made of. Only `ModuleOptimizer::to_record` looks at
//!   states, and copies them to the host. The hook: `ModuleOptimizer::states`, which shows each with its parameter's id.
//! - `EXCHANGED` (`train/steps/checkpoint.rs`): the steps of a `Learner`, whose state goes with the optimizer's. The hook: a place in Burn's checkpoint for
//!   the state of others.
//!
//! For as long as a scope is open, and as a scope takes no argument of the layers in it:
//!
//! - `HERE` (`border/scope.rs`): the scope that the thread is in. A layer's forward pass reads a parameter by `Param::val`, which calls
//!   `Reparameterization::apply` with the parameter alone. The hook: a context that `Module::forward` hands to `apply`, or a dtype policy of the
//!   device, as `device.autodiff()` is one. The first would serve other threads too, which take the scope along by `Scope` now.
//!
//! For the next call on the thread:
//!
//! - `REFUSED` (`border/scope.rs`): the error with which a scope has panicked, for the enclosing scope, which catches the panic and cannot know what
//!   it was. The hook: a `Result` from the closures of modules, or operations of Burn that return their errors.
//! - `LAST` (`scale/border_events.rs`): the handle whose scope was opened last, to find gradients that pass through scopes of two handles. The hook: a
//!   graph of `burn-autodiff` that shows which operations of ours are in it.
//! - The map of calls by `ThreadId` (`scale/journal.rs`): a scheduler holds when the call before it on its thread was a skip. The workers of a training on
//!   several devices step in their own time, each with a scheduler. The hook: `LrScheduler::step` with the outcome of the step before.

use std::{cell::RefCell, thread::LocalKey};

/// A place for a value, empty as a rule.
pub type Beside<T> = RefCell<Option<T>>;

/// Calls `f` while `value` is there, in the place of another of an outer call. Gives back what both have become.
pub fn during<T: Default, R>(
    place: &'static LocalKey<Beside<T>>,
    value: T,
    f: impl FnOnce() -> R,
) -> (R, T) {
    /// It must not stay when `f` panics: later calls would find it.
    struct Restore<T: 'static>(&'static LocalKey<Beside<T>>, Option<T>);

    impl<T> Drop for Restore<T> {
        fn drop(&mut self) {
            self.0.set(self.1.take());
        }
    }

    let _outer = Restore(place, place.replace(Some(value)));
    let result = f();
    (result, place.take().unwrap_or_default())
}
