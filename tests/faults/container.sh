#!/usr/bin/env bash
# container.sh MLP_DDP: the README's command for containers, in a container with this machine's
# files and its own network and /dev/shm. Needs Debian's podman and runc; ends with 77 without them.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd -P)
mlp_ddp=$(realpath "$1")
build=$(dirname "$mlp_ddp")

run=()
for how in "" "--cgroup-manager=cgroupfs --runtime=/usr/sbin/runc"; do
  # Limits that this user may set; written data is discarded. Folders that are mounts of their own are
  # not in the root's files.
  try=(podman $how run --rm --network=none --ulimit nofile=1024:1024 --ulimit nproc=4096:4096
    --shm-size=1g --volume="$root:$root:O" --volume="$build:$build:O" --rootfs /:O)
  if "${try[@]}" true 2>/dev/null; then run=("${try[@]}"); break; fi
done
if [ ${#run[@]} = 0 ]; then
  echo "container: skipped: podman is not here, or this machine does not let it start anything"
  exit 77
fi
said=$("${run[@]}" bash -c ". '$root/scripts/mpi_env.sh'; mpirun -np 4 '$mlp_ddp' --device cpu --dim 64 --depth 2 --steps 3" 2>&1) || true
echo "$said"
steps=$(grep -c '^Step 0' <<<"$said")
if [ "$steps" != 3 ] || ! grep -q '^4 ranks, MPI: all_reduce' <<<"$said" ||
  ! [[ $said == "4 ranks"* ]]; then
  echo "container: error: this is not what four ranks print"
  exit 1
fi
