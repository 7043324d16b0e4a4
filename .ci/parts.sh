# What the scripts beside this file share. They source it in the repository's root.

export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
# Random tests draw new cases each day. What fails fails again that day, and with this seed.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-$(date -u +%Y%m%d)}
echo "PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED"

part_name='' part_start=$SECONDS
# Begins a part, and says how long the one before took.
part() {
  [ -z "$part_name" ] || echo "-- $part_name: $((SECONDS - part_start)) s"
  part_name=${1-} part_start=$SECONDS
  [ -z "$part_name" ] || echo "== $part_name"
}

# Installs Debian packages.
install() {
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null
}

if ! command -v cc >/dev/null; then
  install gcc libc6-dev
fi
# A Vulkan driver that needs no GPU.
if [ -z "$(ls /usr/share/vulkan/icd.d/lvp_icd*.json 2>/dev/null)" ]; then
  install mesa-vulkan-drivers
fi
