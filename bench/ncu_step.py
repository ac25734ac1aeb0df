#!/usr/bin/env python3
"""ncu_step.py <log>: ncu's counts for one training step, as JSON: its kernels in order, with their time and
the bytes they moved through device memory, and the sums.

The log is the output of (scripts/gpu_check.sh):
  ncu --csv --print-units base --log-file <log> --metrics \
    dram__bytes_read.sum,dram__bytes_write.sum,gpu__time_duration.sum <program>
A step is what the last launch of the loss's kernel ends, from the one before: with fused updates, Adam's
kernel runs several times a step.
"""

import csv
import json
import pathlib
import sys


def kernels_of(path):
    lines = pathlib.Path(path).read_text().splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said = next((line for line in lines if "==ERROR==" in line), "it names no kernel")
        sys.exit(f"ncu_step: error: log '{path}': {said.replace('==ERROR==', '').strip()}")
    kernels = {}
    for row in csv.DictReader(line for line in lines[start:] if line.startswith('"')):
        kernel = kernels.setdefault(int(row["ID"]), {"kernel": row["Kernel Name"]})
        value = row["Metric Value"].replace(",", "")
        kernel[row["Metric Name"]] = float(value) if value.replace(".", "", 1).isdigit() else None
    return [kernels[number] for number in sorted(kernels)]


def step_of(kernels):
    losses = [i for i, kernel in enumerate(kernels) if "loss" in kernel["kernel"].lower()]
    if len(losses) < 2:
        sys.exit(f"ncu_step: error: kernels: {len(losses)} launches of a loss, not two")
    rows = []
    for kernel in kernels[losses[-2] + 1:losses[-1] + 1]:
        rows.append({"kernel": kernel["kernel"][:100],
                     "us": (kernel["gpu__time_duration.sum"] or 0) / 1e3,
                     "read_bytes": kernel["dram__bytes_read.sum"] or 0,
                     "written_bytes": kernel["dram__bytes_write.sum"] or 0})
    return {"us": sum(row["us"] for row in rows),
            "bytes": sum(row["read_bytes"] + row["written_bytes"] for row in rows), "kernels": rows}


if __name__ == "__main__":
    print(json.dumps(step_of(kernels_of(sys.argv[1]))))
