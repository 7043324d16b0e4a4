//! Sentences that praise or blame. Whoever reads one must heed "not", and which part of the sentence counts.

use burn::{
    data::{
        dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher},
        dataset::InMemDataset,
    },
    nn::attention::generate_padding_mask,
    tensor::{Bool, Device, Int, Tensor, TensorData},
};
use std::sync::Arc;

use super::TrainingConfig;
use crate::random::Random;

const SUBJECTS: [&str; 6] = ["plot", "film", "cast", "music", "ending", "dialogue"];
const PRAISE: [&str; 6] = ["good", "great", "funny", "moving", "clever", "bright"];
const BLAME: [&str; 6] = ["bad", "dull", "weak", "boring", "clumsy", "flat"];
const OTHERS: [&str; 7] = ["the", "was", "not", "very", "but", "although", ","];
/// Takes the place of words that a shorter sentence has not; comes before all words.
const PADDING: usize = 0;

/// Blame and praise.
pub const CLASSES: usize = 2;
/// Words of the longest sentence.
pub const MAX_LENGTH: usize = 14;

/// How many words there are, the padding included.
pub fn vocabulary_size() -> usize {
    vocabulary().count()
}

fn vocabulary() -> impl Iterator<Item = &'static str> {
    let words = [&["<padding>"][..], &SUBJECTS, &PRAISE, &BLAME, &OTHERS];
    words.into_iter().flatten().copied()
}

/// A sentence, and whether it praises.
#[derive(Clone, Debug)]
pub struct Sentence {
    text: String,
    praises: bool,
}

impl Sentence {
    /// `the plot was dull but the music was not bad` praises: what comes after "but" counts, and what comes after the comma.
    fn random(random: &mut Random) -> Self {
        let (first, praises) = clause(random);
        let (text, praises) = match random.below(3) {
            0 => (first, praises),
            1 => {
                let (second, praises) = clause(random);
                (format!("{first} but {second}"), praises)
            }
            _ => {
                let (second, praises) = clause(random);
                (format!("although {first} , {second}"), praises)
            }
        };
        Self { text, praises }
    }

    fn tokens(&self) -> Vec<usize> {
        let words = self.text.split_whitespace();
        words
            .filter_map(|word| vocabulary().position(|other| other == word))
            .collect()
    }
}

fn clause(random: &mut Random) -> (String, bool) {
    let subject = random.choose(&SUBJECTS);
    let praises = random.below(2) == 1;
    let quality = random.choose(if praises { &PRAISE } else { &BLAME });
    match random.below(3) {
        0 => (format!("the {subject} was {quality}"), praises),
        1 => (format!("the {subject} was very {quality}"), praises),
        _ => (format!("the {subject} was not {quality}"), !praises),
    }
}

/// Some sentences.
#[derive(Clone, Debug)]
pub struct SentenceBatch {
    /// Words `[sentences, length]`.
    pub tokens: Tensor<2, Int>,
    /// Where they are only padding, `[sentences, length]`.
    pub mask: Tensor<2, Bool>,
    /// 1 for praise, `[sentences]`.
    pub targets: Tensor<1, Int>,
}

/// Makes batches.
#[derive(Clone, Debug)]
pub struct SentenceBatcher;

impl Batcher<Sentence, SentenceBatch> for SentenceBatcher {
    fn batch(&self, sentences: Vec<Sentence>, device: &Device) -> SentenceBatch {
        let tokens = sentences.iter().map(Sentence::tokens).collect();
        let padded = generate_padding_mask(PADDING, tokens, Some(MAX_LENGTH), device);
        let targets = sentences.iter().map(|sentence| i64::from(sentence.praises));
        let targets = TensorData::new(targets.collect::<Vec<_>>(), [sentences.len()]);
        SentenceBatch {
            tokens: padded.tensor,
            mask: padded.mask,
            targets: Tensor::from_data(targets, device),
        }
    }
}

/// A loader of sentences.
pub type Loader = Arc<dyn DataLoader<SentenceBatch>>;

/// 1280 sentences to train on, shuffled anew for each epoch, and 320 others.
pub fn loaders(config: &TrainingConfig) -> (Loader, Loader) {
    let mut random = Random(config.seed);
    let mut sentences = |count| {
        let sentences = (0..count).map(|_| Sentence::random(&mut random));
        InMemDataset::new(sentences.collect())
    };
    let builder = || DataLoaderBuilder::new(SentenceBatcher).batch_size(config.batch_size);
    let train = builder().shuffle(config.seed).build(sentences(1280));
    (train, builder().build(sentences(320)))
}
