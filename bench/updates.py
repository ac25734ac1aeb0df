#!/usr/bin/env python3
"""Runs mlp_single with both updates and with oneDNN's products, and PyTorch, in turn and prints a table; called by
bench/updates.sh.

  updates.py MLP_SINGLE PYTHON    whole steps
  updates.py --torch THREADS      PyTorch's products, as JSON; to be run by a Python that has it
  updates.py --layers FILE        the tables of the benchmarks' JSON on standard input, beside what --torch printed
"""

import collections
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent
PRODUCT_ROWS = (1, 20, 64)  # as in kernels_bench.cpp
PRODUCT_WIDTHS = (256, 1024, 2048)
MODELS = {(256, 3): 300, (1024, 2): 40, (1024, 6): 20, (2048, 4): 12}  # with the steps of a run
ROUNDS = 5
BATCH = 64
THREADS = 2


def barestep(program, dim, depth, steps, update, gemm="auto"):
    """Records of the steps after the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        subprocess.run([program, "--device", "cpu", "--threads", str(THREADS), "--dim", str(dim),
                        "--depth", str(depth), "--batch-size", str(BATCH), "--steps", str(steps),
                        "--update", update, "--gemm", gemm, "--metrics", str(metrics)], check=True,
                       stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in metrics.read_text().splitlines()[1:]]
    return [record for record in records if not record.get("warmup", True)]


def pytorch(python, dim, depth, steps):
    """The same, without phases."""
    text = subprocess.run([python, str(ROOT / "practical.py"), "--dim", str(dim), "--depth",
                           str(depth), "--batch-size", str(BATCH), "--steps", str(steps),
                           "--threads", str(THREADS)], check=True, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL,
                          env={**os.environ, "OMP_NUM_THREADS": str(THREADS)}).stdout
    result = json.loads(text.splitlines()[-1])
    return [{"step_time_s": time, "loss": loss}
            for time, loss in zip(result["step_time_s"], result["loss"])]


def median_ms(records, phase=None):
    values = [record["phases_s"][phase] if phase else record["step_time_s"] for record in records]
    return 1e3 * statistics.median(values)


def compare_steps(program, python):
    print(f"# batch {BATCH}, {THREADS} threads; medians of {ROUNDS} rounds, in each of which every way "
          "ran once, the order")
    print("# turning; ratio: the median over the rounds of separate's step time over that way's")
    load = pathlib.Path("/proc/loadavg").read_text().split()[0]
    print(f"# the machine's load over the minute before: {load}")
    print(f"{'model':>10} {'way':>9} {'step (ms)':>10} {'least':>8} {'most':>8} {'forward':>8} "
          f"{'backward':>8} {'optimizer':>9} {'ratio':>6} {'least':>6} {'most':>6} "
          f"{'loss differs by':>15}")
    for (dim, depth), steps in MODELS.items():
        ways = {"separate": lambda: barestep(program, dim, depth, steps, "separate"),
                "fused": lambda: barestep(program, dim, depth, steps, "fused"),
                "oneDNN": lambda: barestep(program, dim, depth, steps, "separate", "onednn"),
                "PyTorch": lambda: pytorch(python, dim, depth, steps)}
        rounds = collections.defaultdict(list)
        for number in range(ROUNDS):
            for way in list(ways) if number % 2 == 0 else reversed(list(ways)):
                rounds[way].append(ways[way]())
        for way, runs in rounds.items():
            times = sorted(median_ms(run) for run in runs)
            ratios = sorted(median_ms(one) / median_ms(run)
                            for one, run in zip(rounds["separate"], runs))
            phases = ["-"] * 3 if way == "PyTorch" else [
                f"{statistics.median(median_ms(run, phase) for run in runs):.3f}"
                for phase in ("forward", "backward", "optimizer")]
            off = max(abs(a["loss"] - b["loss"]) / b["loss"]
                      for a, b in zip(runs[0], rounds["separate"][0]))
            print(f"{f'{dim} x {depth}':>10} {way:>9} {statistics.median(times):>10.3f} "
                  f"{times[0]:>8.3f} {times[-1]:>8.3f} {phases[0]:>8} {phases[1]:>8} {phases[2]:>9} "
                  f"{statistics.median(ratios):>6.2f} {ratios[0]:>6.2f} {ratios[-1]:>6.2f} {off:>15.1e}")


def torch_products(threads):
    """Prints median microseconds by product, rows and width. Weights take turns, so that each has left the cache
    before it is used again, as in the benchmark."""
    import torch
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    medians = {}
    for width in PRODUCT_WIDTHS:
        weights = [torch.randn(width, width) for _ in range(max(2, (64 << 20) // (4 * width * width)))]
        bias = torch.randn(width)
        for rows in PRODUCT_ROWS:
            x, y = torch.randn(rows, width), torch.randn(rows, width)
            products = {"forward": lambda w: torch.addmm(bias, x, w.t(), out=y),
                        "input gradient": lambda w: torch.mm(y, w, out=x),
                        "weight gradient": lambda w: torch.mm(y.t(), x, out=w)}
            for name, product in products.items():
                times = []
                for run in range(max(200, 2 * len(weights))):
                    begin = time.perf_counter()
                    product(weights[run % len(weights)])
                    times.append(time.perf_counter() - begin)
                medians[f"{name}/{rows}/{width}"] = 1e6 * statistics.median(times[len(times) // 4:])
    print(json.dumps(medians))


def show_layers(torch_file):
    torch_us = json.loads(pathlib.Path(torch_file).read_text())
    found = collections.defaultdict(list)
    products = collections.defaultdict(list)
    for run in json.load(sys.stdin)["benchmarks"]:
        if run["run_type"] != "iteration":
            continue
        if run["name"].startswith("product/"):
            products[run["label"], *map(int, run["name"].split("/")[2:4])].append(run)
            continue
        dim, layers = run["name"].split("/")[2:4]
        found[f"{dim} x {layers}", run["label"]].append(run["ns/param"])
    print("# a layer's weight gradient and step of Adam, one layer after the other; medians of 5")
    print(f"{'model':>10} {'ns/param':>9} {'least':>7} {'most':>7}  what")
    for (model, what), values in found.items():
        print(f"{model:>10} {statistics.median(values):>9.3f} {min(values):>7.3f} "
              f"{max(values):>7.3f}  {what}")
    print("\n# products; oneDNN time: in turn, as a multiple of ours; medians of 5; PyTorch time: just before")
    print(f"{'product':>16} {'rows':>5} {'width':>6} {'us':>9} {'GFLOP/s':>8} {'% of peak':>9} {'oneDNN time':>11} "
          f"{'PyTorch time':>12}")
    for (product, rows, width), runs in sorted(products.items()):
        def middle(key):
            return statistics.median(run.get(key, float("nan")) for run in runs)
        print(f"{product:>16} {rows:>5} {width:>6} {middle('real_time'):>9.1f} {middle('GFLOP/s'):>8.1f} "
              f"{middle('% of fma peak'):>9.0f} {middle('oneDNN time'):>11.2f} "
              f"{torch_us[f'{product}/{rows}/{width}'] / middle('real_time'):>12.2f}")


if __name__ == "__main__":
    if sys.argv[1] == "--layers":
        show_layers(sys.argv[2])
    elif sys.argv[1] == "--torch":
        torch_products(int(sys.argv[2]))
    else:
        compare_steps(*sys.argv[1:])
