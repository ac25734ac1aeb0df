#!/usr/bin/env bash
# side_by_side_test.sh <source root> <build folder>: on the CPU, at shapes that take seconds, both
# programs train to the same losses, and errors are printed and recorded in the file.
set -euo pipefail
python=${PYTHON:-/usr/bin/python3}
"$python" -c "import torch" 2>/dev/null || { echo "no PyTorch here"; exit 77; }
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# Threads that wait for each other take long on a busy machine.
export OMP_NUM_THREADS=1

compare() {
  python3 "$1/bench/side_by_side.py" --python "$2" --build "$3" --device cpu --small \
    --output "$results/side.json"
}

compare "$1" "$python" "$2"
python3 - "$results/side.json" <<'END'
import json, sys
result = json.load(open(sys.argv[1]))
assert result["failures"] == [] and result["left_out"] == [] and result["pytorch"]["torch"], result
# Linear layers and transformer blocks, each in fp32, bf16 and fp16.
assert [case["block"] for case in result["cases"]] == 3 * ["mlp"] + 3 * ["transformer"], result["cases"]
for case in result["cases"]:
    limit = {"fp32": 1e-6, "bf16": 1e-3, "fp16": 1e-3}[case["precision"]]
    off = case["largest_loss_difference"]
    assert case["errors"] == {} and off <= limit and case["steps_compared"] == 25, (case["precision"], off)
    assert set(case["ratios"]) == {"eager / barestep", "eager / barestep, graph"}, case["ratios"]
    assert all(len(times) == 2 for times in case["ms_of_rounds"].values()), case["ms_of_rounds"]
END

# A program with different losses: the sixth loss is off by more than a millionth.
mkdir "$results/wrong"
cat >"$results/wrong/mlp_single" <<END
#!/bin/sh
"$2/mlp_single" "\$@" && for argument; do
  case \$before in --metrics) sed -i '/"step":5,/ s/"loss":[0-9.]*/"loss":7.5/' "\$argument" ;; esac
  before=\$argument
done
END
chmod +x "$results/wrong/mlp_single"
if compare "$1" "$python" "$results/wrong" >"$results/out"; then exit 1; fi
grep -q "losses of 64x2 batch 4 fp32 differ by" "$results/out"

# A Python without PyTorch, and no program.
if compare "$1" /bin/false "$2" 2>"$results/err"; then exit 1; fi
grep -q "side_by_side: error: PyTorch: " "$results/err"
mkdir "$results/none"
printf '#!/bin/sh\necho "mlp_single: error: none" >&2; exit 69\n' >"$results/none/mlp_single"
chmod +x "$results/none/mlp_single"
if compare "$1" "$python" "$results/none" >"$results/out"; then exit 1; fi
grep -q "barestep: mlp_single: error: none" "$results/out"
grep -q "no losses could be compared" "$results/out"
