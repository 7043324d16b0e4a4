use burn::{
    data::dataloader::{DataLoader, DataLoaderIterator},
    tensor::Device,
};
use std::sync::{Arc, Once};

/// A training data loader that goes on where one with the same seed stopped after `epochs` epochs.
///
/// A loader that shuffles draws a new order for each epoch. Burn does not store how far it is: a run that resumes with
/// `SupervisedTraining::checkpoint(n)` would see the orders of the first epochs again. Give the loader through this
/// function, with the same `n`, and it sees those that an uninterrupted run would. Without `shuffle` it changes
/// nothing. A loader with `num_workers` mixes the batches of its threads as they come: no two of its runs are the same.
///
/// The skipped orders are drawn when a run asks for the loader of its device, and, where it iterates over this one itself, with
/// the first `iter`. That reads no item, except with `num_workers`, whose threads start to read what is then dropped.
///
/// ```
/// use burn::data::{dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher}, dataset::InMemDataset};
/// use burn::tensor::{Device, Tensor};
/// use burn_amp::train::resumed_loader;
/// # struct Rows;
/// # impl Batcher<[f32; 2], Tensor<2>> for Rows {
/// #     fn batch(&self, rows: Vec<[f32; 2]>, device: &Device) -> Tensor<2> {
/// #         Tensor::stack(rows.into_iter().map(|row| Tensor::<1>::from_data(row, device)).collect(), 0)
/// #     }
/// # }
///
/// let rows = vec![[0.0, 1.0], [2.0, 3.0]];
/// let loader = DataLoaderBuilder::new(Rows).batch_size(2).shuffle(42).build(InMemDataset::new(rows));
/// let epochs_done = 3;
/// let loader = resumed_loader(loader, epochs_done);
/// assert_eq!(loader.num_items(), 2);
/// ```
pub fn resumed_loader<O: 'static>(
    loader: Arc<dyn DataLoader<O>>,
    epochs: usize,
) -> Arc<dyn DataLoader<O>> {
    match epochs {
        0 => loader,
        _ => Arc::new(Resumed::new(loader, epochs)),
    }
}

/// Advanced only where it is iterated over: of it, Burn makes loaders for its devices, with random states of their own.
struct Resumed<O> {
    loader: Arc<dyn DataLoader<O>>,
    epochs: usize,
    advanced: Once,
}

impl<O: 'static> Resumed<O> {
    fn new(loader: Arc<dyn DataLoader<O>>, epochs: usize) -> Self {
        Self {
            loader,
            epochs,
            advanced: Once::new(),
        }
    }
}

/// Draws the orders of these epochs.
fn advance<O>(loader: &Arc<dyn DataLoader<O>>, epochs: usize) {
    for _ in 0..epochs {
        drop(loader.iter());
    }
}

impl<O: 'static> DataLoader<O> for Resumed<O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        self.advanced
            .call_once(|| advance(&self.loader, self.epochs));
        self.loader.iter()
    }

    fn num_items(&self) -> usize {
        self.loader.num_items()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        let loader = self.loader.to_device(device);
        advance(&loader, self.epochs);
        loader
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        Arc::new(Self::new(self.loader.slice(start, end), self.epochs))
    }
}
