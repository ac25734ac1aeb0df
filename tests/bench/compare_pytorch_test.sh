#!/usr/bin/env bash
# compare_pytorch_test.sh <source root> <build folder>: the comparison runs, writes what it found, and
# both programs train to the same losses.
set -euo pipefail
python=${PYTHON:-/usr/bin/python3}
"$python" -c "import torch" 2>/dev/null || { echo "no PyTorch here"; exit 77; }
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

python3 "$1/bench/compare_pytorch.py" --python "$python" --build "$2" --shapes 64x2 --batch-size 16 \
  --steps 8 --pairs 5 --threads 1 --settings plain --results "$results"
python3 - "$results"/*/compare_pytorch_cpu_*.json <<'END'
import json, sys
result = json.load(open(sys.argv[1]))
comparison = result["comparisons"][0]
assert result["commit"] and comparison["torch"] and comparison["barestep"].startswith("cpu: "), result
assert len(comparison["pairs"]) == 5 and comparison["ratios"] == sorted(comparison["ratios"]), comparison
assert comparison["ratios"][2] == comparison["median_ratio"] > 0, comparison
assert max(pair["largest_loss_difference"] for pair in comparison["pairs"]) <= 5e-7, comparison
END

# What is refused, and in which words.
if python3 "$1/bench/compare_pytorch.py" --pairs 4 2>"$results/err"; then exit 1; fi
grep -q "argument --pairs: fewer than 5 say too little" "$results/err"
if python3 "$1/bench/compare_pytorch.py" --python /bin/false --build "$2" --settings plain \
  >"$results/out" 2>"$results/err"; then exit 1; fi
grep -q "compare_pytorch.sh: error: PyTorch did not run; see above" "$results/err"
