"""Runs mlp_ddp with one and several ranks of one thread each and prints a table; called by bench/ddp.sh."""

import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

MODELS = ((1024, 2), (2048, 4))
RANKS = (1, 2, 4)
REPETITIONS = 3
BATCH = 64


def steps_of(program, ranks, dim, depth, overlap):
    """Rank 0's step times of one run in seconds, and the part that is communication."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        command = ["mpirun", "-np", str(ranks), program, "--device", "cpu", "--threads", "1",
                   "--dim", str(dim), "--depth", str(depth), "--global-batch-size", str(BATCH),
                   "--steps", "25", "--log-every", "25", "--metrics", str(metrics)]
        subprocess.run(command + ([] if overlap else ["--no-overlap"]), check=True,
                       stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in metrics.read_text().splitlines()[1:]]
    mine = [record for record in records if record["rank"] == 0 and not record["warmup"]]
    return [(record["step_time_s"], record["phases_s"]["communication"]) for record in mine]


def main():
    program = sys.argv[1]
    cores = len(os.sched_getaffinity(0))
    cases = [(dim, depth, ranks, overlap) for dim, depth in MODELS for ranks in RANKS
             for overlap in ((True,) if ranks == 1 else (True, False))]
    found = {case: [] for case in cases}
    for _ in range(REPETITIONS):
        for case in random.sample(cases, len(cases)):
            dim, depth, ranks, overlap = case
            found[case] += steps_of(program, ranks, dim, depth, overlap)
    print(f"# global batch {BATCH}, 1 thread a rank, {cores} cores; medians of {REPETITIONS} runs of "
          "20 steps after 5 of warm-up")
    print(f"{'model':>10} {'ranks':>5} {'overlap':>7} {'step (ms)':>10} {'p5':>8} {'p95':>8} "
          f"{'exposed (ms)':>12} {'speed-up':>8}")
    for dim, depth, ranks, overlap in cases:
        steps = sorted(step for step, _ in found[dim, depth, ranks, overlap])
        exposed = statistics.median(cost for _, cost in found[dim, depth, ranks, overlap])
        median = statistics.median(steps)
        alone = statistics.median(step for step, _ in found[dim, depth, 1, True])
        p5, p95 = steps[len(steps) // 20], steps[-1 - len(steps) // 20]
        note = "  oversubscribed" if ranks > cores else ""
        print(f"{f'{dim} x {depth}':>10} {ranks:>5} {'on' if overlap else 'off':>7} "
              f"{1e3 * median:>10.3f} {1e3 * p5:>8.3f} {1e3 * p95:>8.3f} {1e3 * exposed:>12.3f} "
              f"{alone / median:>8.2f}{note}")


if __name__ == "__main__":
    main()
