//! The lists of layers are whole: every public module of burn-nn is in them.

use std::panic;

use burn_amp_tests::prelude::*;

use super::{activations, modules, support::Runs};
use crate::compile::links::files;

/// No layers of their own: what layers are made of, and runs as these do.
const PARTS: [&str; 2] = ["GateController", "TransformerDecoderLayer"];

/// The public types of a folder that derive `Module`.
fn types(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in files(folder, "rs") {
        let source = fs::read_to_string(&path).unwrap();
        let source = source.split("#[cfg(test)]").next().unwrap();
        let mut is_module = false;
        for line in source.lines() {
            is_module |= line.starts_with("#[derive(") && line.contains("Module");
            let name = (line.strip_prefix("pub struct ")).or(line.strip_prefix("pub enum "));
            if let Some(name) = name.filter(|_| is_module) {
                let name = name.split(|c: char| !c.is_alphanumeric()).next();
                found.extend(name.map(String::from));
                is_module = false;
            }
        }
    }
    found
}

#[test]
fn every_layer_of_burn_nn() {
    let Some(said) = said_in_child(module_path!(), "every_layer_of_burn_nn") else {
        // Burn says where it panics.
        panic::catch_unwind(|| DropoutConfig::new(2.0).init()).unwrap_err();
        return;
    };
    let (_, place) = said.split_once("panicked at ").unwrap();
    let (sources, _) = place.split_once("/modules/dropout.rs").unwrap();
    let folders = ["modules", "activation"].map(|folder| Path::new(sources).join(folder));
    let found: BTreeSet<String> = folders.iter().flat_map(|folder| types(folder)).collect();
    let listed = modules::LAYERS.iter().chain(activations::LAYERS);
    let names = listed.map(|(name, _)| name).chain(&PARTS);
    let listed: BTreeSet<String> = names.map(|name| name.to_string()).collect();
    assert_eq!(listed, found);
}

/// A layer runs in one way only, whatever its settings.
#[test]
fn no_layer_is_listed_in_two_ways() {
    let mut ways: BTreeMap<&str, Runs> = BTreeMap::new();
    for (name, runs) in modules::LAYERS.iter().chain(activations::LAYERS) {
        assert_eq!(ways.insert(name, *runs).unwrap_or(*runs), *runs, "{name}");
    }
    ways.retain(|_, runs| *runs == Runs::InF32);
    let names: Vec<&str> = ways.into_keys().collect();
    // Those that the documentation of `in_f32` speaks of.
    let expected =
        "BatchNorm BiGru BiLstm BiRnn GaussianNoise Gru Lstm PositionalEncoding Rnn RotaryEncoding";
    assert_eq!(names.join(" "), expected);
}
