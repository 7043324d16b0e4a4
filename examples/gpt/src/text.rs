//! The text: words and marks as numbers.
use std::collections::HashMap;

use burn::tensor::{Device, Int, Tensor, TensorData};

/// A text as tokens.
#[derive(Clone, Debug)]
pub struct Text {
    /// The words, each once.
    pub words: Vec<String>,
    /// Training.
    pub train: Vec<u32>,
    /// Held out.
    pub test: Vec<u32>,
}

/// Words, marks and line ends.
pub fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = None;
    for (at, c) in text.char_indices() {
        let word = c.is_alphanumeric() || c == '\'' || c == '-';
        if word {
            start.get_or_insert(at);
            continue;
        }
        if let Some(start) = start.take() {
            parts.push(&text[start..at]);
        }
        if c == '\n' || !c.is_whitespace() {
            parts.push(&text[at..at + c.len_utf8()]);
        }
    }
    if let Some(start) = start {
        parts.push(&text[start..]);
    }
    parts
}

impl Text {
    /// Splits.
    pub fn new(text: &str) -> Self {
        let parts = split(text);
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for part in &parts {
            *counts.entry(part).or_default() += 1;
        }
        let mut words: Vec<&str> = counts.keys().copied().collect();
        words.sort_by_key(|word| (usize::MAX - counts[word], *word));
        let index: HashMap<&str, u32> = words
            .iter()
            .enumerate()
            .map(|(i, w)| (*w, i as u32))
            .collect();
        let tokens: Vec<u32> = parts.iter().map(|part| index[part]).collect();
        let cut = tokens.len() * 9 / 10;
        Self {
            words: words.into_iter().map(String::from).collect(),
            train: tokens[..cut].to_vec(),
            test: tokens[cut..].to_vec(),
        }
    }
}

/// `[rows, length]` inputs and targets.
pub fn rows(
    tokens: &[u32],
    starts: &[usize],
    length: usize,
    device: &Device,
) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let gather = |shift: usize| {
        let values: Vec<i64> = starts
            .iter()
            .flat_map(|start| &tokens[start + shift..start + shift + length])
            .map(|token| i64::from(*token))
            .collect();
        Tensor::from_data(TensorData::new(values, [starts.len(), length]), device)
    };
    (gather(0), gather(1))
}
