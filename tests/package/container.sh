#!/usr/bin/env bash
# container.sh SOURCE: builds the Containerfile and runs the programs in it. Ends with 77 where that
# cannot be tried: it needs podman, and a base image: podman's, or one made by debootstrap as root.
# Where no registry responds, Containerfile.cuda cannot be built.
set -euo pipefail
source=$(realpath "$1")
work=$(mktemp -d)
image=localhost/barestep-test-$$

skip() {
  echo "container: skipped: $*"
  exit 77
}

wrong() {
  echo "container: error: $*"
  exit 1
}

command -v podman >/dev/null || skip "podman is not here"
engine=(podman --root "$work/images" --runroot "$work/run" --cgroup-manager=cgroupfs)
for runtime in crun /usr/sbin/runc; do
  if command -v "$runtime" >/dev/null; then engine+=(--runtime "$(command -v "$runtime")"); fi
done
limits=(--ulimit nofile=1024:1024 --ulimit nproc=4096:4096)
trap '"${engine[@]}" rmi --all --force >/dev/null 2>&1 || true; rm -rf "$work"' EXIT

base=debian:12-slim
if ! "${engine[@]}" pull --quiet "$base" >"$work/log" 2>&1; then
  command -v debootstrap >/dev/null && [ "$(id -u)" = 0 ] || skip "no image $base, and no debootstrap"
  mirror=$(apt-get indextargets --format '$(SITE)' | sed -n 1p)
  debootstrap --variant=minbase bookworm "$work/bare" "$mirror" >"$work/log" 2>&1 ||
    skip "debootstrap: $(tail -n 1 "$work/log")"
  cp -r /etc/apt/. "$work/bare/etc/apt/"
  base=localhost/bare
  tar -C "$work/bare" -c . | "${engine[@]}" import - "$base" >"$work/log" 2>&1 || skip "$(tail -n 1 "$work/log")"
  rm -rf "$work/bare"
fi
"${engine[@]}" run --rm --network=none "${limits[@]}" "$base" true >"$work/log" 2>&1 ||
  skip "podman starts nothing here: $(tail -n 1 "$work/log")"

"${engine[@]}" build --network=host --isolation=chroot "${limits[@]}" --build-arg BASE="$base" \
  --tag "$image" "$source" >"$work/log" 2>&1 || wrong "$(tail -n 30 "$work/log")"
run=("${engine[@]}" run --rm --network=none --shm-size=1g "${limits[@]}" "$image")

# said <text> <command...>: the command succeeds in the container and prints the text.
said() {
  local output
  output=$("${run[@]}" "${@:2}" 2>&1) || wrong "'${*:2}' failed: $output"
  grep -qF -- "$1" <<<"$output" || wrong "'${*:2}' did not print '$1': $output"
}
said "Step 01 | " mlp_single --dim 64 --depth 2 --steps 2
said "4 ranks, " mpirun -np 4 mlp_ddp --dim 64 --depth 2 --steps 2
said "memory" mlp_lab doctor
echo "container: built from $base and run"
