#!/usr/bin/env python3
"""Times the baseline model's step under PyTorch and with mlp_single, in turn.

First every setting of PyTorch that may help is tried, at each size with a batch of the middle; the
best one is compared. Then all run in rounds, each run a process of its own, the order turning from
round to round; the first round is warm-up. Two ratios of PyTorch's median step time over
mlp_single's: same semantics, a gradient and then an update (--update separate), and best against
best (--update auto). The figure is the median over the rounds, with the interval of order statistics.
A run that lost too much time to other programs is made again; where the machine stays too noisy the
verdict is INVALID, with its cause. Everything goes to bench/results/<machine>/ as JSON.
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
from rounds import least_lost, lost_share, summary, why_invalid

ROOT = pathlib.Path(__file__).resolve().parent.parent


def parse():
    parser = argparse.ArgumentParser(prog="compare_pytorch.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3", help="the Python that has torch")
    parser.add_argument("--build", default=str(ROOT / "build"), help="folder of mlp_single")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--block", default="mlp", choices=["mlp", "transformer"])
    parser.add_argument("--length", type=int, default=128, help="rows of a sample of a transformer")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--shapes", default="256x3,1024x2,1024x6,2048x4", help="DIMxDEPTH,...")
    parser.add_argument("--batch-sizes", default="1,64,512", help="N,...")
    parser.add_argument("--pairs", type=int, default=10, help="measured rounds, at least 6")
    parser.add_argument("--steps", type=int, default=0, help="of a run (default: about a second)")
    parser.add_argument("--settings", default="all", choices=["all", "plain"],
                        help="plain: try no settings of PyTorch")
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    options = parser.parse_args()
    if options.pairs < 6:
        parser.error("argument --pairs: fewer than 6 have no interval")
    return options


def allocators():
    """Installed allocators by name, and glibc's with settings that keep its memory."""
    found = {"glibc, memory kept": {"MALLOC_MMAP_THRESHOLD_": "4294967296",
                                    "MALLOC_TRIM_THRESHOLD_": "4294967296",
                                    "MALLOC_TOP_PAD_": "268435456"}}
    for name in ("jemalloc", "tcmalloc_minimal", "tcmalloc"):
        libraries = sorted(glob.glob(f"/usr/lib/*/lib{name}.so.*") + glob.glob(f"/usr/lib*/lib{name}.so.*"))
        if libraries:
            found[name] = {"LD_PRELOAD": libraries[0]}
    return found


def settings(options):
    """The settings of PyTorch to try: (name, environment, arguments)."""
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


def model_arguments(options, dim, depth):
    shape = ["--dim", str(dim), "--depth", str(depth)]
    if options.block == "transformer":
        shape += ["--block", "transformer", "--length", str(options.length)]
    return shape


def run_torch(options, case, setting):
    _, environment, arguments = setting
    dim, depth, batch, steps = case
    text = run([options.python, str(ROOT / "bench" / "practical.py"), *model_arguments(options, dim, depth),
                "--batch-size", str(batch), "--steps", str(steps),
                "--precision", options.precision, "--device", options.device, *arguments], environment)
    result = json.loads(text.splitlines()[-1])
    return {**result, "lost": lost_share(result["lost_time"])}


def run_barestep(options, case, update):
    dim, depth, batch, steps = case
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        text = run([options.build + "/mlp_single", *model_arguments(options, dim, depth),
                    "--batch-size", str(batch), "--steps", str(steps), "--device", options.device,
                    "--threads", str(options.threads), "--precision", options.precision, "--update", update,
                    "--metrics", str(metrics)])
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [record for record in records if not record.get("warmup", True)]
    lost = next(record["lost_time"] for record in records if "lost_time" in record)
    return {"device": text.splitlines()[1], "update": records[0]["configuration"].get("update"),
            "step_time_s": [record["step_time_s"] for record in steps],
            "loss": [record["loss"] for record in steps], "lost": lost_share(lost)}


def median_ms(result):
    return 1e3 * statistics.median(result["step_time_s"])


def load():
    return pathlib.Path("/proc/loadavg").read_text().split()[0]


