//! What a source shows, in words that all dialects share.

use std::collections::{BTreeMap, HashMap};

/// What only a source that trusts in NaN, or adds up in no fixed order, would hold.
/// CubeCL writes the atomics of CUDA as assembly.
const UNWANTED: [&str; 5] = ["atomic", "asm", "isnan", "isinf", "isfinite"];
/// All of a float's bits but its sign.
const MAGNITUDE: u32 = 0x7FFF_FFFF;

/// What a statement does, as far as the facts go. Names are of other statements.
#[derive(Debug, PartialEq)]
pub(crate) enum Op<'a> {
    /// Points to an element of a buffer, of this type.
    Element(String),
    Load(&'a str),
    Store(&'a str),
    /// A float's bits.
    Bits,
    Constant(u32),
    And(&'a str, &'a str),
}

/// Counted in the text: a kernel has its own loads for each of its tensors.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Facts {
    /// Reads of floats from buffers by type, such as `f16x4`.
    pub(crate) loads: BTreeMap<String, usize>,
    pub(crate) stores: BTreeMap<String, usize>,
    /// Magnitudes that are taken by a float's bits.
    pub(crate) magnitudes: usize,
    pub(crate) unwanted: Vec<&'static str>,
}

impl Facts {
    /// Of a source, and what its statements are called and do. A name that nothing uses may stand for several.
    pub(crate) fn new(source: &str, statements: &[(&str, Op<'_>)]) -> Self {
        let named: HashMap<&str, &Op<'_>> = statements.iter().map(|(n, op)| (*n, op)).collect();
        let lower = source.to_lowercase();
        let mut facts = Self {
            unwanted: (UNWANTED.into_iter())
                .filter(|word| lower.contains(word))
                .collect(),
            ..Self::default()
        };
        for (_, op) in statements {
            let (accesses, pointer) = match op {
                Op::Load(pointer) => (&mut facts.loads, pointer),
                Op::Store(pointer) => (&mut facts.stores, pointer),
                Op::And(bits, mask) => {
                    let found = (named.get(bits), named.get(mask));
                    let wanted = (Some(&&Op::Bits), Some(&&Op::Constant(MAGNITUDE)));
                    facts.magnitudes += usize::from(found == wanted);
                    continue;
                }
                _ => continue,
            };
            // Tables, rows and status are words, and no tensors.
            if let Some(Op::Element(class)) = named.get(pointer)
                && class != "u32"
            {
                *accesses.entry(class.clone()).or_default() += 1;
            }
        }
        facts
    }
}

/// `f16x4` for a vector, `f16` for a scalar.
pub(crate) fn type_name(scalar: &str, width: usize) -> String {
    match width {
        1 => scalar.to_string(),
        _ => format!("{scalar}x{width}"),
    }
}
