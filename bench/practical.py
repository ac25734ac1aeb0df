#!/usr/bin/env python3
"""The training loop of the course's practicals (docs/sheets.md) under PyTorch: DEPTH x (Linear(DIM, DIM),
ReLU), or with --block transformer DEPTH x TransformerEncoderLayer; MSELoss, Adam, fresh random x and y
each step, which are made before the step's clock starts.

Prints one JSON object: the versions, time and loss of every step after the warm-up, and what these
steps lost to other programs.
"""

import argparse
import json
import time

import torch
from rounds import LostTime
from torch import nn


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--block", choices=["mlp", "transformer"], default="mlp")
    parser.add_argument("--length", type=int, default=128, help="rows of a sample of a transformer")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch's own choice")
    parser.add_argument("--adam", choices=["default", "foreach", "fused"], default="default")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32",
                        help="bf16 autocasts the forward pass and the loss")
    return parser.parse_args()


def layers_of(options):
    for _ in range(options.depth):
        if options.block == "transformer":
            yield nn.TransformerEncoderLayer(options.dim, options.dim // 64, 4 * options.dim, dropout=0,
                                             activation="gelu", batch_first=True, norm_first=True)
        else:
            yield nn.Linear(options.dim, options.dim)
            yield nn.ReLU()


def train(options):
    torch.manual_seed(0)
    model = nn.Sequential(*layers_of(options)).to(options.device)
    criterion = nn.MSELoss()
    how = {} if options.adam == "default" else {options.adam: True}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **how)
    cuda = torch.device(options.device).type == "cuda"
    rows = [options.length] if options.block == "transformer" else []
    shape = (options.batch_size, *rows, options.dim)
    times, losses = [], []
    lost = LostTime()
    lost.start()
    steady = time.perf_counter()
    for step in range(options.steps):
        if step == options.warmup:
            lost.start()
            steady = time.perf_counter()
        x = torch.randn(shape, device=options.device)
        y = torch.randn(shape, device=options.device)
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast(torch.device(options.device).type, torch.bfloat16,
                            enabled=options.precision == "bf16"):
            loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        if cuda:
            torch.cuda.synchronize()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    return times[options.warmup:], losses[options.warmup:], lost.record(time.perf_counter() - steady)


def main():
    options = parse()
    if options.threads > 0:
        torch.set_num_threads(options.threads)
    times, losses, lost = train(options)
    print(json.dumps({
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "build": torch.__config__.show(),
        "step_time_s": times,
        "loss": losses,
        "lost_time": lost,
    }))


if __name__ == "__main__":
    main()
