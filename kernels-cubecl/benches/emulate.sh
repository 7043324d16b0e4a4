#!/usr/bin/env bash
# Runs the folder of `carry.sh` as on a machine with an H100, with a stand-in for the driver. See `--help`.
set -euo pipefail
cd "$(dirname "$0")/../.."

usage() {
  cat <<'TEXT'
usage: emulate.sh [FOLDER] [-- OPTIONS OF run.sh]

Runs FOLDER (default: target/carry; `carry.sh` builds it) with NVRTC, ptxas and CUDA's headers from PyPI, and a library in the place of the driver's
(emulate/driver.c) that assembles each module for an H100, holds each launch against its limits, and executes nothing. So figures, and tests of
values, mean nothing; that steps end, what is refused and what spills does.

Ends with 1 if a module or a launch was refused, or a bench did not end. Each may take six times as long as there, and all of them 45 minutes: ptxas is
a process for each module here, and two cores stand for sixteen. What was compiled is kept, so that a second run takes a third of the time.

Needs a C compiler and Python with pip. All of it is kept in target/emulate.
TEXT
}

folder=$PWD/target/carry
case ${1-} in
-h | --help)
  usage
  exit 0
  ;;
"" | --) ;;
*)
  folder=$(cd "$1" && pwd)
  shift
  ;;
esac
[ "${1-}" != -- ] || shift
here=$PWD/target/emulate log=$PWD/target/emulate/log
mkdir -p "$here/lib" "$here/bin" "$here/modules"
if [ ! -d "$here/python" ]; then
  pip install --quiet --no-deps --target "$here/python.new" nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-nvvm==13.0.88
  mv "$here/python.new" "$here/python"
fi
cc -O1 -shared -fPIC -o "$here/lib/libcuda.so.1" kernels-cubecl/benches/emulate/driver.c
cat >"$here/bin/nvidia-smi" <<'SH'
#!/bin/sh
echo "NVIDIA H100 80GB HBM3 (emulated), 580.65.06, 81105 MiB"
SH
chmod +x "$here/bin/nvidia-smi"

rm -f "$log"
touch "$log"
ptxas=$(find "$here/python" -name ptxas)
chmod +x "$ptxas"
code=0
PATH=$here/bin:$PATH PYTHONPATH=$here/python LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} CARRY_EMULATED=1 CARRY_SCRATCH=$here \
  CARRY_PATIENCE=${CARRY_PATIENCE:-6} \
  DRIVER_PTXAS=$ptxas DRIVER_FOLDER=$here/modules DRIVER_LOG=$log "$folder/run.sh" --minutes 45 --out "$here/results.json" "$@" || code=$?

echo
# Counts of all processes together.
awk '/^counts: / { launches += $2; refused += $4; loaded += $7; bad += $9; graphs += $12 }
  END { print launches + 0 " launches, " refused + 0 " of them out of limits; " loaded + 0 " modules loaded, " bad + 0 " refused; " graphs + 0 " graphs" }' "$log"
echo "$(find "$here/modules" -name '*.log' | wc -l) modules in all; those that spill:"
sed -n 's/^spills: //p' "$log" | sort | uniq -c | sort -rn | head -n 40
echo "refusals:"
grep -vE '^(counts|spills): ' "$log" | sort | uniq -c | sort -rn | head -n 40 || true

# Tests of values fail here. Benches end, the digits too.
benches=$(awk -F '\t' '$1 !~ /probe|kernels|launches|casts|parity|skips|^fused$|tests$|scaler|resume/ && $3 != 0 { print $1, $7 }' "$here/work/steps")
refused=$(grep -cE '^(refused|out of memory)' "$log" || true)
echo "run.sh ended with $code; $refused refusals${benches:+; benches that did not end: $benches}"
[ "$refused" = 0 ] && [ -z "$benches" ]
