"""Runs mlp_ddp with one and several ranks of one thread each, and mlp_dp on two devices beside one process of
two threads, and prints tables; called by bench/ddp.sh.
"""

import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

from rounds import summary

MODELS = ((1024, 2), (2048, 4))
RANKS = (1, 2, 4)
REPETITIONS = 3
DEVICE_ROUNDS = 9
BATCH = 64


def records_of(command, dim, depth):
    """The records of the first rank's or device's steps after the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        subprocess.run([*command, "--dim", str(dim), "--depth", str(depth), "--steps", "25",
                        "--log-every", "25", "--metrics", str(metrics)], check=True,
                       stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in metrics.read_text().splitlines()[1:]]
    return [record for record in records if record["rank"] == 0 and not record.get("warmup", True)]


def steps_of(program, ranks, dim, depth, overlap):
    """Rank 0's step times of one run in seconds, and the part that is communication."""
    command = ["mpirun", "-np", str(ranks), program, "--device", "cpu", "--threads", "1",
               "--global-batch-size", str(BATCH)]
    return [(record["step_time_s"], record["phases_s"]["communication"])
            for record in records_of(command + ([] if overlap else ["--no-overlap"]), dim, depth)]


def compare_ranks(program):
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


def account_ms(records):
    """The medians of a run's step and of each part of its account; small parts of medians may not add up."""
    account = {name: 1e3 * statistics.median(record["phases_s"][name] for record in records)
               for name in records[0]["phases_s"]}
    return {"step": 1e3 * statistics.median(record["step_time_s"] for record in records), **account}


def compare_devices(single, several):
    """What two devices of a thread take more than one device of two threads, by part of the account."""
    print(f"# batch {BATCH}, Adam as a pass of its own; medians of {DEVICE_ROUNDS} rounds in ms, and the "
          "difference with its 95 % interval")
    print(f"{'model':>10} {'part':>14} {'one device':>10} {'two':>8} {'more':>8}   interval")
    for dim, depth in MODELS:
        rounds = []
        ways = {"one": [single, "--device", "cpu", "--threads", "2", "--update", "separate",
                        "--batch-size", str(BATCH)],
                "two": [several, "--devices", "cpu,cpu", "--batch-size", str(BATCH)]}
        for number in range(DEVICE_ROUNDS):
            order = list(ways) if number % 2 == 0 else list(reversed(ways))
            rounds.append({way: account_ms(records_of(ways[way], dim, depth)) for way in order})
        for part in rounds[0]["two"]:
            more = summary([each["two"][part] - each["one"].get(part, 0) for each in rounds])
            one, two = (statistics.median(each[way].get(part, 0) for each in rounds) for way in ways)
            if max(one, two) >= 0.005:
                print(f"{f'{dim} x {depth}':>10} {part:>14} {one:>10.3f} {two:>8.3f} "
                      f"{statistics.median(more['of_rounds']):>8.3f}   "
                      f"({more['low']:.3f} to {more['high']:.3f})")


def main():
    folder = pathlib.Path(sys.argv[1])
    compare_ranks(str(folder / "mlp_ddp"))
    print()
    compare_devices(str(folder / "mlp_single"), str(folder / "mlp_dp"))


if __name__ == "__main__":
    main()
