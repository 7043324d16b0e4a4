#!/usr/bin/env bash
# Tests and measures burn-amp on this machine's NVIDIA GPU. See `--help`.
set -uo pipefail
cd "$(dirname "$0")"

usage() {
  cat <<'TEXT'
usage: run.sh [--device NAME] [--out FILE] [--minutes N]

Tests and measures burn-amp on this machine's NVIDIA GPU in at most N (8) minutes. It prints a summary, and writes FILE (results.json).
--device flex runs the same on the CPU: that shows whether the folder is whole. --device wgpu runs it through Vulkan.

Needs the NVIDIA driver. CubeCL makes GPU code in two ways, and each is tried: LLVM needs nothing else; C++ needs NVRTC and CUDA's headers,
from CUDA_PATH, /usr/local/cuda or Python's packages nvidia-cuda-nvrtc and nvidia-cuda-runtime, which come with torch. The kernels' tests
run in each way that works, and all else in the one in which fewer of them failed. Where Python has torch, it runs the same benches.

Exits with 0 if all is well, 1 if something failed, 2 for wrong options, and 3 if there is no device.
TEXT
}

device=cuda out=results.json minutes=8
while [ $# -gt 0 ]; do
  case $1 in
  -h | --help)
    usage
    exit 0
    ;;
  --device | --out | --minutes)
    if [ $# -lt 2 ]; then
      echo "run.sh: $1 needs a value" >&2
      exit 2
    fi
    declare "${1#--}=$2"
    shift 2
    ;;
  *)
    usage >&2
    exit 2
    ;;
  esac
done
if ! [[ $minutes =~ ^[1-9][0-9]*$ ]]; then
  echo "run.sh: --minutes is $minutes: a whole number from 1 on is needed" >&2
  exit 2
fi
# Some seconds are kept for the end.
end=$((SECONDS + 60 * minutes - 10))

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
program=$work/carry
if ! gzip -dc carry.gz >"$program"; then
  echo "run.sh: carry.gz cannot be unpacked to $work" >&2
  exit 1
fi
chmod +x "$program"
# Threads of torch that wait by counting would slow down those that work, where other programs run.
export BURN_DEVICE=$device BURN_AMP_REFERENCE=$PWD/reference OMP_WAIT_POLICY=passive

