#!/usr/bin/env bash
# compare_pytorch_test.sh <source root> <build folder>: the comparison runs and writes its results,
# and both programs train to the same losses.
set -euo pipefail
python=${PYTHON:-/usr/bin/python3}
"$python" -c "import torch" 2>/dev/null || { echo "no PyTorch here"; exit 77; }
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

python3 "$1/bench/compare_pytorch.py" --python "$python" --build "$2" --shapes 64x2 --batch-sizes 16 \
  --steps 8 --pairs 6 --threads 1 --settings plain --results "$results"
python3 - "$results"/*/compare_pytorch_cpu_*.json <<'END'
import json, sys
result = json.load(open(sys.argv[1]))
comparison = result["comparisons"][0]
assert result["commit"] and comparison["torch"] and comparison["barestep"].startswith("cpu: "), result
assert comparison["auto_took"] == "fused" and len(comparison["rounds"]) == 6, comparison
for figure in comparison["figures"].values():
    assert 0 < figure["low"] <= figure["median"] <= figure["high"] and len(figure["of_rounds"]) == 6, figure
assert max(each["largest_loss_difference"] for each in comparison["rounds"]) <= 5e-7, comparison
END

# Refusals and their messages.
if python3 "$1/bench/compare_pytorch.py" --pairs 5 2>"$results/err"; then exit 1; fi
grep -q "argument --pairs: fewer than 6 have no interval" "$results/err"
if python3 "$1/bench/compare_pytorch.py" --python /bin/false --build "$2" --settings plain \
  >"$results/out" 2>"$results/err"; then exit 1; fi
grep -q "compare_pytorch.sh: error: PyTorch did not run; see above" "$results/err"
