"""The training loop of the course's practicals (docs/sheets.md) under PyTorch, for mlp_lab: DEPTH x
(Linear(DIM, DIM), ReLU), MSELoss, Adam, fresh random x and y each step, which are made before the step's
clock starts.

--trainer single is the script of one device, data-parallel that of nn.DataParallel, ddp that of
DistributedDataParallel, with a process for each rank that takes its rows of the global batch: gloo on
the CPU, NCCL on GPUs. --metrics gets a line of JSON for each step, as mlp_single's.
"""

import argparse
import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

ACTIVATIONS = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu-tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "leaky-relu": nn.LeakyReLU,
    "none": nn.Identity,
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", choices=["single", "data-parallel", "ddp"], default="single")
    parser.add_argument("--ranks", type=int, default=1, help="devices, or processes of ddp")
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--activation", choices=ACTIVATIONS, default="relu")
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="of each process; 0: PyTorch's choice")
    parser.add_argument("--metrics", required=True)
    return parser.parse_args()


def new_model(options, device):
    layers = []
    for _ in range(options.depth):
        layers += [nn.Linear(options.dim, options.dim), ACTIVATIONS[options.activation]()]
    model = nn.Sequential(*layers).to(device)
    if options.trainer == "data-parallel":
        return nn.DataParallel(model, device_ids=list(range(options.ranks)))
    if options.trainer == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    return model


def thread_times():
    """Seconds that each thread of this process ran and waited for a core, what the host of a virtual
    machine took, and what all programs ran."""
    threads = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/schedstat") as file:
                threads[thread] = [1e-9 * int(each) for each in file.read().split()[:2]]
        except OSError:
            pass  # it ended meanwhile
    with open("/proc/stat") as file:
        ticks = [int(each) / os.sysconf("SC_CLK_TCK") for each in file.readline().split()[1:9]]
    user, nice, system, _, _, irq, softirq, stolen = ticks
    return time.perf_counter(), threads, stolen, user + nice + system + irq + softirq, time.process_time()


def lost_time(begin, end):
    """The fields of LostTime (src/core/host.h)."""
    since = []
    for thread, (ran, waited) in end[1].items():
        before = begin[1].get(thread, (0.0, 0.0))
        since.append((ran - before[0], waited - before[1]))
    most = max((ran for ran, _ in since), default=0.0)
    busy = [(ran, waited) for ran, waited in since if ran > 0 and ran >= most / 2]
    ran, waited = max(busy, key=lambda each: each[1] / sum(each), default=(0.0, 0.0))
    return {"wall_s": end[0] - begin[0], "waited_s": waited, "ready_s": ran + waited,
            "own_ran_s": end[4] - begin[4], "all_ran_s": max(0.0, end[3] - begin[3]),
            "stolen_s": max(0.0, end[2] - begin[2]), "busy_threads": len(busy)}


def train(options, rank, device, write):
    torch.manual_seed(0)
    model = new_model(options, device)
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    is_ddp = options.trainer == "ddp"
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    begin = thread_times()
    for step in range(options.steps):
        if step <= 5:  # warm-up
            begin = thread_times()
        x = torch.randn((options.batch_size, options.dim), device=device)
        y = torch.randn((options.batch_size, options.dim), device=device)
        if is_ddp:
            x, y = (whole.chunk(options.ranks)[rank] for whole in (x, y))
        wait()
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        wait()
        queued = time.perf_counter() - start
        own_loss = loss.item()
        seconds = time.perf_counter() - start
        if is_ddp:
            all_losses = loss.detach().clone()
            dist.all_reduce(all_losses)
            own_loss = all_losses.item() / options.ranks
        write({"step": step, "rank": rank, "loss": own_loss, "step_time_s": seconds,
               "samples_per_s": options.batch_size / seconds, "queued_s": queued, "warmup": False,
               "phases_s": {}, "library": "PyTorch " + torch.__version__})
    lost = [lost_time(begin, thread_times())]
    if is_ddp:
        lost = [None] * options.ranks
        dist.all_gather_object(lost, lost_time(begin, thread_times()))
    for each, record in enumerate(lost):
        write({"lost_time": record, "rank": each})


def run_rank(rank, options, meeting):
    if options.threads > 0:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device, rank if options.device == "cuda" else None)
    if options.device == "cuda":
        torch.cuda.set_device(device)
    if options.trainer == "ddp":
        dist.init_process_group("nccl" if options.device == "cuda" else "gloo",
                                init_method="file://" + meeting, rank=rank, world_size=options.ranks)
    if rank > 0:
        train(options, rank, device, lambda record: None)
    else:
        with open(options.metrics, "w") as metrics:
            train(options, rank, device, lambda record: metrics.write(json.dumps(record) + "\n"))
    if options.trainer == "ddp":
        # gloo aborts a process whose peer leaves while its connections are open.
        dist.barrier()
        dist.destroy_process_group()


def main():
    options = parse()
    # gloo connects the processes of one machine through its loopback interface.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if options.trainer != "ddp":
        run_rank(0, options, "")
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_rank, (options, folder + "/meeting"), nprocs=options.ranks)


if __name__ == "__main__":
    main()
