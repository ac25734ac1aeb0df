"""Times commands whose work grows, and fits how it grows; called by bench/growth.sh.

A command's time, on the processor, and its memory are the least of two runs, or of ten if they are short. The exponent is fitted to what each
of three sizes takes more than the one before, so what every run takes does not count: 1 is linear, and n log n lies
little above it.
"""

import math
import os
import pathlib
import subprocess
import sys
import tempfile

REPETITIONS = 2
SHORT_REPETITIONS = 10
SHORT_S = 0.5
LINEAR = 1.25  # n log n has 1.13 there; the rest is what two runs differ by


def cost(command, folder):
    """Seconds of the processor and MiB of a command."""
    least = []
    while len(least) < (SHORT_REPETITIONS if least and least[0][0] < SHORT_S else REPETITIONS):
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            sys.exit(f"growth.sh: error: '{' '.join(command)}' failed")
        least.append((usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))
    return min(seconds for seconds, _ in least), min(mib for _, mib in least)


def exponent(sizes, costs):
    """Of three sizes, each the same multiple of the one before: by what differs, so that no constant share
    counts; 0 where hardly anything differs."""
    if costs[2] < 1.25 * costs[0]:
        return 0
    ratio = (costs[2] - costs[1]) / max(costs[1] - costs[0], 1e-3)
    return math.log(max(ratio, 1e-3)) / math.log(sizes[1] / sizes[0])


def series(build, folder):
    """What grows, in what, its sizes, the command of a size, and a command that prepares it."""
    single, lab = f"{build}/mlp_single", f"{build}/mlp_lab"
    wide = [sys.executable, str(pathlib.Path(__file__).with_name("wide_trace.py"))]
    small = ["--device", "cpu", "--threads", "1", "--dim", "16"]
    predict = [lab, "predict", "--machine", "h100-infiniband"]
    return [
        ("--plan: build, check, order, plan", "layers", (2500, 5000, 10_000),
         lambda n: [single, *small, "--update", "separate", "--depth", str(n), "--plan"], None),
        ("--plan of 4 stages", "micro-batches", (256, 512, 1024),
         lambda n: [f"{build}/mlp_dp", *small, "--depth", "4", "--pipeline", "4", "--micro-batches", str(n),
                    "--batch-size", "1024", "--plan"], None),
        ("predict", "layers", (2500, 5000, 10_000),
         lambda n: [*predict, "--ranks", "8", "--dim", "64", "--depth", str(n)], None),
        ("predict --scheme tensor", "ranks", (256, 512, 1024),
         lambda n: [*predict, "--ranks", str(n), "--depth", "4", "--scheme", "tensor", "--dim", "1024"], None),
        ("predict", "ranks", (256, 512, 1024),
         lambda n: [*predict, "--ranks", str(n), "--dim", "64", "--batch-size", "1024"], None),
        ("check-schedule, 4 stages", "micro-batches", (4096, 8192, 16_384),
         lambda n: [lab, "check-schedule", f"schedule{n}.json"],
         lambda n: ["sh", "-c", f"{lab} check-schedule --write 1f1b --stages 4 --micro-batches {n} > schedule{n}.json"]),
        ("explain", "traced steps", (500, 1000, 2000),
         lambda n: [lab, "explain", f"trace{n}.json"],
         lambda n: [single, *small, "--depth", "6", "--steps", str(n + 10), "--trace", f"trace{n}.json", "--profile",
                    "--profile-steps", f"6:{n + 6}"]),
        *(("explain of PyTorch", what, (least, 2 * least, 4 * least),
           lambda n, what=what: [lab, "explain", f"{what}{n}.json"],
           lambda n, what=what: [*wide, what, str(n), f"{what}{n}.json"])
          for what, least in (("streams", 8000), ("threads", 8000), ("members", 100_000))),
        ("report", "starts", (96, 192, 384),
         lambda n: [lab, "report", f"study{n}"],
         lambda n: [lab, "run", "warmup", "--device", "cpu", "--quick", "--starts", str(n), "--dim", "16", "--depth",
                    "1", "--output", f"study{n}"]),
    ]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    print(f"{'what':<34} {'in':<14} {'size':>6} {'time (s)':>9} {'MiB':>8}")
    steep = []
    with tempfile.TemporaryDirectory() as folder:
        for what, grows_in, sizes, command, prepare in series(build, folder):
            costs = []
            for size in sizes:
                if prepare:
                    subprocess.run(prepare(size), cwd=folder, check=True, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
                costs.append(cost(command(size), folder))
                print(f"{what:<34} {grows_in:<14} {size:>6} {costs[-1][0]:>9.3f} {costs[-1][1]:>8.1f}",
                      flush=True)
            fitted, of_memory = (exponent(sizes, each) for each in zip(*costs))
            print(f"{what:<34} {grows_in:<14} fitted: time ~ n^{fitted:.2f}, memory ~ n^{of_memory:.2f}", flush=True)
            if max(fitted, of_memory) > LINEAR:
                steep.append(f"{what}, in {grows_in}")
    print("steeper than n log n: " + ("; ".join(steep) if steep else "none"))


if __name__ == "__main__":
    main()
