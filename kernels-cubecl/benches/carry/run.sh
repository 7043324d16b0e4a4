#!/usr/bin/env bash
# Tests and measures burn-amp on this machine's NVIDIA GPU. See `--help`.
set -uo pipefail
folder=$(cd "$(dirname "$0")" && pwd)

usage() {
  cat <<'TEXT'
usage: run.sh [--device NAME] [--out FILE] [--minutes N] [--rest]

Tests and measures burn-amp on this machine's NVIDIA GPU in at most N (8) minutes, what matters most first. After each step it writes anew what it
has: FILE (results.json), and beside it tables in markdown. `--rest` goes on where an earlier run in this folder was cut.
`--device flex` runs small cases on the CPU: that shows whether the folder is whole.

Needs the NVIDIA driver. CubeCL makes GPU code in two ways, and each is tried: LLVM, its default, may need a library
that is beside this folder (carry.sh says so); C++ needs NVRTC and CUDA's headers, of a toolkit (CUDA_PATH, nvcc on the PATH, /usr/local/cuda*) or of Python's packages
(torch's, with triton or CuPy). The first way that works measures. Where Python has torch, it does the same.

Exits with 0 if all is well, 1 if something failed, 2 for wrong options, and 3 if there is no device.
TEXT
}

device=cuda out=results.json minutes=8 rest=
while [ $# -gt 0 ]; do
  case $1 in
  -h | --help)
    usage
    exit 0
    ;;
  --rest)
    rest=1
    shift
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
if [[ $device != cuda && $device != flex ]]; then
  echo "run.sh: --device is $device: cuda or flex is needed" >&2
  exit 2
fi
# Some seconds are kept for the end.
end=$((SECONDS + 60 * minutes - 5))

out=$(realpath -m "$out")
mkdir -p "$(dirname "$out")"
# Logs and rows, for `--rest`; CARRY_SCRATCH is for those who may not write to the folder. What kernels were compiled to stays in `cache`: each is
# compiled once, whichever program needs it.
scratch=${CARRY_SCRATCH:-$folder} work=${CARRY_SCRATCH:-$folder}/work
[ -n "$rest" ] || rm -rf "$work"
mkdir -p "$work/ptx" && cd "$work" || exit 1
touch steps
cat >cubecl.toml <<TOML
[compilation]
cache = true
[autotune]
level = "minimal"
[environment.path]
directory = "$scratch/cache"
TOML
unpacked() { # what
  xz -dc "$1" 2>/dev/null || python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' "$1"
}
program=$work/carry
if [ ! -x "$program" ] && ! { unpacked "$folder/carry.xz" >"$program" && chmod +x "$program"; }; then
  echo "run.sh: $folder/carry.xz cannot be unpacked to $work: xz, or Python, is needed" >&2
  exit 1
fi
# Threads of torch that wait by counting would slow down those that work, where other programs run.
export BURN_DEVICE=$device BURN_AMP_REFERENCE=$folder/reference OMP_WAIT_POLICY=passive
export CARRY_WORK=$work CARRY_OUT=$out

fact() { # name, value
  printf '%s\t%s\n' "$1" "$2" >>"$work/facts"
}

