#!/usr/bin/env python3
"""compare_builds.py BEFORE AFTER [ROUNDS]: compares the median step of two builds of mlp_single.

Each round runs both builds, alternating which one is first; the ratio of a round is after / before. Prints
the median ratio and the interval of order statistics that contains the true median with a probability of at
least 95 %.
"""
import re
import statistics
import subprocess
import sys

from rounds import summary

SIZES = ((256, 3, 1500), (1024, 2, 250))  # dim, depth, steps


def median_step_s(program, dim, depth, steps):
    run = subprocess.run(
        [program, "--device", "cpu", "--dim", str(dim), "--depth", str(depth), "--steps", str(steps),
         "--warmup", "20"], capture_output=True, text=True, check=True)
    return float(re.search(r"p50 ([0-9.e-]+)s", run.stdout).group(1))


def main():
    before, after = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 15
    for dim, depth, steps in SIZES:
        times = {before: [], after: []}
        for i in range(rounds):
            for program in (before, after) if i % 2 == 0 else (after, before):
                times[program].append(median_step_s(program, dim, depth, steps))
        ratio = summary([a / b for a, b in zip(times[after], times[before])])
        print(f"{dim} x {depth}: {1e6 * statistics.median(times[before]):.1f} us before, "
              f"{1e6 * statistics.median(times[after]):.1f} us after, ratio "
              f"{ratio['median']:.4f} ({ratio['low']:.4f} to {ratio['high']:.4f}, "
              f"{rounds} rounds)", flush=True)


if __name__ == "__main__":
    main()
