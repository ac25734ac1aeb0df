#!/usr/bin/env python3
"""Times flash attention of one op, forward and backward, here and in PyTorch, in turn.

Ours is the benchmark `attention` of barestep_bench, on packed rows of queries, keys and values as a
model has them; PyTorch's is scaled_dot_product_attention with its flash kernel, on tensors of its own
layout. Both are fp32 with the same number of threads. They run in rounds, each run a process of its own,
the order turning from round to round; the first round is warm-up. A figure is PyTorch's median time over
ours, the median over the rounds with the interval of order statistics. Everything goes to
bench/results/<machine>/ as JSON and text.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

from machine import machine
from rounds import LARGEST_LOST, LARGEST_WIDTH, LostTime, lost_share, summary

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH = 64  # of a head
CASES = [(batch, heads, length, causal) for causal in (False, True)
         for batch, heads, length in ((8, 8, 128), (4, 8, 512), (1, 8, 2048))]
PARTS = ("forward", "backward")


def parse():
    parser = argparse.ArgumentParser(prog="attention.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3", help="the Python that has torch")
    parser.add_argument("--build", default=str(ROOT / "build"), help="folder of barestep_bench")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--pairs", type=int, default=7, help="measured rounds, at least 6")
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    parser.add_argument("--torch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pairs < 6:
        parser.error("argument --pairs: fewer than 6 have no interval")
    return options


def time_torch(threads):
    """PyTorch's side: prints the median milliseconds of each case."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.set_num_threads(threads)
    lost = LostTime()
    lost.start()
    begin = time.perf_counter()
    medians = []
    for batch, heads, length, causal in CASES:
        shape = (batch, heads, length, WIDTH)
        q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
        grad = torch.randn(shape)
        times = {part: [] for part in PARTS}
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            until = time.perf_counter() + 0.5
            while time.perf_counter() < until or len(times["forward"]) < 5:
                start = time.perf_counter()
                out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
                middle = time.perf_counter()
                torch.autograd.grad(out, (q, k, v), grad)
                times["backward"].append(time.perf_counter() - middle)
                times["forward"].append(middle - start)
        medians.append({part: 1e3 * statistics.median(times[part]) for part in PARTS})
    print(json.dumps({"torch": torch.__version__, "ms": medians,
                      "lost": lost_share(lost.record(time.perf_counter() - begin))}))


def run(command):
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if result.returncode != 0:
        sys.exit(f"attention.sh: error: {(result.stderr.strip().splitlines() or ['no message'])[-1]}")
    return result.stdout


def torch_times(options):
    return json.loads(run([options.python, __file__, "--torch", "--threads", str(options.threads)])
                      .splitlines()[-1])


def own_times(options):
    report = json.loads(run([options.build + "/barestep_bench", f"--threads={options.threads}",
                             "--benchmark_filter=^attention/", "--benchmark_format=json"]))
    by_name = {each["name"].rsplit("/", 1)[0]: each["median ms"] for each in report["benchmarks"]}
    return {"ms": [{part: by_name["attention/" + "/".join(map(str, (number, *case[:3], int(case[3]))))]
                    for number, part in enumerate(PARTS)} for case in CASES]}


def load():
    return pathlib.Path("/proc/loadavg").read_text().split()[0]


def measure(options):
    ways = {"torch": torch_times, "barestep": own_times}
    rounds = []
    for number in range(options.pairs + 1):
        names = list(ways) if number % 2 == 0 else list(reversed(ways))
        result = {name: ways[name](options) for name in names}
        result["load"] = load()
        print(f"round {number} of {options.pairs}: load {result['load']}", flush=True)
        if number > 0:
            rounds.append(result)
    return rounds


def flops(case, part):
    batch, heads, length, causal = case
    pairs = length * (length + 1) / 2 if causal else length * length
    return {"forward": 4, "backward": 10}[part] * batch * heads * pairs * WIDTH


def rows_of(rounds):
    for number, case in enumerate(CASES):
        for part in PARTS:
            ms = {who: [each[who]["ms"][number][part] for each in rounds] for who in ("torch", "barestep")}
            yield {"batch": case[0], "heads": case[1], "length": case[2], "width": WIDTH, "causal": case[3],
                   "part": part, "ms": {who: statistics.median(times) for who, times in ms.items()},
                   "gflops": flops(case, part) / statistics.median(ms["barestep"]) / 1e6,
                   "speed": summary([a / b for a, b in zip(ms["torch"], ms["barestep"])])}


def text_of(rows, rounds, commit):
    speeds = [row["speed"] for row in rows]
    wide = sum(each["high"] - each["low"] > LARGEST_WIDTH * each["median"] for each in speeds)
    lost = sum(each["torch"]["lost"] > LARGEST_LOST for each in rounds)
    verdict = "INVALID, the machine was not quiet: " if 4 * lost > len(rounds) or wide else ""
    lines = [f"{verdict}flash attention, fp32, against PyTorch {rounds[0]['torch']['torch']}; commit {commit}",
             f"load {', '.join(each['load'] for each in rounds)}; {lost} of {len(rounds)} rounds lost more than "
             f"{LARGEST_LOST:.0%} of their time to other programs, {wide} of {len(rows)} intervals are wider "
             f"than {LARGEST_WIDTH:.0%}", "",
             "batch heads length causal part       PyTorch      ours  GFLOP/s  times as fast"]
    for row in rows:
        speed = row["speed"]
        lines.append(f"{row['batch']:5} {row['heads']:5} {row['length']:6} {'yes' if row['causal'] else 'no':6} "
                     f"{row['part']:8} {row['ms']['torch']:7.2f} ms {row['ms']['barestep']:6.2f} ms "
                     f"{row['gflops']:7.0f}  {speed['median']:.2f} ({speed['low']:.2f} to {speed['high']:.2f})")
    return "\n".join(lines) + "\n"


def main():
    options = parse()
    if options.torch:
        return time_torch(options.threads)
    rounds = measure(options)
    rows = list(rows_of(rounds))
    commit = run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"]).strip()
    now = datetime.datetime.now(datetime.timezone.utc)
    folder = pathlib.Path(options.results) / machine()
    folder.mkdir(parents=True, exist_ok=True)
    text = text_of(rows, rounds, commit)
    (folder / "attention.json").write_text(json.dumps(
        {"commit": commit, "time": now.isoformat(timespec="seconds"), "threads": options.threads,
         "kernel": platform.release(), "rows": rows, "rounds": rounds}, indent=1) + "\n")
    (folder / "attention.txt").write_text(text)
    print(text + f"written to {folder / 'attention.txt'}")


if __name__ == "__main__":
    main()