# CubeCL's LLVM, where it is no part of the program. Without it the program starts by a library of stubs, and C++ is the one way.
prepare_llvm() {
  [ -d "$folder/stubs" ] || return 0
  local library
  library=$(ls "$folder/stubs")
  if [ -e "$folder-llvm/$library.xz" ]; then
    mkdir -p "$work/llvm"
    [ -s "$work/llvm/$library" ] || unpacked "$folder-llvm/$library.xz" >"$work/llvm/$library"
    export LD_LIBRARY_PATH=$work/llvm${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  else
    echo "without LLVM: $folder-llvm has no $library.xz"
    export LD_LIBRARY_PATH=$folder/stubs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    [ "$device" = flex ] || ways=(cpp)
  fi
}

# What C++ needs, as one folder of links: CubeCL looks for CUDA's headers in CUDA_PATH, and the loader for NVRTC.
prepare_cpp() {
  local cuda=$work/cuda nvcc site root file roots
  nvcc=$(readlink -f "$(command -v nvcc)")
  roots=("${CUDA_PATH:-}" "${nvcc%/bin/nvcc}" /usr/local/cuda /usr/local/cuda-* /opt/cuda)
  for site in $(python3 -c 'import site, sys; print(*site.getsitepackages(), site.getusersitepackages(), *sys.path, sep="\n")' 2>/dev/null | sort -u); do
    # Triton's has what mma.h includes, and CuPy's has cuda/barrier.
    roots+=("$site"/nvidia/* "$site"/triton/backends/nvidia "$site"/cupy/_core)
  done
  rm -rf "$cuda"
  mkdir -p "$cuda/include" "$cuda/lib" "$cuda/nvvm/libdevice"
  for root in "${roots[@]}"; do
    [ -n "$root" ] && [ -d "$root" ] || continue
    # What an earlier one has stays: headers of one version are together.
    for file in "$root/include" "$root/targets/x86_64-linux/include"; do
      [ ! -d "$file" ] || cp -rsn "$(readlink -f "$file")/." "$cuda/include/" 2>/dev/null
    done
    if [ ! -e "$cuda/include/cccl" ] && [ -d "$root/include/cupy/_cccl/libcudacxx" ]; then
      ln -s "$root/include/cupy/_cccl/libcudacxx" "$cuda/include/cccl"
    fi
    for file in "$root"/lib64/libnvrtc* "$root"/lib/libnvrtc* "$root"/targets/x86_64-linux/lib/libnvrtc*; do
      [ ! -e "$file" ] || [ -e "$cuda/lib/${file##*/}" ] || ln -s "$file" "$cuda/lib/"
    done
    for file in "$root/nvvm/libdevice/libdevice.10.bc" "$root/lib/libdevice.10.bc"; do
      [ ! -e "$file" ] || [ -e "$cuda/nvvm/libdevice/libdevice.10.bc" ] || ln -s "$file" "$cuda/nvvm/libdevice/"
    done
    [ ! -x "$root/bin/ptxas" ] || ptxas=${ptxas:-$root/bin/ptxas}
  done
  # The loader asks for this name.
  for file in "$cuda"/lib/libnvrtc.so.*; do
    [ -e "$cuda/lib/libnvrtc.so" ] || [ ! -e "$file" ] || ln -s "$file" "$cuda/lib/libnvrtc.so"
  done
  # The last folder is where containers put the driver.
  export CUDA_PATH=$cuda LD_LIBRARY_PATH=$cuda/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}:/usr/local/nvidia/lib64
  nvrtc=$(readlink -f "$cuda/lib/libnvrtc.so")
  for file in include/cuda_fp16.h include/crt/mma.h lib/libnvrtc.so; do
    [ -e "$cuda/$file" ] || echo "C++: no $file was found"
  done
  [ -e "$cuda/include/cccl/cuda/barrier" ] || [ -e "$cuda/include/cuda/barrier" ] || echo "C++: no cuda/barrier was found"
}

# Runs a command for at most some seconds, in one of the two ways; its output goes to a log.
within() { # seconds, way, log, command..
  # On a machine that emulates one of the benches' own speed, all takes longer.
  local limit=$(($1 * ${CARRY_PATIENCE:-1})) way=$2 log=$3 left=$((end - SECONDS))
  shift 3
  if [ "$left" -lt 5 ]; then
    echo "no time was left" >"$log"
    return 124
  fi
  # The way is an environment's variable; CubeCL keeps what each made of a kernel.
  local -x CARRY_CPP=1 CUBECL_CUDA_DUMP_PTX=$work/ptx/$way
  [ "$way" = cpp ] || unset CARRY_CPP
  timeout -k 5 $((limit < left ? limit : left)) "$@" >"$log" 2>&1
}

