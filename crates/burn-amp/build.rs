//! Writes the page of the crate: the README, with links that lead to docs.rs and with its pictures inside.

use std::{env, fmt::Write, fs, path::Path};

/// Where docs.rs shows the files of a release.
const FILES: &str = "https://docs.rs/crate/burn-amp/latest/source/";

fn main() {
    println!("cargo::rerun-if-changed=README.md");
    let readme = fs::read_to_string("README.md").expect("the package has a README");
    let mut texts = readme.split("](");
    let mut page = texts.next().unwrap_or_default().to_string();
    for text in texts {
        let (target, rest) = text.split_once(')').expect("a link ends");
        let is_picture = page.rfind('[').is_some_and(|at| page[..at].ends_with('!'));
        let address = match target {
            target if target.contains("://") || target.starts_with('#') => target.to_string(),
            // A checkout may lack pictures, and has to build.
            path if is_picture => picture(path).unwrap_or_else(|_| format!("{FILES}{path}")),
            path => format!("{FILES}{path}"),
        };
        write!(page, "]({address}){rest}").expect("a string takes all");
    }
    let folder = env::var("OUT_DIR").expect("cargo gives one");
    fs::write(Path::new(&folder).join("page.md"), page).expect("it can be written to");
}

/// A picture as a `data:` address, because docs.rs has no place for pictures.
fn picture(path: &str) -> std::io::Result<String> {
    println!("cargo::rerun-if-changed={path}");
    let (_, kind) = path.rsplit_once('.').expect("a picture has an extension");
    let kind = kind.replace("svg", "svg+xml");
    let mut address = format!("data:image/{kind},");
    for byte in fs::read(path)? {
        match byte.is_ascii_alphanumeric() {
            true => address.push(byte.into()),
            false => write!(address, "%{byte:02X}").expect("a string takes all"),
        }
    }
    Ok(address)
}
