//! The audit: planted faults are told apart, and healthy models raise no alarm.

mod faults;
mod files;
mod healthy;
mod network;
mod verdicts;