failures=0
# A step's line, and what is known of it by now.
step() { # name, seconds, way, command..
  local name=$1 limit=$2 way=$3 log=$work/$1.$3.log start=$SECONDS code=0 counts passed failed said
  shift 3
  ! grep -q "^$name"$'\t'"$way"$'\t'0 "$work/steps" || return 0
  within "$limit" "$way" "$log" "$@" || code=$?
  counts=$(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2/p' "$log" | tail -n 1)
  # Stopped, it has not counted them.
  counts=${counts:-$(grep -acE '^test .* \.\.\. ok$' "$log") $(grep -acE '^test .* \.\.\. FAILED$' "$log")}
  read -r passed failed <<<"$counts"
  case $code in
  0) said=ok ;;
  124 | 137) said="out of time" ;;
  *) said="failed ($code)" ;;
  esac
  # Tests that match nothing prove nothing.
  if [ "$code" = 0 ] && grep -q '^running 0 tests' "$log"; then
    code=1 said="no such test"
  fi
  [ "$code" = 0 ] || failures=$((failures + 1))
  printf '%-20s %-5s %-14s %4s s  %s passed, %s failed\n' "$name" "$way" "$said" $((SECONDS - start)) "$passed" "$failed"
  [ "$code" = 0 ] || sed -n 's/^test \(.*\) \.\.\. FAILED$/    \1/p' "$log" | head -n 50
  sed -i "/^$name\t$way\t/d" "$work/steps"
  printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$name" "$way" "$code" $((SECONDS - start)) "$passed" "$failed" "$said" >>"$work/steps"
  page
  return "$code"
}

page() {
  "$program" page::page --exact --ignored >"$work/page.log" 2>&1 || tail -n 5 "$work/page.log"
}

tests() { # name, seconds, filters..
  step "$1" "$2" "$way" "$program" "${@:3}"
}

bench() { # name of the step, bench, seconds, options..
  local code=0
  CARRY_ARGUMENTS="${*:4} --json $work/$1.$way.json" step "$1" "$3" "$way" "$program" "$2::bench" --exact --ignored --nocapture || code=$?
  case $code in
  0 | 124 | 137) ;;
  # What one compiler fails at, the other may compile.
  *) [ "$way" = "${working[-1]}" ] || way=${working[-1]} bench "$@" ;;
  esac
}

peer() { # name of the step, seconds, script, options..
  [ -z "$torch" ] || step "$1" "$2" - python3 "$folder/$3" "${@:4}" --json "$work/$1.-.json"
}

# Registers and spills of the kernels that were compiled so far.
registers() { # name, seconds
  [ -z "$ptxas" ] || step "$1" "$2" - "$folder/registers.sh" "$work/ptx" "$ptxas"
}

: >"$work/facts"
fact commit "$(cat "$folder/commit")"
ptxas="" nvrtc="" torch="" ways=(-)
if [ "$device" = flex ]; then
  # torch's device is the CPU then.
  export CUDA_VISIBLE_DEVICES=
  fact device "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $(nproc) CPUs, Flex"
else
  gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1)
  fact "card, driver, memory" "$gpu"
  ways=(llvm cpp)
fi
prepare_llvm
[ "$device" = flex ] || prepare_cpp
ldd "$program" 2>&1 | sed -n 's/^[[:space:]]*\(.*not found.*\)/this machine lacks \1/p'
! python3 -c 'import torch' 2>/dev/null || torch=$(python3 -c 'import torch; print(torch.__version__)')
fact torch "${torch:-none}"

working=()
for way in "${ways[@]}"; do
  if step probe 60 "$way" "$program" probe --exact --ignored --nocapture; then
    working+=("$way")
  else
    # What went wrong first.
    grep -aA 2 'panicked at\|error while loading' "$work/probe.$way.log" | head -n 3 | cut -c 1-300
  fi
