#!/usr/bin/env python3
"""Times an epoch of training from files under PyTorch's DataLoader and with mlp_single, in turn; called by
bench/loading.sh.

The model is 784-512-512-10 with ReLU, cross-entropy and Adam, batch 64, shuffled. All steps of an epoch
count, including the wait for their batches, but no evaluation. PyTorch runs with every way of loading that
may help; its best is compared. The first epoch is warm-up, but counts in the time to 95 % test accuracy.
A run that lost too much time to other programs is repeated; if the machine stays too noisy, the verdict is
INVALID, with its cause. The last line is the share of mlp_single's step time that its arithmetic and memory
accesses take at the machine's measured peaks: loading cannot make the step faster than that.

  loading.py MLP_SINGLE PYTHON         the table
  loading.py --torch WAY X Y EPOCHS    one run of PyTorch; prints a JSON object
"""

import gzip
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

from rounds import least_lost, lost_share, LostTime, summary, why_invalid

ROOT = pathlib.Path(__file__).resolve().parent.parent
MNIST = [ROOT / "tests/data/mnist" / name for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")]
WAYS = ("0 workers", "1 worker", "2 workers", "whole batches")
ROUNDS = 8
THREADS = len(os.sched_getaffinity(0))


def read_numbers(x, y):
    import numpy
    if x.endswith(".npy"):
        return numpy.load(x), numpy.load(y)
    pixels = numpy.frombuffer(gzip.open(x).read(), numpy.uint8, offset=16).reshape(-1, 784)
    return pixels.astype(numpy.float32) / 255, numpy.frombuffer(gzip.open(y).read(), numpy.uint8, offset=8)


def loader_of(way, x, y):
    """A DataLoader over single samples, or over whole batches drawn by a BatchSampler."""
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
    data = TensorDataset(x, y)
    if way == "whole batches":
        return DataLoader(data, sampler=BatchSampler(RandomSampler(data), 64, False), batch_size=None)
    workers = int(way.split()[0])
    return DataLoader(data, batch_size=64, shuffle=True, num_workers=workers,
                      persistent_workers=workers > 0)


def run_torch(way, x_file, y_file, epochs):
    import torch
    from torch import nn
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    x, y = (torch.from_numpy(array.copy()) for array in read_numbers(x_file, y_file))
    y = y.long()
    train = len(x) * 4 // 5
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    loader = loader_of(way, x[:train], y[:train])
    epoch_s, to_95_s, lost = [], None, LostTime()
    lost.start()
    begin = time.perf_counter()
    for _ in range(epochs):
        start = time.perf_counter()
        for batch, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), labels)
            loss.backward()
            optimizer.step()
            loss.item()
        epoch_s.append(time.perf_counter() - start)
        with torch.no_grad():
            accuracy = (model(x[train:]).argmax(1) == y[train:]).float().mean().item()
        if accuracy >= 0.95 and to_95_s is None:
            to_95_s = sum(epoch_s)
    return {"epoch_s": statistics.median(epoch_s[1:]), "to_95_s": to_95_s, "torch": torch.__version__,
            "lost": lost_share(lost.record(time.perf_counter() - begin))}


def run_barestep(program, x, y, epochs):
    source = "npy" if x.endswith(".npy") else "idx"
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        text = subprocess.run(
            [program, "--device", "cpu", "--data", f"{source}:{x},{y}", "--layers", "784,512,512,10",
             "--no-last-relu", "--loss", "cross-entropy", "--epochs", str(epochs), "--test-split", "0.2",
             "--log-every", "1000", "--threads", str(THREADS), "--metrics", str(metrics)],
            check=True, stdout=subprocess.PIPE, text=True).stdout
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps_s = [record["step_time_s"] for record in records if "step_time_s" in record]
    lost = next(record["lost_time"] for record in records if "lost_time" in record)
    accuracies = [float(percent) for percent in re.findall(r"^Epoch .*Test accuracy: ([0-9.]+)%", text, re.M)]
    length = len(steps_s) // epochs
    epoch_s = [sum(steps_s[i * length:(i + 1) * length]) for i in range(epochs)]
    reached = next((i for i, percent in enumerate(accuracies) if percent >= 95), None)
    return {"epoch_s": statistics.median(epoch_s[1:]),
            "to_95_s": None if reached is None else sum(epoch_s[:reached + 1]),
            "lost": lost_share(lost)}


