//! The audit: planted faults are told apart.

mod files;
mod network;
mod programs;
mod verdicts;
