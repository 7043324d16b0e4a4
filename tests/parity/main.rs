//! Parity with other systems: every test here reads all traces of its prefix in `tests/reference/`.

mod deepspeed;
mod device_scale;
mod fairscale;
mod megatron;
mod openseq2seq;
mod own_schedules;
mod popart;
mod roundpipe;
mod schedule;
mod torch_scale;
mod torch_training;
mod torch_unscale;
