//! Training in several processes over MPI.
//!
//! Part of [burn-amp](https://docs.rs/burn-amp), which shows it as `burn_amp::mpi`. Empty without the feature `mpi`, which needs an MPI library.
#![cfg_attr(
    feature = "mpi",
    doc = r#"
Each process is a rank that trains a copy of one model on its part of every batch:

```no_run
use burn::{
    module::Module, nn::LinearConfig, optim::{GradientsParams, SgdConfig}, tensor::{Device, Distribution, Tensor},
};
use burn_amp::{MixedPrecision, mpi::MpiPeers, optim::Peers};

let peers = MpiPeers::initialize()?;
let device = Device::flex();
device.seed(0); // the same model on all ranks
let model = LinearConfig::new(4, 2).init(&device.clone().autodiff());
let amp = MixedPrecision::f16();
let (mut model, optim) = amp.prepare(model, SgdConfig::new().init());
let mut optim = optim.with_peers(peers.clone());

device.seed(peers.rank() as u64); // and other data
for _ in 0..3 {
    let input = Tensor::<2>::random([8, 4], Distribution::Default, &device.clone().autodiff());
    let loss = amp.autocast(input, |x| model.forward(x)).mean();
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    let grads = peers.average(&model, grads)?;
    model = optim.try_step(0.1, model, grads)?;
}
peers.compare(&model)?;
# Ok::<(), burn_amp::AmpError>(())
```

`mpirun -n 4 program` starts four of them. A rank that fails, panics or ends tells so to the others, which end with an error that names it; where one is
killed, `mpirun` ends the others.
"#
)]

#[cfg(feature = "mpi")]
mod average;
#[cfg(feature = "mpi")]
mod peers;
#[cfg(feature = "mpi")]
mod ranks;
#[cfg(all(test, feature = "mpi"))]
#[path = "../tests/units/starts.rs"]
mod starts;
#[cfg(feature = "mpi")]
mod world;

#[cfg(feature = "mpi")]
pub use peers::MpiPeers;
