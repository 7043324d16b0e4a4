//! `resumed_loader`: the orders of the epochs to come, however the loader is used.

use burn::{
    data::dataloader::{DataLoader, split::split_dataloader},
    tensor::Device,
};
use burn_amp::train::resumed_loader;
use std::sync::Arc;

use crate::support::{Batch, loader, samples};

type Loader = Arc<dyn DataLoader<Batch>>;

/// The values of an epoch, in its order.
fn epoch(loader: &Loader) -> Vec<f32> {
    let batches = loader.iter().map(|batch| batch.unwrap().features);
    batches
        .flat_map(|features| features.into_data().iter::<f32>().collect::<Vec<_>>())
        .collect()
}

fn shuffled() -> Loader {
    loader(samples(40), Some(7))
}

#[test]
fn the_loader_itself_goes_on_where_the_other_has_stopped() {
    let whole = shuffled();
    let epochs: Vec<_> = (0..4).map(|_| epoch(&whole)).collect();
    assert!(epochs[0] != epochs[2]);
    let resumed = resumed_loader(shuffled(), 2);
    assert!([epoch(&resumed), epoch(&resumed)] == epochs[2..]);
}

#[test]
fn so_do_the_loaders_of_one_device_and_of_several() {
    let flex = Device::flex();
    for devices in [vec![flex.clone()], vec![flex.clone(), flex.clone()]] {
        let whole = split_dataloader(shuffled(), &devices);
        let resumed = split_dataloader(resumed_loader(shuffled(), 1), &devices);
        for (whole, resumed) in whole.iter().zip(&resumed) {
            let first = epoch(whole);
            assert!(epoch(whole) == epoch(resumed));
            assert!(first != epoch(resumed));
        }
    }
    let (whole, resumed) = (shuffled(), resumed_loader(shuffled(), 1));
    let [whole, resumed] = [whole, resumed].map(|loader| loader.to_device(&flex));
    epoch(&whole);
    assert!(epoch(&whole) == epoch(&resumed));
}
