#!/usr/bin/env bash
# docs/example-report/make.sh: runs all experiments of mlp_lab on this machine's CPU and puts report.md
# and its plots here, and the sheets with their keys into bench/results/<machine>/sheets. The other files of
# the study (results.json and .csv, report.html, the runs) stay in build/example-study. Takes less than an hour
# on two cores. Run it on a machine that does nothing else. One that was stopped goes on where it stopped.
set -euo pipefail
cd "$(dirname "$0")/../.."  # from here on paths are relative, and the report's command lines with them
here=docs/example-report
study=build/example-study

if [ ! -f build/build.ninja ]; then cmake -S . -B build -G Ninja >/dev/null; fi
ninja -C build mlp_lab mlp_single mlp_dp mlp_ddp >/dev/null
build/mlp_lab run all --device cpu --output "$study"
rm -rf "$here/plots"
cp -r "$study/plots" "$study/report.md" "$here/"
sheets=bench/results/$(python3 bench/machine.py)/sheets
mkdir -p "$sheets"
for file in src/lab/sheets/*.md; do
  name=$(basename "$file" .md)
  build/mlp_lab sheet "$name" --key --device cpu --output "$study" >/dev/null
  cp "$study/$name-key.md" "$sheets/"
done
if grep -q INVALID "$here/report.md"; then
  echo "make.sh: note: sections are marked INVALID; remove $study and run it again on a quiet machine" >&2
fi
