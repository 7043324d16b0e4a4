//! What needs no device but Flex, in one program: each program links all of Burn.

#[path = "compile/main.rs"]
mod compile;
#[path = "layers/main.rs"]
mod layers;
#[path = "master/main.rs"]
mod master;
#[path = "precision/main.rs"]
mod precision;
#[path = "scaler/main.rs"]
mod scaler;