def floor_of(program):
    """What mlp_single's summary says of the floor, once a profile has measured the machine's peaks."""
    arguments = [program, "--device", "cpu", "--data", f"idx:{MNIST[0]},{MNIST[1]}", "--layers",
                 "784,512,512,10", "--no-last-relu", "--loss", "cross-entropy", "--epochs", "5",
                 "--threads", str(THREADS), "--log-every", "1000"]
    subprocess.run([*arguments, "--profile"], check=True, stdout=subprocess.DEVNULL)
    text = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout
    return next(line.split(None, 1)[1] for line in text.splitlines() if line.startswith("  Floor "))


def ask_torch(python, way, x, y, epochs):
    text = subprocess.run([python, __file__, "--torch", way, x, y, str(epochs)], check=True, text=True,
                          stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": str(THREADS)}).stdout
    return json.loads(text.splitlines()[-1])


def compare(name, program, python, x, y, epochs):
    runs = {way: lambda way=way: ask_torch(python, way, x, y, epochs) for way in WAYS}
    first = {way: run() for way, run in runs.items()}
    best = min(first, key=lambda way: first[way]["epoch_s"])
    for way, result in first.items():
        print(f"{name:>24}  PyTorch {result['torch']}, {way:<14} {1e3 * result['epoch_s']:>9.1f} ms an epoch")
    pairs = []
    for number in range(ROUNDS):
        both = [("torch", runs[best]), ("barestep", lambda: run_barestep(program, x, y, epochs))]
        pairs.append({who: least_lost(run) for who, run in (both if number % 2 == 0 else reversed(both))})
    for what in ("epoch_s", "to_95_s"):
        if any(pair[who][what] is None for pair in pairs for who in pair):
            continue
        ratio = summary([pair["torch"][what] / pair["barestep"][what] for pair in pairs])
        times = {who: 1e3 * statistics.median(pair[who][what] for pair in pairs) for who in pairs[0]}
        label = "an epoch" if what == "epoch_s" else "to 95 %"
        invalid = why_invalid([[pair[who]["lost"] for who in pair] for pair in pairs], {"the ratio": ratio})
        verdict = f"INVALID: {invalid}; " if invalid else ""
        print(f"{name:>24}  {label:<9} {verdict}PyTorch ({best}) {times['torch']:.1f} ms, mlp_single "
              f"{times['barestep']:.1f} ms, ratio {ratio['median']:.2f} ({ratio['low']:.2f} to "
              f"{ratio['high']:.2f}, {ROUNDS} rounds)", flush=True)


def generate(folder):
    """60,000 samples in MNIST's shape that no model can learn."""
    subprocess.run([sys.argv[2], "-c", "import numpy, sys\n"
                    "random = numpy.random.default_rng(0)\n"
                    "numpy.save(sys.argv[1] + '/x.npy', random.random((60000, 784), numpy.float32))\n"
                    "numpy.save(sys.argv[1] + '/y.npy', random.integers(0, 10, 60000, numpy.uint8))\n",
                    folder], check=True)
    return folder + "/x.npy", folder + "/y.npy"


def main():
    load = pathlib.Path("/proc/loadavg").read_text().split()[0]
    print(f"# {THREADS} threads; the machine's load over the minute before: {load}")
    program, python = sys.argv[1:3]
    compare("t10k, 8,000 samples", program, python, *(str(file) for file in MNIST), 6)
    with tempfile.TemporaryDirectory() as folder:
        compare("generated, 48,000", program, python, *generate(folder), 3)
    print(f"{'a step of mlp_single':>24}  floor     {floor_of(program)}")


if __name__ == "__main__":
    if sys.argv[1] == "--torch":
        print(json.dumps(run_torch(*sys.argv[2:5], int(sys.argv[5]))))
    else:
        main()
