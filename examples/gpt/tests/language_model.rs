//! What the README says, at a size that a debug build can train.

use burn::{
    module::Module,
    nn::loss::CrossEntropyLossConfig,
    optim::{AdamConfig, GradientsParams},
    tensor::Device,
};
use burn_amp::{MixedPrecision, ScaledOptimizer, gradients::inspect, pipeline::PipelinedOptimizer};
use gpt::{
    lost::{Lost, lost, lost_words},
    model::{Gpt, Size},
    text::{SONNETS, Starts, Text, split, windows},
    training::{Run, Settings, Trainer, gradients},
};
use std::{
    process::{Command, Output},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Random numbers are the device's, for all threads: a test that begins with those of a seed has it for itself.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn settings(steps: usize, batch_tokens: usize) -> Settings {
    Settings {
        steps,
        batch_tokens,
        size: Size {
            context: 16,
            width: 8,
            heads: 2,
            layers: 1,
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

#[test]
fn words_marks_and_line_ends_are_tokens() {
    let parts = split("O, th' expense of self-love,\nand '");
    let expected = [
        "O",
        ",",
        "th'",
        "expense",
        "of",
        "self-love",
        ",",
        "\n",
        "and",
        "'",
    ];
    assert_eq!(parts, expected);

    let text = Text::new("b a, b\nb a c");
    assert_eq!(text.words, ["b", "a", "\n", ",", "c"]);
    assert_eq!(text.train, [0, 1, 3, 0, 2, 0, 1]);
    assert_eq!(text.held_out, [4]);
}

#[test]
fn the_sonnets_are_whole() {
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
    assert_eq!(next, [104, 105, 106, 107, 196, 197, 198, 199]);

    let drawn = Starts::new(5).draw(1000, 20, 4);
    assert_eq!(drawn, Starts::new(5).draw(1000, 20, 4));
    assert_ne!(drawn, Starts::new(6).draw(1000, 20, 4));
    // The last window has a successor still.
    assert_eq!(
        (drawn.iter().min(), drawn.iter().max()),
        (Some(&0), Some(&15))
    );
}

/// 80 windows are two micro-batches, of 64 and 16.
#[test]
fn micro_batches_add_up_to_the_mean_over_the_batch() {
    let _turn = alone();
    let text = Text::new(&SONNETS[..4000]);
    let settings = settings(1, 80 * 16);
    let model = settings.network(&text, &Device::flex().autodiff());
    let batch = settings.batch(&mut Starts::new(3), &text);
    assert_eq!(batch.len(), 80);
    let (loss, grads) = gradients(&model, &MixedPrecision::f32(), &text, &batch, &settings);

    let device = Device::flex().autodiff();
    let (tokens, next) = windows(&text.train, &batch, 16, &device);
    let whole = CrossEntropyLossConfig::new().init(&device);
    let whole = whole.forward(model.forward(tokens), next);
    let value = whole.clone().into_scalar::<f32>();
    let whole = GradientsParams::from_grads(whole.backward(), &model);
    assert!((loss - value).abs() < 1e-5 * value, "{loss} and {value}");
    let norm = |grads| inspect(grads, &model).unwrap().norm();
    let (parts, whole) = (norm(&grads), norm(&whole));
    assert!((parts - whole).abs() < 1e-5 * whole, "{parts} and {whole}");
}

/// The same network and the same windows: only the number of tokens that the loss is a mean over differs.
#[test]
fn a_large_batch_loses_gradients_in_f16_and_loss_scaling_keeps_them() {
    let _turn = alone();
    let text = Text::new(SONNETS);
    let small = settings(25, 512);
    let large = settings(25, 16_384);
    let model: Gpt = trained(Run::F32, small, &text).model;
    let batch = small.batch(&mut Starts::new(9), &text);
    let of = |run, settings: &Settings| lost(&model, run, &text, &batch, settings).unwrap();
    let head = |lost: &[Lost]| {
        let head = lost.iter().find(|lost| lost.group == "head");
        head.unwrap().share()
    };

    let plain = of(Run::F16, &large);
    let scaled = of(Run::F16Scaled, &large);
    assert!(head(&plain) > 0.5);
    assert!(head(&scaled) < 0.01);
    assert!(head(&of(Run::F16, &small)) < 0.5 * head(&plain));
    for (plain, scaled) in plain.iter().zip(&scaled) {
        assert!(scaled.error() < 0.02, "{scaled:?}");
        assert!(plain.error() > 10.0 * scaled.error(), "{plain:?}");
    }
    let (words, probability) = lost_words(&model, &text, &batch, &large);
    assert!(words > 0.7);
    assert!(probability > 0.05);
    assert_eq!(of(Run::F32, &large).iter().map(|l| l.zeros).sum::<u64>(), 0);
}

/// The mean over 512 tokens needs no scale.
#[test]
fn all_precisions_train_alike_with_a_small_batch() {
    let _turn = alone();
    let text = Text::new(SONNETS);
    let settings = settings(10, 512);
    let full = trained(Run::F32, settings, &text);
    let begin = full.losses[0];
    let full = full.held_out_loss(&text);
    assert!(
        full < begin - 0.5,
        "nothing was learned: {begin}, then {full}"
    );
    for run in [Run::F16, Run::F16Scaled, Run::Bf16] {
        let half = trained(run, settings, &text).held_out_loss(&text);
        assert!((half - full).abs() < 0.01, "{run:?}: {half}, f32 {full}");
    }
}

/// With the optimizer on a thread of its own, one update behind.
#[test]
fn a_pipelined_run_ends_where_a_synchronous_one_does() {
    let _turn = alone();
    let text = Text::new(&SONNETS[..8000]);
    let settings = Settings {
        learning_rate: 0.01,
        ..settings(150, 256)
    };
    let train = |synchronous: bool| {
        let amp = MixedPrecision::f16();
        let network = settings.network(&text, &Device::flex().autodiff());
        let mut model = network.apply_reparameterization(amp.clone());
        let optim = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
        let optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
        let mut optim = optim.with_synchronous(synchronous);
        let mut starts = Starts::new(settings.seed);
        let mut losses = Vec::new();
        for step in 0..settings.steps {
            let lr = settings.learning_rate * (1.0 - step as f64 / settings.steps as f64);
            let batch = settings.batch(&mut starts, &text);
            let (loss, grads) = gradients(&model, &amp, &text, &batch, &settings);
            model = optim.step(lr, model, grads);
            losses.push(loss);
        }
        optim.synchronize(model).unwrap();
        let last = &losses[settings.steps - 20..];
        (losses[0], last.iter().sum::<f32>() / last.len() as f32)
    };
    let (begin, expected) = train(true);
    let (_, loss) = train(false);
    println!("from {begin}: synchronous {expected}, pipelined {loss}");
    assert!(
        expected < begin - 1.0,
        "nothing was learned: {begin}, then {expected}"
    );
    assert!(
        (loss - expected).abs() < 0.01 * expected,
        "{loss}, {expected}"
    );
}

#[test]
fn precisions_are_what_their_names_say() {
    let scale = |run: Run| run.precision().unwrap().loss_scale();
    assert_eq!(scale(Run::F16), 1.0);
    assert_eq!(scale(Run::F16Scaled), 65536.0);
    assert_eq!((scale(Run::F32), scale(Run::Bf16)), (1.0, 1.0));
}

fn program(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpt"));
    command.args(args).output().unwrap()
}

fn printed(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_program_prints_its_tables() {
    let small = [
        "--steps",
        "1",
        "--batch-tokens",
        "64",
        "--width",
        "4",
        "--layers",
        "1",
    ];
    let all = [&small[..], &["--precision", "f32,f16,f16-scaled,bf16"]].concat();
    let output = printed(&program(&all));
    let table: Vec<&str> = output.lines().rev().take(5).collect();
    for (line, name) in table
        .iter()
        .zip(["bf16", "f16 + loss scaling", "f16 ", "f32 "])
    {
        assert!(line.starts_with(name), "{output}");
    }
    assert!(
        table[1].contains("2^16") && table[2].contains("2^0"),
        "{output}"
    );
    for group in ["embeddings", "queries, keys", "head"] {
        let lines = output.lines().filter(|line| line.starts_with(group));
        assert_eq!(lines.count(), 2, "{group} before and after: {output}");
    }
    let gradients = [&small[..], &["--only-gradients"]].concat();
    assert!(!printed(&program(&gradients)).contains("held-out loss"));
}

#[test]
fn wrong_arguments_are_refused() {
    for (args, word) in [
        (["--steps", "0"], "1..=1000000"),
        (["--width", "7"], "--width"),
        (["--batch-tokens", "100"], "--batch-tokens"),
        (["--precision", "f8"], "f16-scaled"),
    ] {
        let output = program(&args);
        assert!(!output.status.success());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            error.contains(word) && !error.contains("panicked"),
            "{error}"
        );
    }
}

/// What the README promises of the whole job. Many minutes without optimization: run it with `--release -- --ignored`.
#[test]
#[ignore = "many minutes in a debug build"]
fn the_whole_job_keeps_its_promises() {
    let start = Instant::now();
    let output = printed(&program(&[]));
    assert!(start.elapsed() < Duration::from_secs(300));
    let loss = |name: &str| -> f32 {
        let line = output.lines().rev().find(|line| line.starts_with(name));
        let cells = line.unwrap()[name.len()..].split_whitespace().next();
        cells.unwrap().parse().unwrap()
    };
    let (f32, f16, scaled) = (loss("f32"), loss("f16 "), loss("f16 + loss scaling"));
    assert!((scaled - f32).abs() < 0.02, "{output}");
    assert!(f16 > f32 + 0.2, "{output}");
}