def best_setting(options, case):
    """Tries every setting twice; returns the fastest one and the best time of each."""
    tried = []
    for setting in settings(options):
        try:
            times = [median_ms(run_torch(options, case, setting)) for _ in range(2)]
            tried.append({"setting": setting[0], "ms": min(times)})
            print(f"  PyTorch, {setting[0]}: {tried[-1]['ms']:.3f} ms", flush=True)
        except RuntimeError as error:
            tried.append({"setting": setting[0], "error": str(error)})
            print(f"  PyTorch, {setting[0]}: {error}", flush=True)
    fastest = min((t for t in tried if "ms" in t), key=lambda t: t["ms"], default=None)
    if fastest is None:
        sys.exit("compare_pytorch.sh: error: PyTorch did not run; see above")
    return next(s for s in settings(options) if s[0] == fastest["setting"]), tried


def steps_for(options, dim, depth, batch):
    """A number of steps that takes about half a second, so the runs of a round are close in time."""
    rows = batch * (12 * options.length if options.block == "transformer" else 1)
    return options.steps or max(15, min(400, int(1.2e9 / (dim * dim * depth * rows))))


def text_of(figure):
    return f"{figure['median']:.2f}x ({figure['low']:.2f} to {figure['high']:.2f})"


def compare(options, case, setting, tried):
    dim, depth, batch, steps = case
    block = (f"TransformerEncoderLayer({dim}), length {options.length}" if options.block == "transformer"
             else f"Linear({dim}, {dim})")
    print(f"{depth} x {block}, batch {batch}, {options.precision}, {options.device}, {options.threads} threads, "
          f"load {load()}", flush=True)
    ways = {"torch": lambda: run_torch(options, case, setting),
            "separate": lambda: run_barestep(options, case, "separate"),
            "auto": lambda: run_barestep(options, case, "auto")}
    rounds = []
    for number in range(options.pairs + 1):
        names = list(ways) if number % 2 == 0 else list(reversed(ways))
        result = {name: least_lost(ways[name]) for name in names}
        if number == 0:
            continue  # warm-up
        off = max(abs(a - b) / abs(b) for a, b in zip(result["separate"]["loss"], result["torch"]["loss"]))
        rounds.append({"load": load(), "largest_loss_difference": off,
                       "ms": {name: median_ms(result[name]) for name in ways},
                       "lost": {name: result[name]["lost"] for name in ways}})
        print("  round {}: PyTorch {torch:.3f} ms, separate {separate:.3f} ms, auto {auto:.3f} ms".format(
            number, **rounds[-1]["ms"]), flush=True)

    def ratio(a, b):
        return summary([each["ms"][a] / each["ms"][b] for each in rounds])

    figures = {"same semantics": ratio("torch", "separate"), "best against best": ratio("torch", "auto"),
               "auto over separate": ratio("auto", "separate")}
    invalid = why_invalid([list(each["lost"].values()) for each in rounds],
                          {name: figures[name] for name in ("same semantics", "best against best")})
    verdict = f"INVALID: {invalid}; " if invalid else ""
    print(f"  {verdict}mlp_single against PyTorch {result['torch']['torch']} with {setting[0]}: same semantics "
          f"{text_of(figures['same semantics'])}, best against best "
          f"{text_of(figures['best against best'])}; auto ({result['auto']['update']}) takes "
          f"{text_of(figures['auto over separate'])} the time of separate", flush=True)
    return {"block": options.block, "length": options.length if options.block == "transformer" else 1,
            "precision": options.precision, "dim": dim, "depth": depth, "batch_size": batch, "steps": steps, "invalid": invalid,
            "figures": figures, "rounds": rounds, "auto_took": result["auto"]["update"],
            "pytorch_setting": setting[0], "pytorch_settings_tried": tried,
            "torch": result["torch"]["torch"], "torch_build": result["torch"]["build"],
            "barestep": result["auto"]["device"]}


def compare_all(options):
    batches = [int(n) for n in options.batch_sizes.split(",")]
    for shape in options.shapes.split(","):
        dim, depth = (int(n) for n in shape.split("x"))
        cases = [(dim, depth, batch, steps_for(options, dim, depth, batch)) for batch in batches]
        setting, tried = best_setting(options, cases[len(cases) // 2])
        for case in cases:
            yield compare(options, case, setting, tried)


def main():
    options = parse()
    try:
        results = list(compare_all(options))
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
