#!/usr/bin/env bash
# slurm.sh FAULT_CELLS ARGUMENTS...: runs this program under a private Slurm on this machine:
# munged, slurmctld and one slurmd, set up in a temporary folder and ended afterwards. Needs root
# and Debian's packages slurm-wlm and munge; ends with 77 without them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)

for tool in munged slurmctld slurmd srun; do
  if ! PATH=$PATH:/usr/sbin command -v "$tool" >/dev/null; then
    echo "slurm: skipped: $tool is not here; install slurm-wlm and munge"
    exit 77
  fi
done
if [ "$(id -u)" != 0 ]; then
  echo "slurm: skipped: only root can set up a Slurm"
  exit 77
fi
PATH=$PATH:/usr/sbin

folder=$(mktemp -d /tmp/barestep-slurm.XXXXXX)
chmod 755 "$folder"
mkdir -p "$folder"/{state,spool,log}
started=()
stop() {
  local process
  scancel --quiet --user=root 2>/dev/null || true
  for process in "${started[@]}"; do kill "$process" 2>/dev/null || true; done
  for try in $(seq 50); do kill -0 "${started[@]}" 2>/dev/null || break; sleep 0.1; done
  kill -9 "${started[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  rm -rf "$folder"
}
trap stop EXIT

# Uses its own key and socket, so a munge that is already running is not affected.
install -d -o munge -g munge -m 711 "$folder/munge"
dd if=/dev/urandom of="$folder/munge/key" bs=1024 count=1 status=none
chown munge "$folder/munge/key"
chmod 600 "$folder/munge/key"
setpriv --reuid=munge --regid=munge --clear-groups munged --foreground --key-file="$folder/munge/key" \
  --socket="$folder/munge/socket" --pid-file="$folder/munge/pid" --seed-file="$folder/munge/seed" \
  --log-file="$folder/munge/log" >"$folder/munge/out" 2>&1 &
started+=($!)

host=$(hostname -s)
cores=$(nproc)
cat >"$folder/slurm.conf" <<CONF
ClusterName=barestep
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
MpiDefault=pmix
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd
SlurmctldPort=16817
SlurmdPort=16818
KillWait=5
KillOnBadExit=1
MailProg=/bin/true
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=64 Boards=1 SocketsPerBoard=1 CoresPerSocket=64 ThreadsPerCore=1 RealMemory=4000
PartitionName=debug Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
CONF
export SLURM_CONF=$folder/slurm.conf
for try in $(seq 50); do [ -S "$folder/munge/socket" ] && break || sleep 0.1; done
slurmctld -D -f "$SLURM_CONF" >"$folder/log/out" 2>&1 &
started+=($!)
slurmd -D -f "$SLURM_CONF" -N "$host" >>"$folder/log/out" 2>&1 &
started+=($!)
for try in $(seq 100); do
  [ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && break || sleep 0.1
done
if [ "$(sinfo -h -o %T 2>/dev/null)" != idle ]; then
  echo "slurm: error: the node does not become idle; its log:" >&2
  tail -n 20 "$folder"/log/* >&2
  exit 1
fi
echo "Slurm $(sinfo --version | cut -d ' ' -f 2) on $cores cores"
# Otherwise, ranks that wait for others would occupy the others' cores.
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
# Waits until the job was queued again this many times, for at most this many tenths of a second.
restarted() {
  local try
  for try in $(seq "$3"); do
    scontrol show job "$1" | grep -q "Restarts=$2" && return || sleep 0.1
  done
  return 1
}
# The README's queued job: USR1, which Slurm sends before the time limit, ends it normally with a
# checkpoint. It is queued again and continues from there until it has the same bits as an
# undisturbed run.
queued() {
  local program=$1 job log=$folder/job
  local run=(--device cpu --threads 1 --dim 8 --depth 1 --steps 2000)
  salloc --quiet --ntasks=2 --overcommit srun --mpi=pmix "$program" "${run[@]}" --save "$folder/undisturbed" \
    >"$folder/undisturbed.out"
  # The limit is a minute and the signal comes after about 20 seconds; the steps take a minute.
  job=$(MLP_DDP=$program MLP_DDP_CHECKPOINTS=$folder/checkpoints sbatch --parsable --ntasks=2 --overcommit \
    --gpus-per-task=0 --time=1 --signal=USR1@40 --output="$log" "$here/../../scripts/mlp_ddp.sbatch" "${run[@]}" \
    --delay-ms 30 --save "$folder/weights")
  if ! restarted "$job" 1 900 || ! grep -q 'note: asked to stop, all ranks ended' "$log"; then
    echo "slurm: error: the queued job was not ended in order and queued again:" >&2
    cat "$log" >&2
    exit 1
  fi
  # Slurm delays a job that was queued again.
  for try in $(seq 600); do
    scontrol show job "$job" | grep -q 'JobState=COMPLETED' && break
    scontrol update "JobId=$job" StartTime=now 2>/dev/null || true
    sleep 1
  done
  if ! cmp "$folder/weights" "$folder/undisturbed" || ! grep -q 'note: resumes from' "$log"; then
    echo "slurm: error: the queued job did not go on to the end with the bits of an undisturbed one:" >&2
    cat "$log" >&2
    exit 1
  fi
  echo "The queued job was queued again until it was done, and has the bits of an undisturbed one"
}
for i in "$@"; do
  if [ "${previous:-}" = --mlp-ddp ]; then queued "$(realpath "$i")"; fi
  previous=$i
done

# The cells are steps of one job, so none has to wait in the queue for another.
salloc --quiet --ntasks=4 --overcommit "$@" --launcher srun
