//! The scaler's state as whole numbers, for the record of a module, which holds nothing but tensors.

use burn::{
    module::{Param, ParamId},
    tensor::{DType, Device, Int, Tensor, TensorData},
};
use crc32fast::hash;

use crate::scaler::GradScalerRecord;

/// Bytes in each number: as many as every backend's integers hold without a sign.
const BYTES_PER_WORD: usize = 2;
/// Numbers in the tensor. Its shape is fixed, because Burn checks it before it loads anything.
const WORDS: usize = 1024;
const CAPACITY: usize = WORDS * BYTES_PER_WORD;
const MAGIC: [u8; 4] = *b"BAMP";
const VERSION: u16 = 1;
/// Magic, version, length of the text, CRC-32 of version, length and text.
const HEAD: usize = 12;

/// The parameter that carries the state. On Flex, in i32, whatever the model's device: it never leaves the host, and is
/// not built before somebody reads it.
pub(super) fn to_param(id: ParamId, record: GradScalerRecord) -> Param<Tensor<1, Int>> {
    lazy_param(id, move || encode(&record))
}

/// A parameter that waits for a state.
pub(super) fn blank_param() -> Param<Tensor<1, Int>> {
    lazy_param(ParamId::new(), || vec![0; WORDS])
}

fn lazy_param(
    id: ParamId,
    words: impl FnOnce() -> Vec<i32> + Send + Sync + 'static,
) -> Param<Tensor<1, Int>> {
    let build = move |device: &Device, _: bool| {
        Tensor::from_data(TensorData::new(words(), [WORDS]), (device, DType::I32))
    };
    Param::uninitialized(id, build, Device::flex(), false, [WORDS].into())
}

/// The state in a parameter that a mapper has put in the place of ours; none if it left ours alone.
///
/// The error says what is wrong with the state.
pub(super) fn from_param(param: Param<Tensor<1, Int>>) -> Option<Result<GradScalerRecord, String>> {
    if !param.is_initialized() {
        return None;
    }
    let words: Vec<i64> = param.into_value().into_data().iter::<i64>().collect();
    Some(decode(&words))
}

fn encode(record: &GradScalerRecord) -> Vec<i32> {
    let text = serde_json::to_vec(record).expect("a record is plain data");
    assert!(HEAD + text.len() <= CAPACITY, "{} bytes", text.len());
    let body = [
        VERSION.to_le_bytes().as_slice(),
        &(text.len() as u16).to_le_bytes(),
        &text,
    ]
    .concat();
    let mut bytes = [
        MAGIC.as_slice(),
        &hash(&body).to_le_bytes(),
        body.as_slice(),
    ]
    .concat();
    bytes.resize(CAPACITY, 0);
    bytes
        .chunks(BYTES_PER_WORD)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]).into())
        .collect()
}

fn decode(words: &[i64]) -> Result<GradScalerRecord, String> {
    if words.len() != WORDS {
        return Err(format!(
            "it has {} numbers in place of {WORDS}",
            words.len()
        ));
    }
    let mut bytes = Vec::with_capacity(CAPACITY);
    for word in words {
        let word = u16::try_from(*word).map_err(|_| format!("{word} is not one of its numbers"))?;
        bytes.extend(word.to_le_bytes());
    }
    let damaged = || "its checksum does not match".to_string();
    let (head, text) = bytes.split_at(HEAD);
    if head[..4] != MAGIC {
        return Err("it does not start as one".to_string());
    }
    let stored = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    let version = u16::from_le_bytes([head[8], head[9]]);
    let length = usize::from(u16::from_le_bytes([head[10], head[11]]));
    let (text, rest) = text.split_at_checked(length).ok_or_else(damaged)?;
    if stored != hash(&[&head[8..], text].concat()) || rest.iter().any(|byte| *byte != 0) {
        return Err(damaged());
    }
    if version > VERSION {
        return Err(format!(
            "it has version {version}, this release reads up to {VERSION}: update burn-amp to load it"
        ));
    }
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::{CAPACITY, HEAD, WORDS, decode, encode};
    use crate::{GradScaler, GradScalerConfig, GradScalerRecord, GradScalerState};

    fn scaler() -> GradScaler {
        let config = GradScalerConfig::new()
            .with_init_scale(f64::from(f32::from_bits(0x3EAA_AAAB)))
            .with_growth_factor(1.0 + f64::EPSILON)
            .with_backoff_factor(1.0 / 3.0)
            .with_growth_interval(u32::MAX)
            .with_min_scale(Some(f64::from(f32::MIN_POSITIVE)))
            .with_max_scale(Some(f64::from(f32::MAX)))
            .with_hysteresis(u32::MAX);
        config.init().unwrap()
    }

    fn words(record: &GradScalerRecord) -> Vec<i64> {
        encode(record).into_iter().map(i64::from).collect()
    }

    #[test]
    fn the_longest_state_fits_twice() {
        let mut scaler = scaler();
        let state = GradScalerState {
            growth_tracker: Some(u32::MAX - 1),
            ..scaler.state()
        };
        scaler.load_state(&state).unwrap();
        let record = scaler.to_record();
        let length = serde_json::to_vec(&record).unwrap().len();
        assert!(HEAD + 2 * length <= CAPACITY, "{length} bytes");
        assert_eq!(decode(&words(&record)), Ok(record));
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let record = scaler().to_record();
        let words = words(&record);
        for index in 0..WORDS {
            for bit in 0..17 {
                let mut damaged = words.clone();
                damaged[index] ^= 1 << bit;
                assert!(decode(&damaged).is_err(), "bit {bit} of number {index}");
            }
            let mut damaged = words.clone();
            damaged[index] = -1 - damaged[index];
            assert!(decode(&damaged).is_err(), "sign of number {index}");
        }
        assert!(decode(&words[..WORDS - 1]).is_err());
    }
}
