//! Structs of numbers that a device has as 32-bit words.

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
