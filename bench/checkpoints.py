#!/usr/bin/env python3
"""Trains with checkpoints and prints the cost of each; called by bench/checkpoints.sh.

  checkpoints.py MLP_SINGLE MLP_DDP
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

EVERY = 150  # steps between checkpoints; nothing is written in the second half
CHECKPOINTS = 12
DEFAULT_INTERVAL_S = 600
MODEL = ["--device", "cpu", "--dim", "1024", "--depth", "6"]


def records_of(command):
    """Rank 0's steps, and the size of a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        subprocess.run([*command, *MODEL, "--steps", str(EVERY * (CHECKPOINTS + 1)), "--metrics",
                        str(metrics), "--checkpoint", f"{folder}/c", "--checkpoint-every",
                        str(EVERY)], check=True, stdout=subprocess.DEVNULL)
        size = next(pathlib.Path(folder).glob("c/*.safetensors")).stat().st_size
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [each for each in records if "step" in each and each["rank"] == 0], size


def costs_of(records):
    """For each checkpoint: the wait for it, and the increase of the steps after it."""
    costs = []
    for first in range(EVERY, len(records), EVERY):
        steps = [each["step_time_s"] + each["between_s"] for each in records[first:first + EVERY]]
        busy, quiet = steps[:EVERY // 2], statistics.median(steps[EVERY // 2:])
        costs.append((records[first]["checkpoint_s"], sum(busy) - len(busy) * quiet))
    return costs


def main():
    single, ddp = sys.argv[1:]
    load = pathlib.Path("/proc/loadavg").read_text().split()[0]
    print(f"# {' '.join(MODEL)} --checkpoint-every {EVERY}, medians of {CHECKPOINTS} checkpoints")
    print("# waited: the steps stood still; slowed: the steps after it took longer, all together;")
    print(f"# share: waited and slowed at the default interval, of {DEFAULT_INTERVAL_S} s")
    print(f"# the machine's load over the minute before: {load}")
    print(f"{'run':>22} {'file (MB)':>9} {'step (ms)':>9} {'waited (ms)':>11} {'most':>6} "
          f"{'slowed (ms)':>11} {'most':>6} {'share (%)':>9}")
    for name, command in (("mlp_single", [single]),
                          ("mlp_ddp 2 x zero1", ["mpirun", "-np", "2", ddp, "--scheme", "zero1"])):
        records, size = records_of(command)
        costs = costs_of(records)
        step = statistics.median(each["step_time_s"] for each in records)
        waited, slowed = (statistics.median(column) for column in zip(*costs))
        most_waited, most_slowed = (max(column) for column in zip(*costs))
        share = 100 * (waited + slowed) / DEFAULT_INTERVAL_S
        print(f"{name:>22} {size / 1e6:9.1f} {1e3 * step:9.3f} {1e3 * waited:11.1f} "
              f"{1e3 * most_waited:6.0f} {1e3 * slowed:11.1f} {1e3 * most_slowed:6.0f} {share:9.4f}")


if __name__ == "__main__":
    main()
