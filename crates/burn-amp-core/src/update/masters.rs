//! The f32 copies of half-precision parameters, which optimizers keep in their states.

use burn::optim::ModuleOptimizer;
use std::cell::RefCell;

use crate::beside_burn::{Beside, during};
use crate::values::{ParamTensor, ParamTensors};

thread_local! {
    /// The place where records leave the masters, if somebody asks for them.
    static MASTERS: Beside<ParamTensors> = const { RefCell::new(None) };
}

/// Handles to the masters in an optimizer; empty if it keeps none. Does not wait for the device.
pub fn masters_of(optim: &ModuleOptimizer) -> ParamTensors {
    let (_, masters) = during(&MASTERS, ParamTensors::default(), || optim.to_record());
    masters
}

/// Leaves the master of a parameter, whose id a record has as `prefix`, with [`masters_of`], if that asks. Returns whether it does.
pub fn show_master(prefix: &str, master: Option<&ParamTensor>) -> bool {
    MASTERS.with_borrow_mut(|masters| {
        let id = prefix.parse::<u64>().ok();
        if let (Some(masters), Some(id), Some(master)) = (masters.as_mut(), id, master) {
            masters.insert(id.into(), master.clone());
        }
        masters.is_some()
    })
}
