//! Structs of numbers that a device has as 32-bit words.

use burn::tensor::{DType, Device, Tensor, TensorData};

/// A struct of numbers of 32 bits, how many there are, and a module that says where each field is among them.
macro_rules! words {
    (
        $(#[$about:meta])* $name:ident, $count:ident, $places:ident:
        $($(#[$doc:meta])* $at:literal $place:ident $field:ident: $type:ty,)*
    ) => {
        $(#[$about])*
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        /// Where each field is among the words.
        #[allow(dead_code)] // kernels name some of them
        pub(crate) mod $places {
            $(pub(crate) const $place: usize = $at;)*
        }

        pub(crate) const $count: usize = [$($at),*].len();

        impl $name {
            pub(crate) fn words(self) -> [u32; $count] {
                [$(u32::from_ne_bytes(self.$field.to_ne_bytes())),*]
            }

            #[allow(dead_code)] // of some of them
            pub(crate) fn of(words: &[u32]) -> Self {
                Self { $($field: <$type>::from_ne_bytes(words[$at].to_ne_bytes()),)* }
            }
        }
    };
}
pub(crate) use words;

/// Words, which are called floats: Burn's floats may be of one dtype only.
pub(crate) fn data_of<const D: usize>(
    words: impl IntoIterator<Item = u32>,
    shape: [usize; D],
) -> TensorData {
    let floats = words.into_iter().map(f32::from_bits);
    TensorData::new(floats.collect(), shape)
}

/// Words on a device. Does not wait for it.
pub(crate) fn upload<const D: usize>(
    words: impl IntoIterator<Item = u32>,
    shape: [usize; D],
    device: &Device,
) -> Tensor<D> {
    Tensor::from_data(data_of(words, shape), (device, DType::F32))
}

/// The words that are called floats.
pub(crate) fn words_of(data: &TensorData) -> Vec<u32> {
    let words = data.as_bytes().as_chunks().0.iter();
    words.map(|bytes| u32::from_ne_bytes(*bytes)).collect()
}
