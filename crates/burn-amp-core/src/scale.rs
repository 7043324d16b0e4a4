//! The loss scale: its rules, who holds it, and what moves it.

pub(crate) mod account;
pub(crate) mod border_events;
pub(crate) mod device_step;
pub(crate) mod finding;
pub(crate) mod followed;
pub(crate) mod in_flight;
pub(crate) mod journal;
pub(crate) mod live_scale;
pub(crate) mod loss_scale;
pub(crate) mod members;
#[cfg(test)]
#[path = "../tests/units/orders.rs"]
mod orders;
pub(crate) mod place;
pub(crate) mod region;
pub(crate) mod regions;
pub(crate) mod rehearsal;
mod scopes;
pub(crate) mod status;
pub(crate) mod step_counters;
pub(crate) mod untested;
