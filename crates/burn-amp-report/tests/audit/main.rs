//! The audit: planted faults are told apart, and healthy models raise no alarm.

mod files;
mod healthy;
mod network;
mod programs;
mod verdicts;
