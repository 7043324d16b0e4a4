//! The scaler's state as whole numbers, for the record of a module, which holds nothing but tensors.

use burn::{
    module::{Param, ParamId},
    tensor::{DType, Device, Int, Tensor, TensorData},
};
use crc32fast::hash;
use serde::{Deserialize, Serialize};

use crate::{ema::EmaState, scaler::GradScalerRecord};

/// Bytes in each number: as many as every backend's integers hold without a sign.
const BYTES_PER_WORD: usize = 2;
/// Numbers in the tensor. Its shape is fixed, because Burn checks it before it loads anything.
const WORDS: usize = 1024;
const CAPACITY: usize = WORDS * BYTES_PER_WORD;
const MAGIC: [u8; 4] = *b"BAMP";
/// 1 is the scaler alone, 2 has what belongs to averages of the weights. Written is the lowest that holds the state.
const VERSION: u16 = 2;
/// Magic, version, length of the text, CRC-32 of version, length and text.
const HEAD: usize = 12;

/// What the tensor holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    pub(super) scaler: GradScalerRecord,
    /// Beside averages, which are tensors of their own.
    pub(super) ema: Option<EmaState>,
}

impl State {
    pub(super) fn of_scaler(scaler: GradScalerRecord) -> Self {
        Self { scaler, ema: None }
    }
}

/// What is wrong with a state that was to be loaded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum StateError {
    #[error("the loss scaler's state is damaged: {0}")]
    Damaged(String),
    #[error(
        "the loss scaler's state has version {found}, this release reads up to {supported}: update burn-amp to load it"
    )]
    Newer { found: u64, supported: u64 },
}

/// The parameter that carries the state. On Flex, in i32, whatever the model's device: it never leaves the host, and is
/// not built before somebody reads it.
pub(super) fn to_param(id: ParamId, state: State) -> Param<Tensor<1, Int>> {
    lazy_param(id, move || encode(&state))
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
pub(super) fn from_param(param: Param<Tensor<1, Int>>) -> Option<Result<State, StateError>> {
    if !param.is_initialized() {
        return None;
    }
    let words: Vec<i64> = param.into_value().into_data().iter::<i64>().collect();
    Some(decode(&words))
}

fn encode(state: &State) -> Vec<i32> {
    let (version, text) = match state.ema {
        None => (1, serde_json::to_vec(&state.scaler)),
        Some(_) => (VERSION, serde_json::to_vec(state)),
    };
    let text = text.expect("a state is plain data");
    assert!(HEAD + text.len() <= CAPACITY, "{} bytes", text.len());
    let body = [
        version.to_le_bytes().as_slice(),
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

fn decode(words: &[i64]) -> Result<State, StateError> {
    let damaged = |reason: String| StateError::Damaged(reason);
    if words.len() != WORDS {
        let reason = format!("it has {} numbers in place of {WORDS}", words.len());
        return Err(damaged(reason));
    }
    let mut bytes = Vec::with_capacity(CAPACITY);
    for word in words {
        let word = u16::try_from(*word)
            .map_err(|_| damaged(format!("{word} is not one of its numbers")))?;
        bytes.extend(word.to_le_bytes());
    }
    let changed = || damaged("its checksum does not match".to_string());
    let (head, text) = bytes.split_at(HEAD);
    if head[..4] != MAGIC {
        return Err(damaged("it does not start as one".to_string()));
    }
    let stored = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    let version = u16::from_le_bytes([head[8], head[9]]);
    let length = usize::from(u16::from_le_bytes([head[10], head[11]]));
    let (text, rest) = text.split_at_checked(length).ok_or_else(changed)?;
    if stored != hash(&[&head[8..], text].concat()) || rest.iter().any(|byte| *byte != 0) {
        return Err(changed());
    }
    let state = match version {
        0 => return Err(damaged("it has version 0".to_string())),
        1 => serde_json::from_slice(text).map(State::of_scaler),
        2 => serde_json::from_slice(text),
        _ => {
            return Err(StateError::Newer {
                found: version.into(),
                supported: VERSION.into(),
            });
        }
    };
    state.map_err(|error| damaged(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::{CAPACITY, HEAD, State, WORDS, decode, encode};
    use crate::{GradScaler, GradScalerConfig, GradScalerState, ema::EmaState};

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

    fn words(state: &State) -> Vec<i64> {
        encode(state).into_iter().map(i64::from).collect()
    }

    #[test]
    fn the_longest_state_fits_twice() {
        let mut scaler = scaler();
        let state = GradScalerState {
            growth_tracker: Some(u32::MAX - 1),
            ..scaler.state()
        };
        scaler.load_state(&state).unwrap();
        let mut state = State::of_scaler(scaler.to_record());
        assert_eq!(decode(&words(&state)), Ok(state.clone()));
        state.ema = Some(EmaState { updates: u64::MAX });
        assert_eq!(decode(&words(&state)), Ok(state.clone()));
        let length = serde_json::to_vec(&state).unwrap().len();
        assert!(HEAD + 2 * length <= CAPACITY, "{length} bytes");
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let words = words(&State::of_scaler(scaler().to_record()));
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
