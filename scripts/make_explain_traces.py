#!/usr/bin/env python3
"""Writes the traces of PyTorch in tests/data/traces, for the tests of mlp_lab explain.

    python3 scripts/make_explain_traces.py tests/data/traces

Needs PyTorch; written with 2.15 on a CPU. One process, and two ranks with DDP over gloo, of which
rank 1 sleeps for 20 ms in every step.
"""

import gzip
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

DIM, DEPTH, BATCH, STEPS = 256, 3, 64, 3


def train(path, ranks, sleep_s):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(layer for _ in range(DEPTH) for layer in (nn.Linear(DIM, DIM), nn.ReLU())))
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def save(profiler):
        plain = path.with_suffix("")
        profiler.export_chrome_trace(str(plain))
        with gzip.GzipFile(path, "wb", mtime=0) as packed:
            packed.write(plain.read_bytes())
        plain.unlink()

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, on_trace_ready=save,
                 schedule=schedule(wait=0, warmup=2, active=STEPS)) as profiler:
        for _ in range(2 + STEPS):
            x, y = torch.randn(BATCH, DIM), torch.randn(BATCH, DIM)
            optimizer.zero_grad()
            time.sleep(sleep_s)
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            loss.item()
            profiler.step()


def rank_of_two(rank, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    train(folder / f"pytorch_ddp.rank{rank}.json.gz", 2, 0.02 if rank == 1 else 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    target.mkdir(exist_ok=True)
    train(target / "pytorch_cpu.json.gz", 1, 0)
    mp.spawn(rank_of_two, args=(target,), nprocs=2)