done
if [ ${#working[@]} = 0 ]; then
  echo "There is no device that works${gpu:+, though nvidia-smi tells of $gpu}."
  exit 3
fi
way=${working[0]}
fact "compilers that work" "${working[*]}${nvrtc:+ (${nvrtc##*/})}"
echo "device: $device${gpu:+ ($gpu)}; ways that work: ${working[*]}"

if [ "$device" = cuda ]; then
  # GPT-2 with as many windows as this GPU holds: without a fused attention, each takes 3.4 GB in f32.
  memory=$(sed -n 's/.*, \([0-9]*\) MiB$/\1/p' <<<"$gpu")
  windows=$((${memory:-10000} / 10000))
  size=(--size gpt2 --batch $((windows < 1 ? 1 : windows > 16 ? 16 : windows)) --steps 5 --rounds 2)
  product=(--size 8192 --copied $((1 << 28)) --seconds 1)
  first=(--set gpt2) others=(--set "large,mlp")
  gradients=(--backend cuda --seconds 1.5 --without-composed)
  peers=(--seconds 1 --set "gpt2,large,mlp")
  quick=() steps=(--seconds 2) step_seconds=60
else
  size=(--size tiny --steps 5 --rounds 2)
  product=(--size 256 --copied $((1 << 22)) --seconds 1)
  first=(--set resnet) others=(--set mlp)
  gradients=(--backend flex --seconds 1 --quick --without-composed)
  peers=(--seconds 0.5 --set resnet)
  quick=(--quick) steps=(--seconds 1 --width 256 --set "digits,GPT-2,1000 small") step_seconds=100
fi

bench device device 60 "${product[@]}"
peer torch_device 30 torch_peer.py device "${product[@]}"
# Both compilers beside each other.
for way in "${working[@]}"; do
  bench gradients gradients 40 "${gradients[@]}" "${first[@]}"
done
way=${working[0]}
bench sets gradients 60 "${gradients[@]}" "${others[@]}"
peer torch_gradients 50 torch_peer.py gradients "${peers[@]}"
registers registers 20
bench training training 60 "${size[@]}"
bench captured training 50 --captured "${size[@]}"
peer torch_training 40 torch_training_peer.py "${size[@]}"
[ "$device" = flex ] || peer torch_captured 30 torch_training_peer.py --captured "${size[@]}"
bench checkpointing training 50 --checkpointing "${size[@]}"
bench captured_checkpointing training 40 --captured --checkpointing "${size[@]}"
peer torch_checkpointing 30 torch_training_peer.py --checkpointing "${size[@]}"
bench fused_training training 40 --fused "${size[@]}"
bench step step "$step_seconds" "${quick[@]}"
peer torch_step 30 torch_peer.py step "${steps[@]}"
step digits 40 "$way" "$program" digits_table --exact --ignored --nocapture

# The tests, for the time that is left. Observers hear of every launch of the process, and nobody reads while a step is recorded: one after another.
tests kernels 60 backend::kernels::
[ "$device" = flex ] || tests launches 60 launches:: --test-threads 1
tests casts 40 cast:: blend:: capture::
tests parity 45 parity::
# Those that take thousands of steps are for the CPU.
tests skips 60 optim:: --skip fused::follows --skip captured::
tests captured_tests 45 captured:: --test-threads 1
# By themselves: a process has one logger.
tests scaler 45 scaler::
tests resume 45 records::round_trip::
registers all_registers 40
# The same work in Burn's operations: thousands of launches.
[ "$device" = flex ] || bench composed gradients 60 --backend cuda --seconds 1 --set gpt2
echo
cat "${out%.json}.md"
echo "$((SECONDS / 60)) min $((SECONDS % 60)) s, $failures of the steps failed; all of it is in $out and ${out%.json}.md"
[ "$failures" = 0 ]
