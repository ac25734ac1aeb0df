#!/usr/bin/env python3
"""Times the practical's step under PyTorch and with mlp_single, in turn.

First every setting of PyTorch that may help is tried once; the best one is compared. Then both
programs run in pairs, each run a process of its own, the order changing from pair to pair; the
first pair is warm-up. The figure is the median over the pairs of (PyTorch's median step time /
mlp_single's), with its spread. Everything goes to bench/results/<machine>/ as JSON.
"""

import argparse
import datetime
import glob
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

from machine import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent


def parse():
    parser = argparse.ArgumentParser(prog="compare_pytorch.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3", help="the Python that has torch")
    parser.add_argument("--build", default=str(ROOT / "build"), help="folder of mlp_single")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--shapes", default="1024x2,2048x4", help="DIMxDEPTH,...")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=7, help="measured pairs, at least 5")
    parser.add_argument("--steps", type=int, default=0, help="of a run (default: about a second)")
    parser.add_argument("--settings", default="all", choices=["all", "plain"],
                        help="plain: try no settings of PyTorch")
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    options = parser.parse_args()
    if options.pairs < 5:
        parser.error("argument --pairs: fewer than 5 say too little")
    return options


def allocators():
    """Allocators that are installed, by name; and glibc's told to keep what it has."""
    found = {"glibc, memory kept": {"MALLOC_MMAP_THRESHOLD_": "4294967296",
                                    "MALLOC_TRIM_THRESHOLD_": "4294967296",
                                    "MALLOC_TOP_PAD_": "268435456"}}
    for name in ("jemalloc", "tcmalloc_minimal", "tcmalloc"):
        libraries = sorted(glob.glob(f"/usr/lib/*/lib{name}.so.*") + glob.glob(f"/usr/lib*/lib{name}.so.*"))
        if libraries:
            found[name] = {"LD_PRELOAD": libraries[0]}
    return found


def settings(options):
    """What PyTorch is tried with: (name, environment, arguments)."""
    plain = ("as it comes", {}, [])
    if options.settings == "plain":
        return [plain]
    threads = str(options.threads)
    environment = {"OMP_NUM_THREADS": threads}
    arguments = ["--threads", threads]
    tried = [plain, (f"{threads} threads", environment, arguments)]
    if options.device != "cpu":
        return [plain, ("foreach Adam", {}, ["--adam", "foreach"]),
                ("fused Adam", {}, ["--adam", "fused"])]
    tried.append((f"{threads} threads, OpenBLAS asleep", {**environment, "OPENBLAS_NUM_THREADS": "1"},
                  arguments))
    tried.append((f"{threads} threads, Haswell kernels of OpenBLAS",
                  {**environment, "OPENBLAS_CORETYPE": "Haswell"}, arguments))
    for name, allocator in allocators().items():
        tried.append((f"{threads} threads, {name}", {**environment, **allocator}, arguments))
        tried.append((f"{threads} threads, {name}, Haswell kernels of OpenBLAS",
                      {**environment, **allocator, "OPENBLAS_CORETYPE": "Haswell"}, arguments))
    for adam in ("foreach", "fused"):
        tried.append((f"{threads} threads, {adam} Adam", environment, arguments + ["--adam", adam]))
    return tried


