#!/usr/bin/env python3
"""mlp_single beside PyTorch on one device: the same losses, the same random numbers, and how long a
step takes.

PyTorch runs in processes that stay, one for each way to run it: eager, fused (Adam), compile, max-autotune and
reduce-overhead (compile's modes), graph (the whole step in a CUDA graph). In each round every way and mlp_single
time the same case in turn, the order turning round from round to round; a ratio is the median over the rounds of
(PyTorch's median step time / mlp_single's). What the time does not suffice for is left out and said. The file is
written anew after each case.

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
# The groups of cases, in order of importance: their shapes, the rounds on a GPU, and PyTorch's ways there.
GROUPS = {
    "large": ([{"dim": 8192, "depth": 6}], 3, ["eager", "fused", "compile", "max-autotune", "graph"]),
    "small": ([{"dim": 1024, "depth": 2}], 5, ["eager", "reduce-overhead", "graph"]),
    "blocks": ([{"block": "transformer", "dim": 1024, "depth": 4, "batch": 8, "length": 512}], 3,
               ["eager", "fused", "compile"]),
    "batches": ([{"dim": 8192, "depth": 6, "batch": batch} for batch in (32, 128, 256)], 3, ["eager", "fused"]),
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch")
    parser.add_argument("--build", required=True, help="folder of mlp_single")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="shapes that take seconds on a CPU")
    parser.add_argument("--seconds", type=float, default=360, help="begin no case after that")
    parser.add_argument("--cases", help=f"groups of them ({','.join(GROUPS)}; large,blocks with --small)")
    parser.add_argument("--precisions", default="fp32,tf32,bf16,fp16", help="of the cases")
    parser.add_argument("--ways", help="of PyTorch, instead of a group's own")
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
        for name in ("block", "dim", "depth", "steps", "warmup", "precision"):
            command += [f"--{name}", str(case[name])]
        if case["block"] == "transformer":
            command += ["--length", str(case["length"])]
        command += ["--batch-size", str(case["batch"])]
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
    for name in (options.cases or ("large,blocks" if options.small else ",".join(GROUPS))).split(","):
        shapes, rounds, ways = GROUPS[name]
        for shape in shapes:
            shape = {"block": "mlp", "length": 1, "batch": 64, **shape}
            few = options.small or shape["dim"] >= 8192 or shape["block"] == "transformer"
            if options.small:
                shape.update(dim=64, depth=2, batch=4, length=8 if shape["block"] == "transformer" else 1)
            for precision in options.precisions.split(","):
                if precision == "tf32" and options.device == "cpu":
                    continue
                yield {**shape, "precision": precision, "rounds": options.rounds or (2 if options.small else rounds),
                       "ways": options.ways.split(",") if options.ways else ways if options.device == "cuda"
                       else ["eager"], "steps": 25 if few else 120, "warmup": 5 if few else 20}


def median_ms(result):
    return 1e3 * statistics.median(result["step_time_s"])


def largest_difference(case):
    """How far losses may be from PyTorch's, relative."""
    if case["precision"] != "fp32":
        return 1e-2
    return 5e-6 if case["block"] == "transformer" else 1e-6


def differences(a, b):
    return [abs(x - y) / abs(y) for x, y in zip(a["loss"], b["loss"])]


def compared_losses(losses, limit):
    """The largest difference between eager PyTorch and mlp_single, over the steps that say something.

    Training magnifies the last bits of a product from step to step, also between two of PyTorch's own
    ways. Steps count until those differ by a quarter of the limit; at least three do.
    """
    of_ours = differences(losses["barestep"], losses["eager"])
    steps = len(of_ours)
    for way in ("fused", "compile"):
        if way in losses:
            apart = [i for i, d in enumerate(differences(losses[way], losses["eager"]))
                     if d > limit / 4]
            steps = min(steps, apart[0] if apart else steps)
    steps = max(steps, 3)
    return {"largest_loss_difference": max(of_ours[:steps]), "steps_compared": steps,
            "loss_difference_of_steps": of_ours,
            "losses": {name: result["loss"] for name, result in losses.items()}}


def compare(options, workers, case):
    """Runs one case: all rounds, the ratios, and the difference of the losses."""
    order = {key: value for key, value in case.items() if key not in ("ways", "rounds")}
    runs = {way: lambda way=way: workers[way].ask(150, do="train", **order) for way in case["ways"]}
    separate = ["--update", "separate"]
    runs["barestep"] = lambda: run_barestep(options, case, separate, 60)
    runs["barestep, graph"] = lambda: run_barestep(options, case, [*separate, "--graph"], 60)
    # fp16 and blocks other than Linear have no fused update.
    if options.device == "cuda" and case["precision"] != "fp16" and case["block"] == "mlp":
        runs["barestep, fused, graph"] = lambda: run_barestep(options, case, ["--update", "fused", "--graph"], 60)
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
        outcome.update(compared_losses(losses, largest_difference(case)))
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


def name_of(case):
    block = "blocks of length {length}, ".format(**case) if case["block"] == "transformer" else ""
    return block + "{dim}x{depth} batch {batch} {precision}".format(**case)


def text_of(outcome):
    times = ", ".join(f"{name} {ms:.3f} ms" for name, ms in outcome["ms"].items())
    off = outcome.get("largest_loss_difference")
    text = f"  {name_of(outcome)}: {times}"
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
        if not case["largest_loss_difference"] <= largest_difference(case):
            wrong.append(f"losses of {name_of(case)} differ by {case['largest_loss_difference']:.1e}")
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
            report["left_out"].append(name_of(case))
            continue
        report["cases"].append(compare(options, workers, case))
        print(text_of(report["cases"][-1]), flush=True)
        write()
    for worker in workers.values():
        worker.close()
    report["failures"] = failures_of(report)
    write()
    if report["left_out"]:
        print(f"  left out for want of time: {'; '.join(report['left_out'])}")
    for failure in report["failures"]:
        print(f"  {failure}")
    sys.exit(1 if report["failures"] else 0)


if __name__ == "__main__":
    main()
