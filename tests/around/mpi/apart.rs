//! Ranks that do not fit, fail or end: all end with an error that names one, and none waits.

use super::job::{Said, run};
use super::together::{gradients, is_last, model};
use crate::support::*;
use burn_amp::mpi::MpiPeers;
use burn_amp::optim::Peers;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// In what the last rank differs, and what every rank says of it.
const DIFFERS: &str = "
in settings > it begins otherwise than rank 0
in its model > it has `weight` of shape [4, 2], where rank 0 has `weight` of shape [4, 3]
in values > with the checksum
in a gradient > shape
";

/// What the last rank does in place of a step, or of all, and what the others say of it. It ends all calls between them: each is a job of its own.
const ENDS: &str = "
ends after three steps > it has ended its training
panics in a step > it has ended its training
ends without an optimizer > it has ended its training
leaves a step out > it compares parameters, where rank 0 averages gradients
steps without an average > it votes on a step, where rank 0 averages gradients
";

/// Ranks say of the last of so many that it stops them.
fn says_of_last(ranks: usize, why: &str, said: &str) {
    let stops = format!("rank {} of the training stops it: ", ranks - 1);
    says(said, [&*stops, why]);
}

#[test]
fn other_settings_models_and_values_are_refused_on_all() {
    for written in run("differs") {
        for [name, why] in rows(DIFFERS) {
            let (last, others) = written.split_last().unwrap();
            (others.iter()).for_each(|said| says_of_last(written.len(), why, &said[name]));
            match name {
                // Its own error has no number.
                "in a gradient" => says(&last[name], [why]),
                _ => says_of_last(written.len(), why, &last[name]),
            }
        }
    }
}

pub fn differs(peers: &MpiPeers) -> Said {
    let is_last = is_last(peers);
    let either = |last: f64, others: f64| if is_last { last } else { others };
    let amp = f16_under(at_scale(either(512.0, 1024.0)));
    let (mut model, optim) = amp.prepare(self::model(3), SgdConfig::new().init());
    let mut grads = gradients(&amp, &model, 0, 0);
    let mut optim = optim.with_peers(peers.clone());
    let settings = optim.try_step(0.1, model.clone(), gradients(&amp, &model, 0, 0));

    let other = amp.attach(self::model(either(2.0, 3.0) as usize));
    let models = peers.average(&other, gradients(&amp, &other, 0, 0));

    let off = either(1.0, 0.0);
    model.bias = model.bias.map(|bias| bias.map(|bias| bias + off));
    let model = amp.attach(model);
    let values = peers.compare(&model);

    let bias = model.bias.as_ref().unwrap().id;
    if is_last {
        grads.register(bias, Tensor::<1>::zeros([7], &Device::flex()));
    }
    let shapes = peers.average(&model, grads);
    let said = [
        ("in settings", settings.unwrap_err().error),
        ("in its model", models.unwrap_err()),
        ("in values", values.unwrap_err()),
        ("in a gradient", shapes.unwrap_err()),
    ];
    said.map(|(name, error)| (name.to_string(), error.to_string()))
        .into()
}

#[test]
fn a_rank_that_ends_or_does_another_thing_ends_the_others() {
    for [name, why] in rows(ENDS) {
        for written in run(name) {
            let others = &written[..written.len() - 1];
            (others.iter()).for_each(|said| says_of_last(written.len(), why, &said["error"]));
        }
    }
}

pub fn ends(peers: &MpiPeers, odd: &str) -> Said {
    let ended = catch_unwind(AssertUnwindSafe(|| until_it_ends(peers, odd)));
    let error = ended.unwrap_or(Ok(())).err();
    let error = error.map(|error| error.to_string());
    [("error".to_string(), error.unwrap_or_default())].into()
}

/// Trains until something fails, or the last rank does what is odd.
fn until_it_ends(peers: &MpiPeers, odd: &str) -> Result<(), AmpError> {
    let odd = if is_last(peers) { odd } else { "nothing" };
    if odd == "ends without an optimizer" {
        return Ok(());
    }
    let amp = f16_under(at_scale(1024.0));
    let (mut model, optim) = amp.prepare(model(3), SgdConfig::new().init());
    let mut optim = optim.with_peers(peers.clone());
    for step in 0..4 {
        let mut grads = gradients(&amp, &model, peers.rank(), step);
        match odd {
            "ends after three steps" if step == 3 => return Ok(()),
            "panics in a step" if step == 3 => panic!("a bad batch"),
            "leaves a step out" if step == 3 => return peers.compare(&model),
            "steps without an average" if step == 3 => {}
            _ => grads = peers.average(&model, grads)?,
        }
        model = optim.try_step(0.1, model, grads)?;
    }
    peers.compare(&model)
}
