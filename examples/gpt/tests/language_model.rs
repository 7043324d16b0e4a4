//! What the README says, at a size that a debug build can train.

#[path = "../../digits/tests/program/mod.rs"]
mod program;

use burn::{nn::loss::CrossEntropyLossConfig, optim::GradientsParams, tensor::Device};
use burn_amp::{MixedPrecision, gradients::inspect};
use gpt::{
    lost::{Lost, lost, lost_words},
    model::{Gpt, Size},
    text::{SONNETS, Starts, Text, split, windows},
    training::{Run, Settings, Trainer, gradients},
};
use program::{prints, refuses};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Random numbers are the device's, for all threads: a test that begins with those of a seed has it for itself.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn settings(steps: usize, batch_tokens: usize) -> Settings {
    let (context, width, heads, layers) = (16, 8, 2, 1);
    Settings {
        steps,
        batch_tokens,
        size: Size {
            context,
            width,
            heads,
            layers,
            tied: false,
        },
        learning_rate: 0.03,
        seed: 1,
    }
}

fn trained(run: Run, settings: Settings, text: &Text) -> Trainer {
    let device = Device::flex().autodiff();
    let mut trainer = Trainer::new(run, settings, text, &device).unwrap();
    for _ in 0..settings.steps {
        trainer.step(text).unwrap();
    }
    trainer
}

/// Words, marks and line ends are tokens, a tenth is held out, and the sonnets are whole.
#[test]
fn the_text() {
    let parts = split("O, th' expense of self-love,\nand '");
    let expected = "O|,|th'|expense|of|self-love|,|\n|and|'";
    assert_eq!(parts, expected.split('|').collect::<Vec<_>>());
    let text = Text::new("b a, b\nb a c");
    assert_eq!(text.words, ["b", "a", "\n", ",", "c"]);
    assert_eq!(text.train, [0, 1, 3, 0, 2, 0, 1]);
    assert_eq!(text.held_out, [4]);

    let sonnets: Vec<&str> = SONNETS.split("\n\n").collect();
    assert_eq!(sonnets.len(), 160, "a number and a poem for each of eighty");
    for poem in sonnets.iter().skip(1).step_by(2) {
        assert_eq!(poem.trim_end().lines().count(), 14, "{poem}");
    }
    let text = Text::new(SONNETS);
    assert!(text.words.len() > 2000);
    assert_eq!(text.train.len() / 9, text.held_out.len() - 1);
}

#[test]
fn what_follows_a_window_is_its_target() {
    let tokens: Vec<u32> = (100..200).collect();
    let (input, next) = windows(&tokens, &[3, 95], 4, &Device::flex());
    let input: Vec<i64> = input.into_data().iter().collect();
    let next: Vec<i64> = next.into_data().iter().collect();
    assert_eq!(input, [103, 104, 105, 106, 195, 196, 197, 198]);
    assert!(next.into_iter().eq(input.iter().map(|token| token + 1)));

    let drawn = Starts::new(5).draw(1000, 20, 4);
    assert_eq!(drawn, Starts::new(5).draw(1000, 20, 4));
    assert_ne!(drawn, Starts::new(6).draw(1000, 20, 4));
    // The last window has a successor still.
    let ends = (drawn.iter().min(), drawn.iter().max());
    assert_eq!(ends, (Some(&0), Some(&15)));
}

/// 80 windows are two micro-batches, of 64 and 16.
#[test]
fn micro_batches_add_up_to_the_mean_over_the_batch() {
    let _turn = alone();
    let text = Text::new(&SONNETS[..4000]);
    let settings = settings(1, 80 * 16);
    let device = Device::flex().autodiff();
    let model = settings.network(&text, &device);
    let batch = settings.batch(&mut Starts::new(3), &text);
    assert_eq!(batch.len(), 80);
    let (loss, grads) = gradients(&model, &MixedPrecision::f32(), &text, &batch, &settings);

    let (tokens, next) = windows(&text.train, &batch, 16, &device);
    let whole = CrossEntropyLossConfig::new().init(&device);
    let whole = whole.forward(model.forward(tokens), next);
    let value = whole.clone().into_scalar::<f32>();
    let whole = GradientsParams::from_grads(whole.backward(), &model);
    assert!((loss - value).abs() < 1e-5 * value, "{loss} and {value}");
    let [parts, whole] = [&grads, &whole].map(|grads| inspect(grads, &model).unwrap().norm());
    assert!((parts - whole).abs() < 1e-5 * whole, "{parts} and {whole}");
}

