"""Times whole runs of a program, files warm, in turn; called by bench/startup.sh."""

import glob
import os
import pathlib
import subprocess
import sys
import time

from rounds import summary

ROUNDS = 21


def ways_of(program, python):
    """What is started: name, command, environment."""
    ways = [("one step of the default model", [program, "--steps", "1", "--warmup", "0"], {}),
            ("--plan", [program, "--plan"], {}),
            ("--help", [program, "--help"], {}),
            ("--version", [program, "--version"], {})]
    for library in glob.glob("/usr/local/cuda/lib*/libcublasLt.so.??"):
        ways.append(("--version, with cuBLASLt loaded", [program, "--version"], {"LD_PRELOAD": library}))
    if python:
        ways.append(("PyTorch, import alone", [python, "-c", "import torch"], {}))
    return ways


def run_ms(command, environment):
    begin = time.perf_counter()
    subprocess.run(command, env={**os.environ, **environment}, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return 1e3 * (time.perf_counter() - begin)


def main():
    ways = ways_of(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
    times = {name: [] for name, _, _ in ways}
    for number in range(ROUNDS + 1):
        for name, command, environment in ways if number % 2 == 0 else reversed(ways):
            took = run_ms(command, environment)
            if number > 0:  # the first round warms the files
                times[name].append(took)
    print(f"# whole runs, from start to exit; {ROUNDS} rounds, the order turning; median and its 95 %")
    print("# interval; load of the minute before: "
          + pathlib.Path("/proc/loadavg").read_text().split()[0])
    print(f"{'what':<32} {'ms':>8} {'low':>8} {'high':>8}")
    for name, figures in times.items():
        all_rounds = summary(figures)
        print(f"{name:<32} {all_rounds['median']:>8.1f} {all_rounds['low']:>8.1f} "
              f"{all_rounds['high']:>8.1f}")


if __name__ == "__main__":
    main()
