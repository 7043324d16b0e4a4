//! Ranks that do not fit, fail or end: all end with an error that names one, and none waits.

use super::job;
use super::together::{gradients, model};
use crate::support::*;
use burn_amp::mpi::MpiPeers;
use burn_amp::optim::Peers;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What every rank says in each case, where the last is the odd one.
const SAID: &str = "
other settings > it begins otherwise than rank 0
other values > with the checksum
another model, averaged > it has `weight` of shape [4, 2], where rank 0 has `weight` of shape [4, 3]
other values, compared > with the checksum
";

/// What ends all calls between the ranks, so that each case is a job of its own.
const ENDS: &str = "
ends after three steps > it has ended its training
panics in a step > it has ended its training
ends without an optimizer > it has ended its training
leaves a step out > it compares parameters, where rank 0 averages gradients
steps without an average > it votes on a step, where rank 0 averages gradients
";

/// What is said of the last of so many ranks.
fn of_last(ranks: usize, why: &str, said: &str) {
    let expected = format!("rank {} of the training stops it: ", ranks - 1);
    assert!(
        said.contains(&expected) && said.contains(why),
        "{ranks} ranks, {why}: {said}"
    );
}

#[test]
fn other_settings_models_and_values_are_refused_on_all() {
    for ranks in [2, 3] {
        let Some(written) = job::run(ranks, &format!("{}::other", module_path!())) else {
            return;
        };
        for [name, why] in rows(SAID) {
            for said in &written {
                of_last(ranks, why, &said[name]);
            }
        }
        let (last, others) = written.split_last().unwrap();
        let name = "a gradient of another shape";
        assert!(last[name].contains("shape"), "{}", last[name]);
        others
            .iter()
            .for_each(|said| of_last(ranks, "shape", &said[name]));
    }
}

#[test]
#[ignore = "a rank"]
fn other() {
    job::rank(|peers| {
        let is_last = peers.rank() + 1 == peers.size();
        let names = [
            "other settings",
            "other values",
            "another model, averaged",
            "other values, compared",
            "a gradient of another shape",
        ];
        let said = names.map(|name| {
            let outputs = if is_last && name.contains("model") {
                2
            } else {
                3
            };
            let scale = if is_last && name.contains("settings") {
                512.0
            } else {
                1024.0
            };
            let amp = f16_under(at_scale(scale));
            let (mut model, optim) = amp.prepare(model(outputs), SgdConfig::new().init());
            if is_last && name.contains("values") {
                model.bias = model.bias.map(|bias| bias.map(|bias| bias + 1.0));
                model = amp.attach(model);
            }
            let mut grads = gradients(&amp, &model, 0, 0);
            let said = if name.contains("compared") {
                peers.compare(&model).unwrap_err()
            } else if name.contains("averaged") || name.contains("gradient") {
                if is_last && name.contains("gradient") {
                    let bias = model.bias.as_ref().unwrap();
                    let device = bias.val().device().inner();
                    grads.register::<1>(bias.id, Tensor::zeros([7], &device));
                }
                peers.average(&model, grads).unwrap_err()
            } else {
                let mut optim = optim.with_peers(peers.clone());
                optim.try_step(0.1, model, grads).unwrap_err().error
            };
            (name.to_string(), said.to_string())
        });
        said.into_iter().collect()
    });
}

#[test]
fn a_rank_that_ends_or_does_another_thing_ends_the_others() {
    for ranks in [2, 3] {
        for [name, why] in rows(ENDS) {
            let Some(written) = job::run(
                ranks,
                &format!("{}::{}", module_path!(), name.replace(' ', "_")),
            ) else {
                return;
            };
            for said in &written[..ranks - 1] {
                of_last(ranks, why, &said["said"]);
            }
        }
    }
}

/// Trains until something fails, with what the last rank does in place of the fourth step. Says what fails.
fn until_it_fails(
    peers: &MpiPeers,
    odd: impl FnOnce(&Linear, &mut ScaledOptimizer, GradientsParams) -> Result<(), AmpError>,
) -> Result<(), AmpError> {
    let amp = f16_under(at_scale(1024.0));
    let (mut model, optim) = amp.prepare(model(3), SgdConfig::new().init());
    let mut optim = optim.with_peers(peers.clone());
    for step in 0..3 {
        let grads = peers.average(&model, gradients(&amp, &model, peers.rank(), step))?;
        model = optim.try_step(0.1, model, grads)?;
    }
    let grads = gradients(&amp, &model, peers.rank(), 3);
    if peers.rank() + 1 == peers.size() {
        return odd(&model, &mut optim, grads);
    }
    let grads = peers.average(&model, grads)?;
    model = optim.try_step(0.1, model, grads)?;
    peers.compare(&model)
}

fn said(ended: Result<(), AmpError>) -> BTreeMap<String, String> {
    let said = ended.map_or_else(|error| error.to_string(), |()| "nothing".to_string());
    BTreeMap::from([("said".to_string(), said)])
}

#[test]
#[ignore = "a rank"]
fn ends_after_three_steps() {
    job::rank(|peers| said(until_it_fails(peers, |_, _, _| Ok(()))));
}

#[test]
#[ignore = "a rank"]
fn panics_in_a_step() {
    let train = |peers: &MpiPeers| until_it_fails(peers, |_, _, _| panic!("a bad batch"));
    job::rank(|peers| {
        let ended = catch_unwind(AssertUnwindSafe(|| train(peers)));
        said(ended.unwrap_or(Ok(())))
    });
}

#[test]
#[ignore = "a rank"]
fn ends_without_an_optimizer() {
    job::rank(|peers| match peers.rank() + 1 == peers.size() {
        true => said(Ok(())),
        false => said(peers.compare(&model(3))),
    });
}

#[test]
#[ignore = "a rank"]
fn leaves_a_step_out() {
    job::rank(|peers| said(until_it_fails(peers, |model, _, _| peers.compare(model))));
}

#[test]
#[ignore = "a rank"]
fn steps_without_an_average() {
    let step = |model: &Linear, optim: &mut ScaledOptimizer, grads| {
        let stepped = optim.try_step(0.1, model.clone(), grads);
        stepped.map(drop).map_err(AmpError::from)
    };
    job::rank(|peers| said(until_it_fails(peers, step)));
}
