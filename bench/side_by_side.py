#!/usr/bin/env python3
"""mlp_single beside PyTorch on one device: the same losses, the same random numbers, and how long a
step takes.

PyTorch runs in processes that stay, one for each way to run it: eager, fused (Adam), compile,
max-autotune (compile's mode), graph (the whole step in a CUDA graph). In each round every way and mlp_single time the same case in turn,
the order turning round from round to round; a ratio is the median over the rounds of (PyTorch's
median step time / mlp_single's). Cases stand in order of importance, and what the time does not
suffice for is left out and said. The file is written anew after each case.

Exit: 0, or 1 where losses or numbers differ or nothing could be compared.
"""

import argparse
import json
import math
import os
import pathlib
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
LARGEST_LOSS_DIFFERENCE = 1e-6  # relative, in fp32


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch")
    parser.add_argument("--build", required=True, help="folder of mlp_single")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="shapes that take seconds on a CPU")
    parser.add_argument("--seconds", type=float, default=360, help="begin no case after that")
    parser.add_argument("--precisions", default="fp32,tf32,bf16", help="of the cases")
    parser.add_argument("--ways", default="eager,fused,compile,max-autotune,graph", help="of PyTorch")
    parser.add_argument("--rounds", type=int, help="instead of a case's own number")
    parser.add_argument("--output", required=True)
    return parser.parse_args()


