#!/usr/bin/env bash
# Builds a folder that shows on a machine with an NVIDIA GPU what this project does there: tests, benches, their peers in torch.
# That machine needs no Rust and no network. See `--help`.
set -euo pipefail

usage() {
  cat <<TEXT
usage: carry.sh [FOLDER]

Builds FOLDER (default: carry, in Cargo's target folder), and FOLDER-llvm beside it if LLVM is a library on this machine. Each of them travels with the
repository, $LIMIT MiB in all: what is larger is refused. Copy both to a machine with an NVIDIA driver, beside each other, and there run FOLDER/run.sh
(\`run.sh --help\`). Without FOLDER-llvm it uses CUDA's NVRTC.

Needs Rust, the crates that this project depends on, and LLVM, which CubeCL's build downloads. Nothing of CUDA.
CARGO_TARGET_DIR names another target folder. CARRY_PROFILE=dev builds in half the time, and what it builds is large and slow.
TEXT
}

# MiB of a folder and the repository together.
LIMIT=64
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
# Tests compare it with that of the kernels.
own_version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
version=$(sed -n '/^name = "cubecl-cuda"/{n;s/version = "\(.*\)"/\1/p}' "$root/Cargo.lock")

# All tests and benches become one program, because each one would contain LLVM and Burn. Its package is written anew each time:
# copies of their sources, in which `crate` is the module that each has become.
rm -rf "$package"
mkdir -p "$package/cubecl-cuda"
(cd "$root" && find tests kernels-cubecl/benches crates/burn-amp/benches examples/gpt/benches -name '*.rs' -exec cp --parents {} "$package" \;)

module() { # name, file
  local name=$1 source=$2 files
  case $source in
  */main.rs) files=$(cd "$root" && find "$(dirname "$source")" -name '*.rs') ;;
  # With the modules in the folder of its name.
  *) files="$source $(cd "$root" && find "${source%.rs}" -name '*.rs' 2>/dev/null || true)" ;;
  esac
  local file
  for file in $files; do
    mkdir -p "$package/$(dirname "$file")"
    sed -E "s/(^|[^\$A-Za-z_])crate::/\1crate::$name::/g; s/Options::parse\(\)/Options::parse_from(crate::arguments())/; s/std::env::args\(\)/crate::arguments().into_iter()/" \
      "$root/$file" >"$package/$file"
  done
  printf '#[path = "%s"]\nmod %s;\n' "$source" "$name" >>"$package/carry.rs"
}

bench() { # name, file
  module "$@"
  printf '\n#[test]\n#[ignore = "a bench"]\nfn bench() {\n    main();\n}\n' >>"$package/$2"
}

cp "$root"/kernels-cubecl/benches/carry/page.rs "$package"
cp "$root"/kernels-cubecl/benches/carry/program.rs "$package/carry.rs"
module backend kernels-cubecl/tests/backend/main.rs
module cast kernels-cubecl/tests/cast/main.rs
module launches kernels-cubecl/tests/launches.rs
module capture kernels-cubecl/tests/capture.rs
module parity tests/parity/main.rs
module optim tests/optim/main.rs
module scaler tests/scaler/main.rs
module records tests/records/main.rs
module step_launches tests/launches/main.rs
bench device kernels-cubecl/benches/device.rs
bench gradients kernels-cubecl/benches/gradients/main.rs
bench training examples/gpt/benches/training.rs
bench step crates/burn-amp/benches/step.rs

# CubeCL chooses between its two ways to PTX, LLVM and C++, when it is compiled. Here a variable chooses: both ways in one program.
crate=
if (cd "$root" && cargo fetch --quiet); then
  crate=$(find "${CARGO_HOME:-$HOME/.cargo}/registry/src" -maxdepth 2 -name "cubecl-cuda-$version" -print -quit 2>/dev/null || true)
fi
if [ -z "$crate" ]; then
  echo "carry.sh: cubecl-cuda $version is not among Cargo's crates: \`cargo fetch\` must reach crates.io, once" >&2
  exit 1
fi
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
version = "$own_version"
edition = "2024"
autotests = false

[workspace]

[features]
default = ["capture", "cubecl", "cuda", "flex", "fusion", "std"]
capture = []
cubecl = []
cuda = []
flex = []
fusion = []
std = []

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

[profile.release.package.burn-flex]
opt-level = 3

[dependencies]
burn = { workspace = true, features = ["autodiff", "autotune", "cuda", "extension", "flex", "fusion", "optim", "persistence", "std"] }
burn-amp = { workspace = true, features = ["adaptive", "cuda", "flex", "fusion", "pipeline", "std", "torch"] }
burn-amp-core = { workspace = true }
burn-amp-kernels = { workspace = true, features = ["capture", "cuda", "flex", "fusion", "std"] }
burn-amp-tests = { path = "$root/tests", features = ["cuda", "fusion"] }
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
digits = { path = "$root/examples/digits" }
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
# `gzip` leaves half as much again, which cannot travel.
xz -T0 "$folder/carry"
cp "$root"/tests/reference/*.json "$folder/reference"
cp "$root"/kernels-cubecl/benches/carry/*.sh "$root"/kernels-cubecl/benches/torch_peer.py "$root"/examples/gpt/benches/torch_training_peer.py "$folder"
git -C "$root" describe --always --dirty >"$folder/commit"

# LLVM, where the build links it as a library: too large to travel with the program, so it has a folder of its own. In its place the program can
# start by a library that has all functions of LLVM's and nothing in them.
if ldd "$program" | grep 'libLLVM.*not found'; then
  echo "carry.sh: put the folder of this library into LD_LIBRARY_PATH, and run this again" >&2
  exit 1
fi
library=$(ldd "$program" | sed -n 's/^[[:space:]]*\(libLLVM[^ ]*\) => \([^ ]*\).*/\2/p')
[ -n "$library" ] || rm -rf "$folder-llvm"
if [ -n "$library" ]; then
  name=$(basename "$library")
  mkdir -p "$folder/stubs" "$folder-llvm"
  # Each function as `name@version`: the program starts only where it finds this version too.
  wanted=$(nm -D --undefined-only "$program" | sed -n 's/.* U \([A-Za-z0-9_]*@LLVM[^ ]*\)$/\1/p' | sort -u)
  printf '%s { *; };\n' "$(sed -n '1s/.*@//p' <<<"$wanted")" >"$package/stubs.map"
  sed 's/\(.*\)@.*/void \1(void) {}/' <<<"$wanted" |
    cc -shared -fPIC -Wl,-soname,"$name" -Wl,--version-script,"$package/stubs.map" -x c -o "$folder/stubs/$name" -
  # Minutes of work, and the same each time.
  if ! [ "$folder-llvm/$name.xz" -nt "$library" ]; then
    rm -rf "$folder-llvm"/*
    xz -T0 -c "$library" >"$folder-llvm/$name.new" && mv "$folder-llvm/$name.new" "$folder-llvm/$name.xz"
  fi
fi
# What git does not ignore travels with each.
own=$( (cd "$root" && git ls-files -z --cached --others --exclude-standard | xargs -0 du -cm --apparent-size || true) 2>/dev/null |
  awk '$2 == "total" { sum += $1 } END { print sum + 0 }')
for each in "$folder" "$folder-llvm"; do
  [ -d "$each" ] || continue
  size=$(du -sm "$each" | cut -f 1)
  echo "$each: $size MiB, and $own of the repository"
  if [ $((size + own)) -gt "$LIMIT" ]; then
    echo "carry.sh: that is more than $LIMIT MiB, and cannot travel" >&2
    exit 1
  fi
done