/// The same network and the same windows: only the number of tokens that the loss is a mean over differs.
#[test]
fn a_large_batch_loses_gradients_in_f16_and_loss_scaling_keeps_them() {
    let _turn = alone();
    let text = Text::new(SONNETS);
    let (small, large) = (settings(25, 512), settings(25, 16_384));
    let model: Gpt = trained(Run::F32, small, &text).model;
    let batch = small.batch(&mut Starts::new(9), &text);
    let of = |run, settings: &Settings| lost(&model, run, &text, &batch, settings).unwrap();
    let head = |lost: &[Lost]| {
        let head = lost.iter().find(|lost| lost.group == "head");
        head.unwrap().share()
    };

    let (plain, scaled) = (of(Run::F16, &large), of(Run::F16Scaled, &large));
    assert!(head(&plain) > 0.5 && head(&scaled) < 0.01);
    assert!(head(&of(Run::F16, &small)) < 0.5 * head(&plain));
    for (plain, scaled) in plain.iter().zip(&scaled) {
        assert!(scaled.error() < 0.02, "{scaled:?}");
        assert!(plain.error() > 10.0 * scaled.error(), "{plain:?}");
    }
    let (words, probability) = lost_words(&model, &text, &batch, &large);
    assert!(words > 0.7 && probability > 0.05);
    assert_eq!(of(Run::F32, &large).iter().map(|l| l.zeros).sum::<u64>(), 0);
}

/// The mean over 512 tokens needs no scale; and precisions are what their names say.
#[test]
fn all_precisions_train_alike_with_a_small_batch() {
    let _turn = alone();
    let text = Text::new(SONNETS);
    let settings = settings(10, 512);
    assert_eq!(Run::F32.precision().unwrap().loss_scale(), 1.0);
    let full = trained(Run::F32, settings, &text);
    let (begin, full) = (full.losses[0], full.held_out_loss(&text));
    assert!(full < begin - 0.5, "learned nothing: {begin}, then {full}");
    for (run, scale) in [(Run::F16, 1.0), (Run::F16Scaled, 65536.0), (Run::Bf16, 1.0)] {
        assert_eq!(run.precision().unwrap().loss_scale(), scale);
        let half = trained(run, settings, &text).held_out_loss(&text);
        assert!((half - full).abs() < 0.01, "{run:?}: {half}, f32 {full}");
    }
}

fn gpt(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpt"));
    command.args(args);
    command
}

#[test]
fn the_program_prints_its_tables() {
    let small = "--steps 1 --batch-tokens 64 --width 4 --layers 1";
    let small: Vec<&str> = small.split(' ').collect();
    let output = prints(gpt(&small).args(["--precision", "f32,f16,f16-scaled,bf16"]));
    let table: Vec<&str> = output.lines().rev().take(5).collect();
    let names = ["bf16", "f16 + loss scaling", "f16 ", "f32 "];
    let mut rows = table.iter().zip(names);
    assert!(rows.all(|(line, name)| line.starts_with(name)), "{output}");
    let scales = table[1].contains("2^16") && table[2].contains("2^0");
    assert!(scales, "{output}");
    for group in ["embeddings", "queries, keys", "head"] {
        let lines = output.lines().filter(|line| line.starts_with(group));
        assert_eq!(lines.count(), 2, "{group} before and after: {output}");
    }
    let gradients = prints(gpt(&small).arg("--only-gradients"));
    assert!(!gradients.contains("held-out loss"));
    refuses(
        gpt,
        &[
            (&["--steps", "0"], "1..=1000000"),
            (&["--width", "7"], "--width"),
            (&["--batch-tokens", "100"], "--batch-tokens"),
            (&["--precision", "f8"], "f16-scaled"),
        ],
    );
}

/// What the README promises of the whole job. Many minutes without optimization: run it with `--release -- --ignored`.
#[test]
#[ignore = "many minutes in a debug build"]
fn the_whole_job_keeps_its_promises() {
    let output = prints(&mut gpt(&[]));
    let loss = |name: &str| -> f32 {
        let line = output.lines().rev().find(|line| line.starts_with(name));
        let cells = line.unwrap()[name.len()..].split_whitespace().next();
        cells.unwrap().parse().unwrap()
    };
    let [f32, f16, scaled] = ["f32", "f16 ", "f16 + loss scaling"].map(loss);
    assert!((scaled - f32).abs() < 0.02, "{output}");
    assert!(f16 > f32 + 0.2, "{output}");
}
