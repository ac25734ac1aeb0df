"""DistributedDataParallel in PyTorch over gloo, for the golden files of many ranks."""

import os
import pathlib
import random
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from golden_runs import Mlp, by_name


class DdpRun:
    """One run: every rank draws the numbers of all ranks and takes its rows, or draws its own from a stream
    seeded with seed + rank. Records each rank's loss per step, and the final parameters."""

    def __init__(self, world, layers, batch, steps, seed, per_rank_seed=False):
        self.world, self.layers, self.batch = world, layers, batch
        self.steps, self.seed, self.per_rank_seed = steps, seed, per_rank_seed

    def train(self, rank, folder):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank,
                                world_size=self.world)
        torch.manual_seed(self.seed + (rank if self.per_rank_seed else 0))
        model = Mlp(self.layers, last_relu=True)
        ranks = DistributedDataParallel(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        rows = self.batch // self.world
        losses = []
        for _ in range(self.steps):
            drawn = rows if self.per_rank_seed else self.batch
            x, y = torch.randn(drawn, self.layers[0]), torch.randn(drawn, self.layers[-1])
            if not self.per_rank_seed:
                x, y = x[rank * rows:(rank + 1) * rows], y[rank * rows:(rank + 1) * rows]
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(ranks(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        torch.save({"losses": losses, "parameters": by_name(model, model.parameters())},
                   f"{folder}/rank{rank}")
        dist.destroy_process_group()

    def __call__(self):
        with tempfile.TemporaryDirectory() as folder:
            mp.start_processes(self.train, args=(folder,), nprocs=self.world,
                               start_method="fork")
            results = [torch.load(pathlib.Path(folder) / f"rank{rank}")
                       for rank in range(self.world)]
        if any(result["parameters"] != results[0]["parameters"] for result in results):
            raise ValueError("the ranks end with different parameters")
        names = ["world", "layers", "batch", "steps", "seed", "per_rank_seed"]
        return {name: getattr(self, name) for name in names} | {
            "losses": [result["losses"] for result in results],
            "parameters": results[0]["parameters"]}


def bucket_lists():
    """Lists of sizes in bytes, limits, and the buckets that PyTorch makes of them."""
    draw = random.Random(0)
    cases = []
    for _ in range(60):
        sizes = [4 * draw.randint(1, 400) for _ in range(draw.randint(1, 16))]
        limits = [draw.randint(1, 1200), draw.randint(1, 4000)][:draw.randint(1, 2)]
        tensors = [torch.empty(size // 4) for size in sizes]
        buckets, _ = dist._compute_bucket_assignment_by_size(tensors, limits)
        cases.append({"sizes_bytes": sizes, "limits_bytes": limits, "buckets": buckets})
    return cases


def sampler_shares():
    """The indices that DistributedSampler gives each rank, over two epochs."""
    cases = []
    for samples, world in ((10, 1), (10, 2), (10, 3), (11, 4), (3, 4), (30, 4)):
        for epoch in (0, 1):
            shares = []
            for rank in range(world):
                sampler = DistributedSampler(range(samples), world, rank, shuffle=True, seed=5)
                sampler.set_epoch(epoch)
                shares.append(list(sampler))
            cases.append({"samples": samples, "world": world, "seed": 5, "epoch": epoch,
                          "shares": shares})
    return cases


def ddp_rules():
    return {"bucket_lists": bucket_lists(), "sampler_shares": sampler_shares()}
