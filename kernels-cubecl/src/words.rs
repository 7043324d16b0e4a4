//! Structs of numbers that a device has as 32-bit words.

use burn::tensor::{DType, TensorData};

/// A number of 32 bits.
pub(crate) trait Word {
    fn bits(self) -> u32;
    fn of_bits(bits: u32) -> Self;
}

impl Word for u32 {
    fn bits(self) -> u32 {
        self
    }

    fn of_bits(bits: u32) -> u32 {
        bits
    }
}

impl Word for f32 {
    fn bits(self) -> u32 {
        self.to_bits()
    }

    fn of_bits(bits: u32) -> f32 {
        f32::from_bits(bits)
    }
}

/// A struct, its number of words, and a module that says where each field is among them.
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
                [$($crate::words::Word::bits(self.$field)),*]
            }

            #[allow(dead_code)] // of some of them
            pub(crate) fn of(words: &[u32]) -> Self {
                Self { $($field: $crate::words::Word::of_bits(words[$at]),)* }
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
    let bytes = words.into_iter().flat_map(u32::to_ne_bytes);
    TensorData::from_bytes_vec(bytes.collect(), shape, DType::F32)
}

/// The words that are called floats.
pub(crate) fn words_of(data: &TensorData) -> Vec<u32> {
    let words = data.as_bytes().as_chunks().0.iter();
    words.map(|bytes| u32::from_ne_bytes(*bytes)).collect()
}
