#!/usr/bin/env bash
# Builds a folder that shows on a machine with an NVIDIA GPU what this project does there: tests, benches, their peers in torch.
# That machine needs no Rust and no network. See `--help`.
set -euo pipefail

usage() {
  cat <<TEXT
usage: carry.sh [FOLDER]

Builds FOLDER (default: carry, in Cargo's target folder), of at most $LIMIT MiB. Copy it to a machine with an NVIDIA driver, and
there run FOLDER/run.sh (\`run.sh --help\`).

Needs Rust, the crates that this project depends on, and LLVM, which CubeCL's build downloads. Nothing of CUDA.
CARGO_TARGET_DIR names another target folder. CARRY_PROFILE=dev builds in half the time, and what it builds is large and slow.
TEXT
}

# MiB.
LIMIT=60
root=$(cd "$(dirname "$0")/../.." && pwd)
case ${1-} in
-h | --help)
  usage
  exit 0
  ;;
-*)
  usage >&2
  exit 2
  ;;
esac
target=${CARGO_TARGET_DIR:-$root/target}
mkdir -p "$target"
target=$(cd "$target" && pwd)
folder=${1:-$target/carry}
package=$target/carry-package
profile=${CARRY_PROFILE:-release}
version=$(sed -n '/^name = "cubecl-cuda"/{n;s/version = "\(.*\)"/\1/p}' "$root/Cargo.lock")

# All tests and benches become one program, because each one would contain LLVM and Burn. Its package is written anew each time:
# copies of their sources, in which `crate` is the module that each has become.
rm -rf "$package"
mkdir -p "$package/cubecl-cuda"
(cd "$root" && find tests kernels-cubecl/benches examples/gpt/benches -name '*.rs' -exec cp --parents {} "$package" \;)

module() { # name, file
  local name=$1 source=$2 files
  case $source in
  */main.rs) files=$(cd "$root" && find "$(dirname "$source")" -name '*.rs') ;;
  *) files=$source ;;
  esac
  local file
  for file in $files; do
    mkdir -p "$package/$(dirname "$file")"
    sed -E "s/(^|[^\$A-Za-z_])crate::/\1crate::$name::/g; s/Options::parse\(\)/Options::parse_from(crate::arguments())/" \
      "$root/$file" >"$package/$file"
  done
  printf '#[path = "%s"]\nmod %s;\n' "$source" "$name" >>"$package/carry.rs"
}

bench() { # name, file
  module "$@"
  printf '\n#[test]\n#[ignore = "a bench"]\nfn bench() {\n    main();\n}\n' >>"$package/$2"
}

cat >"$package/carry.rs" <<'RUST'
//! Tests and benches of burn-amp in one program.
#![allow(dead_code, missing_docs)]

/// A device that adds two numbers.
#[test]
#[ignore = "the first question to a machine"]
fn probe() {
    let device = burn::tensor::Device::default();
    let sum = burn::tensor::Tensor::<1>::from_floats([1.0, 2.0], &device) + 1.0;
    assert_eq!(sum.into_data().iter::<f32>().sum::<f32>(), 5.0);
    println!("\ndevice: {device:?}");
}

/// A bench's options: the test program has options of its own.
fn arguments() -> Vec<String> {
    let given = std::env::var("CARRY_ARGUMENTS").unwrap_or_default();
    std::iter::once("carry").chain(given.split_whitespace()).map(String::from).collect()
}

RUST
module backend kernels-cubecl/tests/backend/main.rs
module cast kernels-cubecl/tests/cast/main.rs
module launches kernels-cubecl/tests/launches.rs
module capture kernels-cubecl/tests/capture.rs
module parity tests/parity/main.rs
module optim tests/optim/main.rs
module scaler tests/scaler/main.rs
module records tests/records/main.rs
module step_launches tests/launches/main.rs
bench gradients kernels-cubecl/benches/gradients/main.rs
[ ! -e "$root/examples/gpt/benches/training.rs" ] || bench training examples/gpt/benches/training.rs

# CubeCL chooses between its two ways to PTX, LLVM and C++, when it is compiled. Here a variable chooses: both ways in one program.
crate=$(ls -d "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/cubecl-cuda-"$version" | head -n 1)
cp -rp "$crate/." "$package/cubecl-cuda"
chmod -R u+w "$package/cubecl-cuda"
choice=$package/cubecl-cuda/src/compiler.rs
sed -i 's/cfg!(feature = "cpp")/std::env::var_os("CARRY_CPP").is_some()/' "$choice"
if ! grep -q CARRY_CPP "$choice"; then
  echo "carry.sh: cubecl-cuda $version chooses its compiler elsewhere than $choice" >&2
  exit 1
fi
# It is the same each time: with another date, Cargo would build all that depends on it anew.
touch -r "$crate/src/compiler.rs" "$choice"

cat >"$package/Cargo.toml" <<TOML
[package]
name = "carry"
version = "0.0.0"
edition = "2024"
autotests = false

[workspace]

[features]
default = ["capture", "cubecl", "cuda", "flex", "fusion", "std", "wgpu"]
capture = []
cubecl = []
cuda = []
flex = []
fusion = []
std = []
wgpu = []

[lib]
path = "empty.rs"

[[test]]
name = "carry"
path = "carry.rs"

# The sources also know features that are not of use here.
[lints.rust]
unexpected_cfgs = "allow"

[patch.crates-io]
cubecl-cuda = { path = "cubecl-cuda" }

[profile.dev]
debug = false

[profile.dev.package.burn-flex]
opt-level = 2

[dependencies]
burn = { workspace = true, features = ["autodiff", "cuda", "extension", "flex", "fusion", "optim", "std", "wgpu"] }
burn-amp = { workspace = true, features = ["adaptive", "cuda", "flex", "fusion", "pipeline", "std", "torch", "wgpu"] }
burn-amp-core = { workspace = true }
burn-amp-kernels = { workspace = true, features = ["capture", "cuda", "flex", "fusion", "std", "wgpu"] }
burn-amp-tests = { path = "$root/tests", features = ["cuda", "fusion", "wgpu"] }
burn-autodiff = { workspace = true, features = ["std"] }
burn-cubecl = { workspace = true }
burn-flex = { workspace = true, features = ["rayon", "simd", "std"] }
burn-fusion = { workspace = true }
burn-pack = { workspace = true, features = ["std"] }
burn-router = { workspace = true }
burn-std = { workspace = true }
clap = { workspace = true }
crc32fast = { workspace = true }
cubecl = { workspace = true }
gpt = { path = "$root/examples/gpt" }
half = { workspace = true }
log = { workspace = true }
proptest = { workspace = true }
rayon = { workspace = true }
serde = { workspace = true }
serde_json = { workspace = true }
tempfile = { workspace = true }

TOML
sed -n '/^\[workspace.dependencies\]/,/^$/p' "$root/Cargo.toml" | sed "s#path = \"#path = \"$root/#" >>"$package/Cargo.toml"
: >"$package/empty.rs"
cp "$root/Cargo.lock" "$package/Cargo.lock"

# The oldest CUDA whose functions CubeCL calls: newer drivers know them, older ones need no newer one.
export CUDARC_CUDA_VERSION=12080 CARGO_INCREMENTAL=0
program=$(cargo test --manifest-path "$package/Cargo.toml" --target-dir "$target/carry-build" --profile "$profile" --no-run --test carry \
  --message-format json-render-diagnostics | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)

rm -rf "$folder"
mkdir -p "$folder/reference"
strip -o "$folder/carry" "$program"
gzip -9 "$folder/carry"
cp "$root"/tests/reference/*.json "$folder/reference"
cp "$root"/kernels-cubecl/benches/carry/run.sh "$root"/kernels-cubecl/benches/torch_peer.py "$root"/examples/gpt/benches/torch_training_peer.py "$folder"
size=$(du -sm "$folder" | cut -f 1)
echo "$folder: $size MiB. Copy it to a machine with an NVIDIA driver, and run run.sh there."
if [ "$size" -gt "$LIMIT" ]; then
  echo "carry.sh: that is more than $LIMIT MiB" >&2
  exit 1
fi
