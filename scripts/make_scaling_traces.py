#!/usr/bin/env python3
"""Writes traces of PyTorch's DDP on 1, 2 and 4 processes with gloo, for the tests of mlp_lab explain --scaling.

    python3 scripts/make_scaling_traces.py tests/data/scaling

The whole batch stays the same, and the second rank sleeps in each step. truth.json has the mean step of the
slowest rank as the program itself measured it. Needs PyTorch on a CPU; what is there was written with 2.15.
"""

import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import make_injected_traces as traces

RANKS, BATCH, WIDTH, PAUSE_S = (1, 2, 4), 512, 128, 0.08


def run_rank(rank, ranks, folder, port):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    traces.WIDTH, traces.ROWS = WIDTH, BATCH // ranks
    model = traces.mlp(3)
    if ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
        model = nn.parallel.DistributedDataParallel(model)
    marks = []

    def begin():
        marks.append(time.perf_counter())
        if rank == 1:
            with traces.record_function("tokenize"):
                time.sleep(PAUSE_S)
    traces.train(folder / f"rank{rank}.json.gz", model, traces.batches(), ahead=begin,
                 after=lambda: marks.append(time.perf_counter()))
    step_ms = 1e3 * (marks[-1] - marks[2 * traces.WARM_UP]) / traces.STEPS
    if ranks > 1:
        longest = torch.tensor(step_ms, dtype=torch.float64)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        step_ms = longest.item()
    if rank == 0:
        path = folder.parent / "truth.json"
        truth = json.loads(path.read_text()) if path.exists() else {}
        truth[str(ranks)] = {"step_ms": round(step_ms, 3)}
        path.write_text(json.dumps(truth, indent=1, sort_keys=True) + "\n")
        print(f"{ranks} ranks: {step_ms:.1f} ms a step")
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    for number in RANKS:
        of = target / str(number)
        of.mkdir(parents=True, exist_ok=True)
        mp.spawn(run_rank, args=(number, of, 29_600 + os.getpid() % 2000 + number), nprocs=number)
