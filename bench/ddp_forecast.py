"""Predicts DDP on 2 and 4 processes from a trace of one, by mlp_lab explain --ranks with a card of gloo's all-reduces,
and measures it: PyTorch on the CPU, a thread a process. Called by bench/ddp_forecast.sh.

    python3 bench/ddp_forecast.py BUILD
"""

import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

MODELS = ((256, 4, 64), (512, 6, 64), (1024, 4, 64), (1024, 4, 256))  # width, layers, rows of a rank
RANKS = (2, 4)
WARM_UP, STEPS, REPETITIONS = 5, 20, 3
SIZES = [1 << power for power in range(12, 26, 2)] + [28 << 20]


def start(rank, ranks, port):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    if ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", rank=rank, world_size=ranks)


def stop(ranks):
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


def spawn(function, ranks, *args):
    """The answer of the first process."""
    with tempfile.TemporaryDirectory() as folder:
        answer = pathlib.Path(folder) / "answer.json"
        mp.spawn(function, args=(ranks, 29_600 + random.randrange(5000), answer, *args), nprocs=ranks)
        return json.loads(answer.read_text())


def time_all_reduces(rank, ranks, port, answer):
    start(rank, ranks, port)
    points = []
    for size in SIZES:
        numbers, times = torch.zeros(size // 4), []
        for _ in range(13):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(numbers)
            times.append(time.perf_counter() - begin)
        points.append([size, statistics.median(times[3:])])
    if rank == 0:
        answer.write_text(json.dumps(points))
    stop(ranks)


def times_of(ranks, model, trace=None):
    """The times of steps, profiled if there is a file for the trace."""
    width, depth, rows = model
    net = nn.Sequential(*(each for _ in range(depth) for each in (nn.Linear(width, width), nn.ReLU())))
    if ranks > 1:
        net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    x, y, times = torch.randn(rows, width), torch.randn(rows, width), []
    with contextlib.ExitStack() as stack:
        profiler = trace and stack.enter_context(profile(
            activities=[ProfilerActivity.CPU], record_shapes=True,
            on_trace_ready=lambda it: it.export_chrome_trace(trace),
            schedule=schedule(wait=0, warmup=WARM_UP, active=STEPS, repeat=1)))
        for _ in range(WARM_UP + STEPS):
            begin = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
            if profiler:
                profiler.step()
            times.append(time.perf_counter() - begin)
    return statistics.median(times[WARM_UP:])


def train(rank, ranks, port, answer, folder):
    """The median step of each model; one process leaves a trace of each, too."""
    start(rank, ranks, port)
    medians = []
    for number, model in enumerate(MODELS):
        medians.append(times_of(ranks, model))
        if ranks == 1:
            times_of(1, model, f"{folder}/{number}.json")
    if rank == 0:
        answer.write_text(json.dumps(medians))
    stop(ranks)


def card_of(cores):
    """Rates that only copies to buckets need, and gloo's all-reduces."""
    torch.set_num_threads(1)
    numbers, copy = torch.ones(8 << 20), torch.ones(8 << 20)  # a clone would be written to new pages
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        copy.copy_(numbers)
        times.append(time.perf_counter() - begin)

    def figure(value):
        return {"value": value, "source": "measured here"}
    tables = [{"ranks": ranks, "source": "measured here", "points": spawn(time_all_reduces, ranks)} for ranks in RANKS]
    return {"name": f"gloo on {cores} cores", "kind": "cpu",
            "device": {"flops_per_s": figure(1e11), "launch_s": figure(5e-6), "host_s": figure(0),
                       "memory_bytes_per_s": figure(2 * 4 * numbers.numel() / statistics.median(times))},
            "node": {"devices": cores, "latency_s": figure(0), "hop_s": figure(0), "all_reduce": tables}}


def predicted(mlp_lab, trace, ranks, card):
    out = trace.parent / "out"
    subprocess.run([mlp_lab, "explain", trace, "--ranks", str(ranks), "--machine", card, "--output", out], check=True,
                   stdout=subprocess.DEVNULL)
    return json.loads((out / "results.json").read_text())["figures"]["step"]


def main():
    mlp_lab = pathlib.Path(sys.argv[1]) / "mlp_lab"
    cores = len(os.sched_getaffinity(0))
    print(f"# PyTorch {torch.__version__}, gloo, a thread a process, {cores} cores, load {os.getloadavg()[0]:.1f} at the "
          f"begin; medians of {REPETITIONS} runs of {STEPS} steps after {WARM_UP}, each beside a trace of one process")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        card = folder / "gloo.json"
        card.write_text(json.dumps(card_of(cores)))
        print(f"{'model':>16} {'ranks':>5} {'one (ms)':>9} {'traced':>9} {'predicted (ms)':>18} {'measured (ms)':>13} "
              f"{'off':>6}  in the interval")
        rounds = []
        for _ in range(REPETITIONS):
            took = {ranks: spawn(train, ranks, str(folder)) for ranks in (1, *RANKS)}
            rounds.append([{ranks: (predicted(mlp_lab, folder / f"{number}.json", ranks, card),
                                    took[1][number], took[ranks][number]) for ranks in RANKS}
                           for number in range(len(MODELS))])
        for number, (width, depth, rows) in enumerate(MODELS):
            for ranks in RANKS:
                each = [of[number][ranks] for of in rounds]
                traced, low, high = (1e3 * statistics.median(one[0][name] for one in each)
                                     for name in ("alone_s", "low_s", "high_s"))
                alone, took = (1e3 * statistics.median(one[place] for one in each) for place in (1, 2))
                off = 100 * ((low * high) ** 0.5 / took - 1)
                note = "" if ranks <= cores else "  more ranks than cores"
                print(f"{f'{width} x {depth}, {rows}':>16} {ranks:>5} {alone:>9.2f} {traced:>9.2f} "
                      f"{low:>8.2f} to {high:>6.2f} {took:>13.2f} {off:>+5.0f}%  "
                      f"{'yes' if low <= took <= high else 'no'}{note}")


if __name__ == "__main__":
    main()
