//! `MixedPrecision` on each kind of layer: what runs in half precision, what needs help, and that no result is garbage.

mod attention;
mod bf16;
mod convolution;
mod dense;
mod encodings;
mod keep;
mod norm;
mod recurrent;
mod running_statistics;
mod support;
mod wrong_dtype;
