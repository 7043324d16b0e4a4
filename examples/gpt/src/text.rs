//! The sonnets as numbers: a word, a mark or the end of a line is a token.

use burn::tensor::{Device, Int, Tensor, TensorData};
use std::collections::HashMap;

/// The first eighty of Shakespeare's sonnets.
pub const SONNETS: &str = include_str!("../data/sonnets.txt");

/// A text as tokens, and its vocabulary.
#[derive(Clone, Debug)]
pub struct Text {
    /// Every word that occurs, the most frequent first.
    pub words: Vec<String>,
    /// The first nine tenths, to train on.
    pub train: Vec<u32>,
    /// The last tenth, which training never sees.
    pub held_out: Vec<u32>,
}

impl Text {
    /// Counts the words of a text, and numbers them.
    pub fn new(text: &str) -> Self {
        let parts = split(text);
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for part in &parts {
            *counts.entry(part).or_default() += 1;
        }
        let mut words: Vec<&str> = counts.keys().copied().collect();
        words.sort_by_key(|word| (usize::MAX - counts[word], *word));
        let numbers = words.iter().zip(0..);
        let numbers: HashMap<&str, u32> = numbers.map(|(word, number)| (*word, number)).collect();
        let tokens: Vec<u32> = parts.iter().map(|part| numbers[part]).collect();
        let (train, held_out) = tokens.split_at(tokens.len() * 9 / 10);
        Self {
            words: words.iter().map(ToString::to_string).collect(),
            train: train.to_vec(),
            held_out: held_out.to_vec(),
        }
    }
}

/// The words, marks and line ends of a text, in order; spaces are left out.
pub fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut word = None;
    for (at, c) in text.char_indices() {
        if c.is_alphanumeric() || c == '\'' || c == '-' {
            word.get_or_insert(at);
            continue;
        }
        parts.extend(word.take().map(|start: usize| &text[start..at]));
        if c == '\n' || !c.is_whitespace() {
            parts.push(&text[at..at + c.len_utf8()]);
        }
    }
    parts.extend(word.map(|start| &text[start..]));
    parts
}

/// Windows of a text: tokens `[windows, length]`, and the tokens that follow each of them, `[windows * length]`.
pub fn windows(
    tokens: &[u32],
    starts: &[usize],
    length: usize,
    device: &Device,
) -> (Tensor<2, Int>, Tensor<1, Int>) {
    let gather = |shift: usize| -> Vec<i64> {
        let window = |start: &usize| &tokens[start + shift..][..length];
        starts
            .iter()
            .flat_map(window)
            .map(|t| i64::from(*t))
            .collect()
    };
    let count = starts.len();
    let input = TensorData::new(gather(0), [count, length]);
    let next = TensorData::new(gather(1), [count * length]);
    (
        Tensor::from_data(input, device),
        Tensor::from_data(next, device),
    )
}

/// Where windows begin, at random: the same seed gives the same windows.
#[derive(Clone, Debug)]
pub struct Starts(u64);

impl Starts {
    /// The first windows of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Some windows of `length` tokens that have a successor each.
    pub fn draw(&mut self, count: usize, tokens: usize, length: usize) -> Vec<usize> {
        (0..count)
            .map(|_| self.next() as usize % (tokens - length))
            .collect()
    }

    /// SplitMix64 (Steele, Lea and Flood, 2014).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