# A text as a string of JSON.
quoted() {
  local text
  text=$(tr -d '\000-\010\013-\037' | sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/ /g' | sed ':a;N;$!ba;s/\n/\\n/g')
  printf '"%s"' "$text"
}

# What C++ needs, as one folder of links: CubeCL looks for CUDA's headers in CUDA_PATH, and the loader for NVRTC.
prepare_cpp() {
  local roots=("${CUDA_PATH:-}" /usr/local/cuda /opt/cuda) root packages
  packages=$(python3 -c 'import site, sys; print(*site.getsitepackages(), site.getusersitepackages(), *sys.path, sep="\n")' 2>/dev/null | sort -u)
  for root in $packages; do
    roots+=("$root"/nvidia/*)
  done
  mkdir -p "$work/cuda/include" "$work/cuda/lib" "$work/cuda/nvvm/libdevice"
  local libraries="" file
  for root in "${roots[@]}"; do
    [ -n "$root" ] && [ -d "$root" ] || continue
    for file in "$root"/include/*; do
      [ -e "$file" ] && [ ! -e "$work/cuda/include/${file##*/}" ] && ln -s "$file" "$work/cuda/include/"
    done
    for file in "$root"/lib64/libnvrtc.so* "$root"/lib/libnvrtc.so*; do
      if [ -e "$file" ] && [ ! -e "$work/cuda/lib/libnvrtc.so" ]; then
        ln -s "$file" "$work/cuda/lib/libnvrtc.so"
        libraries=$(dirname "$file")
      fi
    done
    file=$root/nvvm/libdevice/libdevice.10.bc
    [ -e "$file" ] && ln -sf "$file" "$work/cuda/nvvm/libdevice/"
  done
  for root in $packages; do
    file=$root/triton/backends/nvidia/lib/libdevice.10.bc
    [ -e "$file" ] && [ ! -e "$work/cuda/nvvm/libdevice/libdevice.10.bc" ] && ln -s "$file" "$work/cuda/nvvm/libdevice/"
  done
  export CUDA_PATH=$work/cuda
  export LD_LIBRARY_PATH=$work/cuda/lib${libraries:+:$libraries}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# Runs a command for at most some seconds, in one of the two ways; its output goes to a log.
within() { # seconds, way, log, command..
  local limit=$1 way=$2 log=$3 left=$((end - SECONDS))
  shift 3
  if [ "$left" -lt 5 ]; then
    echo "no time was left" >"$log"
    return 124
  fi
  if [ "$way" = cpp ]; then
    CARRY_CPP=1 timeout -k 5 $((limit < left ? limit : left)) "$@" >"$log" 2>&1
  else
    timeout -k 5 $((limit < left ? limit : left)) "$@" >"$log" 2>&1
  fi
}

steps="" failures=0
# What went wrong in a way so far: failed tests, and 1000 for a program that ended otherwise.
declare -A wrong=([llvm]=0 [cpp]=0 [-]=0)
# A step's line, and its part of the JSON.
step() { # name, seconds, way, command..
  local name=$1 limit=$2 way=$3 log=$work/$1.$3.log start=$SECONDS code=0
  shift 3
  within "$limit" "$way" "$log" "$@" || code=$?
  local seconds=$((SECONDS - start)) counts passed failed failing said
  counts=$(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2/p' "$log" | tail -n 1)
  read -r passed failed <<<"${counts:-0 0}"
  failing=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log" | head -n 50)
  case $code in
  0) said=ok ;;
  124 | 137) said="out of time" ;;
  *) said="failed ($code)" ;;
  esac
  # Tests that match nothing prove nothing.
  if [ "$code" = 0 ] && grep -q '^running 0 tests' "$log"; then
    code=1 said="no such test"
  fi
  if [ "$code" != 0 ]; then
    failures=$((failures + 1))
    wrong[$way]=$((${wrong[$way]} + (failed > 0 ? failed : 1000)))
  fi
  printf '%-22s %-5s %-14s %4s s  %s\n' "$name" "$way" "$said" "$seconds" "${counts:+$passed passed, $failed failed}"
  [ -z "$failing" ] || printf '%s\n' "$failing" | sed 's/^/    /'
  steps+=$(printf '%s{"name": "%s", "way": "%s", "code": %d, "seconds": %d, "passed": %d, "failed": %d, "failing": %s, "log": %s}' \
    "${steps:+,$'\n'  }" "$name" "$way" "$code" "$seconds" "$passed" "$failed" \
    "$(printf '%s' "$failing" | quoted)" "$(if [ "$code" != 0 ]; then tail -c 4000 "$log"; fi | quoted)")
}

tests() { # name, seconds, way, filters..
  step "$1" "$2" "$3" "$program" "${@:4}"
}

bench() { # name, seconds, way, options..
  CARRY_ARGUMENTS="${*:4} --json $work/$1.json" step "$1" "$2" "$3" "$program" "$1::bench" --exact --ignored --nocapture
}

# What a file holds, if it is there and not empty.
file() {
  if [ -s "$1" ]; then cat "$1"; else printf null; fi
}

gpu=""
if [ "$device" = flex ]; then
  # torch's device is the CPU then.
  export CUDA_VISIBLE_DEVICES=
else
  gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1)
fi
# Other devices have one way, which has no name.
ways=(-) working=() said=""
if [ "$device" = cuda ]; then
  ways=(llvm cpp)
  prepare_cpp
fi
for way in "${ways[@]}"; do
  if within 90 "$way" "$work/probe.$way.log" "$program" probe --exact --ignored --nocapture; then
    working+=("$way")
    said+="${said:+, }\"$way\": null"
  else
    # What went wrong first.
    why=$(grep -aA 2 'panicked at' "$work/probe.$way.log" | sed -n '2,3p' | tr '\n' ' ' | cut -c 1-300)
    why=${why:-$(tail -n 3 "$work/probe.$way.log" | tr '\n' ' ' | cut -c 1-300)}
    said+="${said:+, }\"$way\": $(printf '%s' "$why" | quoted)"
    echo "$device does not work ($way): $why"
  fi