def run(command, environment=None):
    result = subprocess.run(command, env={**os.environ, **(environment or {})}, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if result.returncode != 0:
        raise RuntimeError((result.stderr.strip().splitlines() or ["no message"])[-1])
    return result.stdout


def run_torch(options, shape, steps, setting):
    _, environment, arguments = setting
    dim, depth = shape
    text = run([options.python, str(ROOT / "bench" / "practical.py"), "--dim", str(dim), "--depth",
                str(depth), "--batch-size", str(options.batch_size), "--steps", str(steps),
                "--device", options.device, *arguments], environment)
    return json.loads(text.splitlines()[-1])


def run_barestep(options, shape, steps):
    dim, depth = shape
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        text = run([options.build + "/mlp_single", "--dim", str(dim), "--depth", str(depth),
                    "--batch-size", str(options.batch_size), "--steps", str(steps), "--device",
                    options.device, "--threads", str(options.threads), "--metrics", str(metrics)])
        records = [json.loads(line) for line in metrics.read_text().splitlines()[1:]]
    records = [record for record in records if not record["warmup"]]
    return {"device": text.splitlines()[1],
            "step_time_s": [record["step_time_s"] for record in records],
            "loss": [record["loss"] for record in records]}


def median_ms(result):
    return 1e3 * statistics.median(result["step_time_s"])


def load():
    return pathlib.Path("/proc/loadavg").read_text().split()[0]


def best_setting(options, shape, steps):
    """Tries every setting twice; returns the fastest one and what all of them took at best."""
    tried = []
    for setting in settings(options):
        try:
            times = [median_ms(run_torch(options, shape, steps, setting)) for _ in range(2)]
            tried.append({"setting": setting[0], "ms": min(times)})
            print(f"  PyTorch, {setting[0]}: {tried[-1]['ms']:.3f} ms", flush=True)
        except RuntimeError as error:
            tried.append({"setting": setting[0], "error": str(error)})
            print(f"  PyTorch, {setting[0]}: {error}", flush=True)
    fastest = min((t for t in tried if "ms" in t), key=lambda t: t["ms"], default=None)
    if fastest is None:
        sys.exit("compare_pytorch.sh: error: PyTorch did not run; see above")
    return next(s for s in settings(options) if s[0] == fastest["setting"]), tried


def compare(options, shape):
    dim, depth = shape
    print(f"{depth} x Linear({dim}, {dim}), batch {options.batch_size}, {options.device}, "
          f"{options.threads} threads, load {load()}", flush=True)
    steps = options.steps or max(15, min(100, int(2.5e9 / (dim * dim * depth * options.batch_size))))
    setting, tried = best_setting(options, shape, steps)
    pairs = []
    for number in range(options.pairs + 1):
        runs = [("torch", lambda: run_torch(options, shape, steps, setting)),
                ("barestep", lambda: run_barestep(options, shape, steps))]
        result = {"load": load()}
        for name, program in runs if number % 2 == 0 else reversed(runs):
            result[name] = program()
        if number == 0:
            continue  # warm-up
        off = max(abs(a - b) / abs(b) for a, b in zip(result["barestep"]["loss"], result["torch"]["loss"]))
        pairs.append({"load": result["load"], "torch_ms": median_ms(result["torch"]),
                      "barestep_ms": median_ms(result["barestep"]), "largest_loss_difference": off})
        pairs[-1]["ratio"] = pairs[-1]["torch_ms"] / pairs[-1]["barestep_ms"]
        print("  pair {}: PyTorch {torch_ms:.3f} ms, mlp_single {barestep_ms:.3f} ms, {ratio:.2f}x, "
              "load {load}".format(number, **pairs[-1]), flush=True)
    ratios = sorted(pair["ratio"] for pair in pairs)
    print(f"  mlp_single is {statistics.median(ratios):.2f}x as fast as PyTorch {result['torch']['torch']} "
          f"({ratios[0]:.2f} to {ratios[-1]:.2f} over {len(ratios)} pairs; PyTorch with {setting[0]})",
          flush=True)
    return {"dim": dim, "depth": depth, "batch_size": options.batch_size, "steps": steps,
            "median_ratio": statistics.median(ratios), "ratios": ratios, "pairs": pairs,
            "pytorch_setting": setting[0], "pytorch_settings_tried": tried,
            "torch": result["torch"]["torch"], "torch_build": result["torch"]["build"],
            "barestep": result["barestep"]["device"]}


def main():
    options = parse()
    shapes = [tuple(int(n) for n in shape.split("x")) for shape in options.shapes.split(",")]
    try:
        results = [compare(options, shape) for shape in shapes]
    except RuntimeError as error:
        sys.exit(f"compare_pytorch.sh: error: {error}")
    commit = run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"]).strip()
    now = datetime.datetime.now(datetime.timezone.utc)
    folder = pathlib.Path(options.results) / machine()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"compare_pytorch_{options.device}_{now:%Y%m%d_%H%M%S}.json"
    path.write_text(json.dumps({"commit": commit, "time": now.isoformat(timespec="seconds"),
                                "device": options.device, "threads": options.threads,
                                "kernel": platform.release(), "comparisons": results}, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
