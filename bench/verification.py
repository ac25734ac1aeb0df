#!/usr/bin/env python3
"""Trains with and without --verify-every in turn and prints a table; called by bench/verification.sh.

  verification.py BUILD
"""

import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

ROUNDS = 5
STEPS = 205  # the first 5 are warm-up: two verified steps of --verify-every 100
EVERY = (0, 100, 10, 1)  # 0: without
RUNS = {"1024 x 6, separate update": ["mlp_single", "--dim", "1024", "--depth", "6", "--threads", "2",
                                      "--update", "separate"],
        "1024 x 6, fused update": ["mlp_single", "--dim", "1024", "--depth", "6", "--threads", "2",
                                   "--update", "fused"],
        "256 x 3": ["mlp_single", "--dim", "256", "--depth", "3", "--threads", "2"],
        "1024 x 2 on two ranks": ["mlp_ddp", "--dim", "1024", "--depth", "2", "--threads", "1"]}


def trained(build, run, every):
    """Of a step, the mean of those after warm-up: its time and what of it verification takes, in ms; and the
    processor time of the whole run in its own code, in s."""
    program, *options = run
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        command = ["mpirun", "-np", "2"] if program == "mlp_ddp" else []
        command += [str(build / program), "--device", "cpu", "--steps", str(STEPS), "--batch-size", "64",
                    "--metrics", str(metrics), *options]
        if program == "mlp_ddp":
            command[command.index("--batch-size")] = "--global-batch-size"
        if every:
            command += ["--verify-every", str(every)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        user_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [each for each in records if not each.get("warmup", True) and each.get("rank") == 0]
    return (1e3 * statistics.fmean(each["step_time_s"] for each in steps),
            1e3 * statistics.fmean(each["phases_s"]["verification"] for each in steps), user_s)


def main():
    build = pathlib.Path(sys.argv[1])
    print(f"# {STEPS} steps of 64 samples; medians of {ROUNDS} rounds, in each of which every way ran once, the order")
    print("# turning. ms: a step, the mean; looks: of it, the part of the account; cost: the median over the")
    print("# rounds of its time over that without, less 1, with its ends; user: the same of processor time")
    print(f"{'run':>26} {'every':>6} {'ms':>8} {'looks':>7} {'cost':>8} {'least':>8} {'most':>8} {'user':>8}")
    for name, run in RUNS.items():
        rounds = {every: [] for every in EVERY}
        for number in range(ROUNDS):
            for every in EVERY if number % 2 == 0 else reversed(EVERY):
                rounds[every].append(trained(build, run, every))
        for every, figures in rounds.items():
            step_ms, looks_ms, _ = (statistics.median(column) for column in zip(*figures))
            costs, users = (sorted(100 * (figure[place] / without[place] - 1)
                                   for figure, without in zip(figures, rounds[0])) for place in (0, 2))
            print(f"{name:>26} {every or 'never':>6} {step_ms:>8.3f} {looks_ms:>7.3f} "
                  f"{statistics.median(costs):>6.2f} % {costs[0]:>6.2f} % {costs[-1]:>6.2f} % "
                  f"{statistics.median(users):>6.2f} %", flush=True)


main()