done
if [ ${#working[@]} = 0 ]; then
  if [ "$device" = cuda ] && ! { ldconfig -p 2>/dev/null | grep -q libcuda.so; } && [ -z "$gpu" ]; then
    echo "There is no NVIDIA device: neither the driver's library (libcuda.so) nor nvidia-smi is here."
  else
    echo "There is no device that works${gpu:+, though nvidia-smi tells of $gpu}."
  fi
  printf '{"device": "%s", "gpu": %s, "ways": {%s}, "steps": []}\n' "$device" "$(printf '%s' "$gpu" | quoted)" "$said" >"$out"
  exit 3
fi

echo "device: $device${gpu:+ ($gpu)}, ways that work: ${working[*]}"
for way in "${working[@]}"; do
  # Their observers hear of every launch of the process.
  [ "$device" = flex ] || tests launches 60 "$way" launches:: --test-threads 1
  tests kernels 60 "$way" backend::kernels::
  tests casts 40 "$way" cast:: blend:: capture::
done
way=${working[0]}
if [ "${wrong[cpp]}" -lt "${wrong[llvm]}" ] && [ ${#working[@]} = 2 ]; then
  way=cpp
fi
tests parity 45 "$way" parity::
# Those that take thousands of steps are for the CPU.
tests skips 60 "$way" optim:: --skip fused::follows --skip matrix::whatever --skip captured::
tests fused 30 "$way" fused::follows::plain_adam fused::follows::adam_w_amsgrad
# Nobody reads while a step is recorded.
tests captured 45 "$way" captured:: --test-threads 1
# By themselves: a process has one logger.
tests scaler 45 "$way" scaler::
tests resume 45 "$way" records::resume::

# GPT-2 with as many windows as this GPU holds: without a fused attention, each takes 3 GB in f32.
memory=$(sed -n 's/.*, \([0-9]*\) MiB$/\1/p' <<<"$gpu")
case ${memory:-0} in
0 | ???? | ???) size=(--size tiny) ;;
?????) size=(--size gpt2 --batch $((memory / 6000 < 8 ? memory / 6000 : 8))) ;;
*) size=(--size gpt2 --batch 8) ;;
esac
size+=(--steps 5 --rounds 2)
# Elsewhere it is enough that they run.
sets=()
[ "$device" = cuda ] || sets=(--set mlp-1000)
torch=()
if [ "$device" = wgpu ]; then
  echo "without torch: it has no such device"
elif python3 -c 'import torch' 2>/dev/null; then
  step torch_gradients 60 - bash -c "python3 torch_peer.py --seconds 1 --large $((1 << 24)) ${sets[*]} >'$work/torch_gradients.json'"
  step torch_training 90 - bash -c "python3 torch_training_peer.py ${size[*]} >'$work/torch_training.json'"
else
  echo "without torch: Python has none, or there is no Python"
fi
[ ! -s "$work/torch_gradients.json" ] || torch=(--torch "$work/torch_gradients.json")
bench gradients 120 "$way" --backend "$device" --quick "${sets[@]}" "${torch[@]}"
torch=()
[ ! -s "$work/torch_training.json" ] || torch=(--torch "$work/torch_training.json")
bench training 150 "$way" "${size[@]}" "${torch[@]}"
{
  printf '{"device": "%s", "gpu": %s, "ways": {%s}, "seconds": %d,\n "steps": [\n  %s],\n' \
    "$device" "$(printf '%s' "$gpu" | quoted)" "$said" "$SECONDS" "$steps"
  for part in gradients torch_gradients training torch_training; do
    printf ' "%s": ' "$part"
    file "$work/$part.json"
    [ "$part" = torch_training ] && printf '}\n' || printf ',\n'
  done
} >"$out"
for part in gradients training; do
  # The tables, without what the test program says.
  [ ! -s "$work/$part.json" ] || grep -avE '^(running|test |$)' "$work/$part.$way.log"
done
echo "$((SECONDS / 60)) min $((SECONDS % 60)) s, $failures of the steps failed; all of it is in $out"
[ "$failures" = 0 ]