class Torch:
    """A worker process; `error` says why it can no longer be used."""

    def __init__(self, options, variant):
        self.variant = variant
        self.error = None
        self.lines = queue.Queue()
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(
            [options.python, str(HERE / "torch_worker.py"), "--variant", variant, "--device",
             options.device], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            if line.startswith("answer "):
                self.lines.put(json.loads(line[len("answer "):]))
        self.lines.put(None)

    def ask(self, seconds, **order):
        """The answer, or {"error"}. A worker that does not answer in time is ended."""
        if self.error:
            return {"error": self.error}
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
            answer = self.lines.get(timeout=seconds)
        except queue.Empty:
            self.error = f"no answer in {seconds:.0f} s"
        except OSError as error:
            self.error = f"the process is gone ({error})"
        else:
            if answer is not None:
                return answer
            self.log.seek(0)
            self.error = (self.log.read().strip().splitlines() or ["it ended without a word"])[-1]
        self.process.kill()
        return {"error": self.error}

    def close(self):
        self.process.kill()
        self.process.wait()


def run_barestep(options, case, arguments, seconds):
    """Step times and losses of mlp_single."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        command = [options.build + "/mlp_single", "--device", options.device, "--log-every",
                   str(case["steps"]), "--metrics", str(metrics), *arguments]
        for name in ("dim", "depth", "steps", "warmup"):
            command += [f"--{name}", str(case[name])]
        command += ["--batch-size", str(case["batch"])]
        command += ["--precision", case["precision"]]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return {"error": f"no end in {seconds:.0f} s"}
        if done.returncode != 0:
            return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
        records = [record for record in records if "step" in record]
    return {"step_time_s": [r["step_time_s"] for r in records if not r["warmup"]],
            "loss": [r["loss"] for r in records]}


def cases(options):
    """The cases, in order of importance."""
    if options.small:
        shapes = [(64, 2, 16, 2), (32, 2, 8, 2)]
    else:
        shapes = [(8192, 6, 64, 5), (1024, 2, 64, 5), (8192, 6, 32, 3), (8192, 6, 128, 3),
                  (8192, 6, 256, 3)]
    for dim, depth, batch, rounds in shapes:
        for precision in ("fp32", "tf32", "bf16") if options.device == "cuda" else ("fp32", "bf16"):
            if precision not in options.precisions.split(","):
                continue
            large = dim >= 8192
            ways = ["eager", "fused"] + (["compile", "max-autotune", "graph"] if batch == 64 else [])
            ways = [way for way in ways if way in options.ways.split(",")]
            yield {"dim": dim, "depth": depth, "batch": batch, "precision": precision,
                   "rounds": options.rounds or rounds,
                   "ways": ways if options.device == "cuda" else ["eager"],
                   "steps": 25 if large else 120, "warmup": 5 if large else 20}


def median_ms(result):
    return 1e3 * statistics.median(result["step_time_s"])


def differences(a, b):
    return [abs(x - y) / abs(y) for x, y in zip(a["loss"], b["loss"])]


def compared_losses(losses):
    """The largest difference between eager PyTorch and mlp_single, over the steps that say something.

    Training magnifies the last bits of a product from step to step, also between two of PyTorch's own
    ways. Steps count until those differ by a quarter of the limit; at least three do.
    """
    of_ours = differences(losses["barestep"], losses["eager"])
    steps = len(of_ours)
    for way in ("fused", "compile"):
        if way in losses:
            apart = [i for i, d in enumerate(differences(losses[way], losses["eager"]))
                     if d > LARGEST_LOSS_DIFFERENCE / 4]
            steps = min(steps, apart[0] if apart else steps)
    steps = max(steps, 3)
    return {"largest_loss_difference": max(of_ours[:steps]), "steps_compared": steps,
            "loss_difference_of_steps": of_ours,
            "losses": {name: result["loss"] for name, result in losses.items()}}


def compare(options, workers, case):
    """Runs one case: all rounds, the ratios, and the difference of the losses."""
    order = {key: case[key] for key in ("dim", "depth", "batch", "precision", "steps", "warmup")}
    runs = {way: lambda way=way: workers[way].ask(150, do="train", **order) for way in case["ways"]}
    runs["barestep"] = lambda: run_barestep(options, case, [], 60)
    runs["barestep, graph"] = lambda: run_barestep(options, case, ["--graph"], 60)
    if options.device == "cuda":
        fused = ["--update", "fused", "--graph"]
        runs["barestep, fused, graph"] = lambda: run_barestep(options, case, fused, 60)
    ms = {name: [] for name in runs}
    errors, losses = {}, {}
    for number in range(case["rounds"]):
        names = [name for name in runs if name not in errors]
        for name in names if number % 2 == 0 else reversed(names):
            result = runs[name]()
            if "error" not in result and not all(math.isfinite(loss) for loss in result["loss"]):
                result = {"error": "a loss is not a number"}
            if "error" in result:
                errors[name] = result["error"]
            else:
                ms[name].append(median_ms(result))
                losses[name] = result
    outcome = {**order, "errors": errors,
               "ms": {name: statistics.median(times) for name, times in ms.items() if times},
               "ms_of_rounds": ms, "ratios": {}}
    for way in case["ways"]:
        for ours in (name for name in runs if name.startswith("barestep")):
            pairs = [a / b for a, b in zip(ms[way], ms[ours])]
            if pairs:
                outcome["ratios"][f"{way} / {ours}"] = statistics.median(pairs)
    if "eager" in losses and "barestep" in losses:
        outcome.update(compared_losses(losses))
    return outcome


def compare_randn(options, worker):
    """Whether torch.randn's numbers match the CUDA device's to the bit, by one of our tests."""
    with tempfile.TemporaryDirectory() as folder:
        for seed in (0, 1):
            answer = worker.ask(60, do="randn", seed=seed, sizes=[64 * 8192, 64 * 1024, 33],
                                file=f"{folder}/randn_{seed}.f32")
            if "error" in answer:
                return answer
        test = options.build + "/tests/cuda_parity_test"
        try:
            done = subprocess.run([test, "--gtest_filter=*DrawsWhatPyTorchDrewHere*"], text=True,
                                  env={**os.environ, "BARESTEP_TORCH_RANDN": folder}, timeout=60,
                                  capture_output=True, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return {"error": str(error)}
    passed = done.returncode == 0 and "[  PASSED  ] 1 test" in done.stdout
    return {"equal_to_the_bit": passed, "said": "" if passed else done.stdout[-2000:]}


def text_of(outcome):
    shape = "{dim}x{depth} batch {batch} {precision}".format(**outcome)
    times = ", ".join(f"{name} {ms:.3f} ms" for name, ms in outcome["ms"].items())
    off = outcome.get("largest_loss_difference")
    text = f"  {shape}: {times}"
    if off is not None:
        text += f"; losses of {outcome['steps_compared']} steps differ by {off:.1e}"
    return text + "".join(f"\n    {name}: {why}" for name, why in outcome["errors"].items())


def failures_of(report):
    """A description of what is wrong."""
    wrong = []
    compared = [c for c in report["cases"] if "largest_loss_difference" in c]
    if not compared:
        wrong.append("no losses could be compared")
    for case in compared:
        if case["precision"] == "fp32" and not case["largest_loss_difference"] <= LARGEST_LOSS_DIFFERENCE:
            wrong.append("losses of {dim}x{depth} batch {batch} differ by {0:.1e}".format(
                case["largest_loss_difference"], **case))
    if report["randn"].get("equal_to_the_bit") is False:
        wrong.append("random numbers differ")
    if "error" in report["randn"]:
        wrong.append(f"random numbers were not compared: {report['randn']['error']}")
    return wrong


def main():
    options = parse()
    begin = time.monotonic()
    all_cases = list(cases(options))
    workers = {way: Torch(options, way) for way in dict.fromkeys(w for c in all_cases for w in c["ways"])}
    report = {"randn": {}, "cases": [], "left_out": []}

    def write():
        new = pathlib.Path(options.output + ".new")
        new.write_text(json.dumps(report, indent=1) + "\n")
        new.replace(options.output)

    report["pytorch"] = workers["eager"].ask(120, do="info")
    write()
    if "error" in report["pytorch"]:
        sys.exit(f"side_by_side: error: PyTorch: {report['pytorch']['error']}")
    if options.device == "cuda":
        report["randn"] = compare_randn(options, workers["eager"])
        print("  torch.randn: {}".format(
            "equal to the bit" if report["randn"].get("equal_to_the_bit") else report["randn"]), flush=True)
    for case in all_cases:
        if time.monotonic() - begin > options.seconds:
            report["left_out"].append({key: case[key] for key in ("dim", "depth", "batch", "precision")})
            continue
        report["cases"].append(compare(options, workers, case))
        print(text_of(report["cases"][-1]), flush=True)
        write()
    for worker in workers.values():
        worker.close()
    report["failures"] = failures_of(report)
    write()
    if report["left_out"]:
        print(f"  left out for want of time: {len(report['left_out'])} cases")
    for failure in report["failures"]:
        print(f"  {failure}")
    sys.exit(1 if report["failures"] else 0)


if __name__ == "__main__":
    main()
