//! Servers that are processes of their own, on loopback, and what trains on their devices: what trains on Flex here, bit for bit; and what
//! goes wrong between the two.

mod command;
mod learner;
mod losses;
mod server;
mod steps;

use burn_amp_tests::prelude::*;
use server::Server;
