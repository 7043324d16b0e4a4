//! The lists of layers are whole: every public module of burn-nn is in them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, panic,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use super::support::*;
use super::{activations, modules, support::Runs};

/// No layers of their own: what layers are made of, and runs as these do.
const PARTS: [&str; 2] = ["GateController", "TransformerDecoderLayer"];

/// Where the sources of burn-nn are: Burn says so where it panics.
fn sources() -> PathBuf {
    static PLACE: Mutex<Option<PathBuf>> = Mutex::new(None);
    let outer = Arc::new(panic::take_hook());
    let hook = outer.clone();
    panic::set_hook(Box::new(move |info| {
        let file = info.location().map(|location| location.file());
        match file.filter(|file| file.ends_with("src/modules/dropout.rs")) {
            Some(file) => *PLACE.lock().unwrap() = Some(file.into()),
            None => hook(info),
        }
    }));
    panic::catch_unwind(|| DropoutConfig::new(2.0).init()).unwrap_err();
    panic::set_hook(Box::new(move |info| outer(info)));
    let place = PLACE.lock().unwrap().take();
    let place = place.expect("Dropout panics in a file of its own");
    place.ancestors().nth(2).unwrap().to_path_buf()
}

/// The public types of a folder that derive `Module`.
fn types(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            types(&path, found);
            continue;
        }
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
}

#[test]
fn every_layer_of_burn_nn() {
    let mut found = BTreeSet::new();
    for folder in ["modules", "activation"] {
        types(&sources().join(folder), &mut found);
    }
    assert!(found.contains("Linear") && found.contains("Relu"));
    let listed = modules::LAYERS.iter().chain(activations::LAYERS);
    let listed = listed.map(|(name, _)| name.to_string());
    let listed: BTreeSet<String> = listed.chain(PARTS.map(String::from)).collect();
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
    let (cells, others) = (
        "BatchNorm BiGru BiLstm BiRnn GaussianNoise Gru Lstm",
        "PositionalEncoding Rnn RotaryEncoding",
    );
    assert_eq!(names.join(" "), format!("{cells} {others}"));
}
