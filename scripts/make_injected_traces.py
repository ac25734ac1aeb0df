#!/usr/bin/env python3
"""Writes traces of PyTorch whose steps are slow for a known cause, for the tests of mlp_lab explain.

    python3 scripts/make_injected_traces.py tests/data/injected [case...]

Each case names its cause and notes how long it took; truth.json holds both, by case and version of
PyTorch. Traces are cut to what an account reads. STEPS is how many steps are profiled (3). The steps of
`without_cause` are those of two ranks of the other cases:

    STEPS=12 python3 scripts/make_injected_traces.py tests/data/injected/pair rank_saves rank_between without_cause

Steps of two ranks with a large all-reduce, of which nothing is hidden:

    STEPS=12 python3 scripts/make_injected_traces.py tests/data/injected/transfers large_reduce

Those of a pipeline, and of its stages' work without messages:

    STEPS=4 python3 scripts/make_injected_traces.py tests/data/injected/bubble pipeline stages_alone

And steps that nothing marks:

    python3 scripts/make_injected_traces.py tests/data/injected/unmarked mid_step average

Needs PyTorch on a CPU; what is there was written with 2.15 and 2.13.
"""

import contextlib
import gc
import gzip
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.optim import swa_utils
from torch.profiler import ProfilerActivity, profile, record_function, schedule

WIDTH, ROWS, WARM_UP, PAUSE_S = 64, 16, 2, 0.02
STEPS = int(os.environ.get("STEPS", "3"))
VERSION = ".".join(torch.__version__.split("+")[0].split(".")[:2])
CASES, JOBS = {}, {}
spent_ms = [0.0]  # in the cause, in each step


def case(part, cause=None, of=CASES):
    def add(function):
        name = function.__name__
        of[name] = {"function": function, "part": part, "cause": name if cause is None else cause}
        return function
    return add


def job(cause, part="host"):
    return case(part, cause, JOBS)


@contextlib.contextmanager
def injected(annotation=None):
    """Notes the time within it."""
    with record_function(annotation) if annotation else contextlib.nullcontext():
        begin = time.perf_counter()
        yield
        spent_ms[-1] += 1e3 * (time.perf_counter() - begin)


def mlp(layers=2):
    return nn.Sequential(*(each for _ in range(layers) for each in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))


def batches():
    while True:
        yield torch.randn(ROWS, WIDTH), torch.randint(0, WIDTH, (ROWS,))


def train(path, model, data, *, before=None, within=None, ahead=None, after=None, optimizer=None, stacks=False,
          marks=True):
    """Profiles some steps: `ahead` of fetching data, `before` forward, `within` forward and backward, and `after`
    the update. Without marks of steps it profiles those that warm up, too."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.01)
    steps = iter(data)
    spent_ms[:] = [0.0]
    plain = path.with_suffix("")
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=stacks,
                 on_trace_ready=lambda it: it.export_chrome_trace(str(plain)),
                 schedule=schedule(wait=0, warmup=WARM_UP, active=STEPS, repeat=1) if marks else None) as profiler:
        for step in range(WARM_UP + STEPS):
            if ahead:
                ahead()
            x, y = next(steps)
            optimizer.zero_grad()
            if before:
                before()
            out = model(x)
            if within:
                within()
            F.cross_entropy(out, y).backward()
            optimizer.step()
            if after:
                after()
            if step + 1 < WARM_UP + STEPS:
                spent_ms.append(0.0)
            profiler.step()
    cut(plain, path)
    return sum(spent_ms[WARM_UP:]) / STEPS


def cut(plain, path):
    """Keeps what an account reads; of Python's functions, those of 100 us or more."""
    trace = json.loads(plain.read_text(errors="replace"))
    kept = []
    for event in trace["traceEvents"]:
        category = event.get("cat")
        if category not in ("cpu_op", "user_annotation", "python_function"):
            continue
        if category == "python_function" and event.get("dur", 0) < 100:
            continue
        args = event.get("args", {})
        wanted = ["Sequence number", "Fwd thread id"]
        if event["name"].startswith(("gloo:", "aten::linear", "aten::addmm")):
            wanted += ["Input Dims", "Input type"]
        event["args"] = {key: args[key] for key in wanted if key in args}
        kept.append(event)
    base = min(event["ts"] for event in kept) // 1e10 * 1e10  # the same for all ranks
    for event in kept:
        event["ts"] = round(event["ts"] - base, 3)
    rest = {key: trace[key] for key in ("distributedInfo", "baseTimeNanoseconds") if key in trace}
    with gzip.GzipFile(path, "wb", mtime=0) as packed:
        packed.write(json.dumps({**rest, "traceEvents": kept}, separators=(",", ":")).encode())
    plain.unlink()


# Annotations.


@case("host")
def save_checkpoint(path):
    def save():
        with injected("save_checkpoint"):
            time.sleep(PAUSE_S)
    return train(path, mlp(), batches(), before=save)


@case("host")
def log_metrics(path):
    def log():
        with injected("log_metrics"):
            sum(i * i for i in range(300_000))
    return train(path, mlp(), batches(), after=log)


@case("host")
def write_log(path):  # in another annotation
    def step():
        with record_function("callbacks"):
            time.sleep(0.002)
            with injected("write_log"):
                time.sleep(PAUSE_S)
    return train(path, mlp(), batches(), after=step)


@case("host")
def collect_garbage(path):
    ballast = [[i] for i in range(300_000)]

    def collect():
        with injected("collect_garbage"):
            gc.collect()
    spent = train(path, mlp(), batches(), before=collect)
    return spent if ballast else 0


@case("host")
def copy_files(path):
    def copy():
        with injected("copy_files"):
            subprocess.run(["sleep", str(PAUSE_S)], check=True)
    return train(path, mlp(), batches(), after=copy)


@case("host")
def draw_batch(path):
    def draw():
        with injected("draw_batch"):
            time.sleep(PAUSE_S)
    return train(path, mlp(), batches(), ahead=draw)


@case("host")
def probe(path):  # in the forward pass
    model = mlp()

    def hook(*_):
        with injected("probe"):
            time.sleep(PAUSE_S)
    model[1].register_forward_hook(hook)
    return train(path, model, batches())


@case("host")
def inspect_gradients(path):  # in the backward pass
    model = mlp()

    def hook(*_):
        with injected("inspect_gradients"):
            time.sleep(PAUSE_S)
    model[2].weight.register_hook(hook)
    return train(path, model, batches())


# Functions of Python.


@case("host")
def augment(path):
    def augment():
        with injected():
            sum(i * i for i in range(300_000))
    return train(path, mlp(), batches(), before=augment, stacks=True)


@case("host")
def preprocess(path):
    def preprocess():
        with injected():
            time.sleep(PAUSE_S)
    return train(path, mlp(), batches(), before=preprocess, stacks=True)


@case("host")
def read_rows(path):  # a generator
    def read_rows():
        for batch in batches():
            with injected():
                time.sleep(PAUSE_S)
            yield batch
    return train(path, mlp(), read_rows(), stacks=True)


@case("host")
def write_report(path):
    def write_report():
        with injected():
            json.dumps([{"step": i, "loss": i / 7} for i in range(8_000)])
    return train(path, mlp(), batches(), after=write_report, stacks=True)


@case("host")
def wait_for_writer(path):  # another thread
    def wait_for_writer():
        with injected():
            done = threading.Event()
            threading.Timer(PAUSE_S, done.set).start()
            done.wait()
    return train(path, mlp(), batches(), after=wait_for_writer, stacks=True)


@case("host")
def check_gradients(path):  # in the backward pass
    model = mlp()

    def check_gradients(*_):
        with injected():
            time.sleep(PAUSE_S)
    model[2].weight.register_hook(check_gradients)
    return train(path, model, batches(), stacks=True)


@case("host")
def set_rate(path):  # a schedule of learning rates
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def set_rate(step):
        with injected():
            time.sleep(PAUSE_S)
        return 1 / (step + 1)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, set_rate)
    return train(path, model, batches(), optimizer=optimizer, after=rates.step, stacks=True)


@case("host", "slow_scale")
def custom_function(path):  # the forward pass of a function of one's own
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            slow_scale()
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def slow_scale():
        with injected():
            time.sleep(PAUSE_S)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp()

        def forward(self, x):
            return Scale.apply(self.body(x))
    return train(path, Model(), batches(), stacks=True)


# What PyTorch names.


@case("host", "Optimizer.step#")
def slow_optimizer(path):
    class SlowSGD(torch.optim.SGD):
        def step(self, closure=None):
            with injected():
                time.sleep(PAUSE_S)
            return super().step(closure)
    model = mlp()
    return train(path, model, batches(), optimizer=SlowSGD(model.parameters(), 0.01))


@case("host", "torch.compile")
def recompile(path):  # for a new shape in every step
    def shapes():
        for rows in range(20, 100, 7):
            yield torch.randn(rows, WIDTH), torch.randint(0, WIDTH, (rows,))
    model = mlp()
    compiled = torch.compile(model, dynamic=False, backend="aot_eager")

    class Timed(nn.Module):
        """The time of its first call with a shape, less that of the second one."""
        def __init__(self):
            super().__init__()
            self.body = compiled

        def forward(self, x):
            begin = time.perf_counter()
            out = self.body(x)
            first = time.perf_counter()
            with torch.no_grad():
                model(x)
            spent_ms[-1] += 1e3 * (2 * first - begin - time.perf_counter())
            return out
    return train(path, Timed(), shapes())


class Rows(torch.utils.data.Dataset):
    def __init__(self, pause_s):
        self.pause_s = pause_s

    def __len__(self):
        return 10_000

    def __getitem__(self, i):
        if self.pause_s:
            time.sleep(self.pause_s)
        return torch.randn(WIDTH), i % WIDTH


def timed(loader):
    """Notes how long each batch was waited for."""
    steps = iter(loader)
    while True:
        with injected():
            batch = next(steps)
        yield batch


@case("data wait", "enumerate(DataLoader)")
def loader(path):
    return train(path, mlp(), timed(torch.utils.data.DataLoader(Rows(0.0015), batch_size=ROWS)))


@case("data wait", "enumerate(DataLoader)")
def loader_of_workers(path):
    return train(path, mlp(), timed(torch.utils.data.DataLoader(Rows(0.005), batch_size=ROWS, num_workers=2)))


@case("data wait", "__getitem__")
def loader_with_stacks(path):
    return train(path, mlp(), timed(torch.utils.data.DataLoader(Rows(0.0015), batch_size=ROWS)), stacks=True)


@case("data wait")
def pad_rows(path):  # what makes a batch of samples
    def pad_rows(samples):
        with injected():
            time.sleep(PAUSE_S)
        return torch.utils.data.default_collate(samples)
    loader = torch.utils.data.DataLoader(Rows(0), batch_size=ROWS, collate_fn=pad_rows)
    return train(path, mlp(), loader, stacks=True)


@case("host", "before the forward pass")
def nothing_names_it(path):
    def pause():
        with injected():
            time.sleep(PAUSE_S)
    return train(path, mlp(), batches(), before=pause)


# Steps that nothing marks.


@case("", "")
def mid_step(path):  # the profile begins between the forward and the backward pass
    model, plain = mlp(), path.with_suffix("")
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
    for step, (x, y) in zip(range(1 + STEPS), batches()):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if step == 0:
            profiler.start()
        loss.backward()
        optimizer.step()
    profiler.stop()
    profiler.export_chrome_trace(str(plain))
    cut(plain, path)
    return 0


@case("optimizer", "")
def average(path):  # of the parameters, by PyTorch and by hand
    model = mlp()
    averaged = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    own = [each.detach().clone() for each in model.parameters()]

    def update():
        with injected(), torch.no_grad():
            for mean, each in zip(own, model.parameters()):
                mean.mul_(0.9).add_(each, alpha=0.1)
        averaged.update_parameters(model)
    return train(path, model, batches(), after=update, marks=False)


# Two ranks, of which the second is late.


def late(rank, annotation=None):
    def pause():
        if rank == 1:
            with injected(annotation):
                time.sleep(PAUSE_S)
    return pause


def replicated(model):
    return nn.parallel.DistributedDataParallel(model)


@job("save_checkpoint")
def rank_saves(path, rank):
    return train(path, replicated(mlp()), batches(), before=late(rank, "save_checkpoint"))


@job("")
def without_cause(path, rank):
    return train(path, replicated(mlp()), batches())


@job("evaluate")
def rank_evaluates(path, rank):
    return train(path, replicated(mlp()), batches(), after=late(rank, "evaluate"))


@job("shuffle_rows")
def rank_between(path, rank):  # between forward and backward
    return train(path, replicated(mlp()), batches(), within=late(rank, "shuffle_rows"))


@job("tokenize")
def rank_tokenizes(path, rank):
    def tokenize():
        if rank == 1:
            with injected():
                time.sleep(PAUSE_S)
    return train(path, replicated(mlp()), batches(), before=tokenize, stacks=True)


@job("enumerate(DataLoader)", part="data wait")
def rank_loads(path, rank):
    loader = torch.utils.data.DataLoader(Rows(0.0015 if rank == 1 else 0), batch_size=ROWS)
    return train(path, replicated(mlp()), timed(loader))


@job("clip_by_hand")
def rank_in_backward(path, rank):
    model = mlp()

    def hook(*_):
        if rank == 1:
            with injected("clip_by_hand"):
                time.sleep(PAUSE_S)
    model[2].register_full_backward_hook(hook)
    return train(path, replicated(model), batches())


class Stage(nn.Module):
    """Trains its part of a pipeline of two when it is called."""
    def __init__(self, body, rank):
        from torch.distributed import pipelining
        super().__init__()
        self.body, self.rank = body, rank
        stage = pipelining.PipelineStage(self.body, rank, 2, torch.device("cpu"))
        self.schedule = pipelining.ScheduleGPipe(stage, n_microbatches=4, loss_fn=F.cross_entropy)

    def forward(self, x):
        if self.rank == 0:
            self.schedule.step(x)
        else:
            self.schedule.step(target=torch.zeros(ROWS, dtype=torch.long), losses=[])
        return torch.zeros(ROWS, WIDTH, requires_grad=True)


@job("mask_tokens")
def slow_stage(path, rank):
    return train(path, Stage(mlp(), rank), batches(), before=late(rank, "mask_tokens"))


class Heavy(nn.Module):
    """A stage whose messages take little of its time."""
    def __init__(self):
        super().__init__()
        self.body, self.weight = mlp(), nn.Parameter(torch.randn(750, 750) / 750)

    def forward(self, x):
        return self.body(x) + (self.weight @ self.weight).mean()


@job("", part="other stages")
def pipeline(path, rank):
    return train(path, Stage(Heavy(), rank), batches())


@job("", part="other stages")
def stages_alone(path, rank):
    class Alone(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Heavy()

        def forward(self, x):
            outs = [self.body(each) for each in x.chunk(4)]
            for out in outs:
                out.sum().backward()
            return torch.zeros(ROWS, WIDTH, requires_grad=True)
    return train(path, Alone(), batches())


@job("pad_batch")
def sharded(path, rank):
    from torch.distributed.fsdp import fully_shard
    mesh = dist.init_device_mesh("cpu", (2,))
    model = mlp()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return train(path, model, batches(), before=late(rank, "pad_batch"))


@job("read_index")
def tensor_parallel(path, rank):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = dist.init_device_mesh("cpu", (2,))
    model = mlp(4)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel(),
                                     "4": ColwiseParallel(), "6": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), 0.01, foreach=False)
    return train(path, model, batches(), before=late(rank, "read_index"), optimizer=optimizer)


@job("", part="exposed communication")
def large_reduce(path, rank):  # noted is how long it takes from the later rank's entry
    numbers, entered, left = torch.ones(4 << 20), [], []

    def reduce():
        entered.append(time.perf_counter())
        dist.all_reduce(numbers)
        left.append(time.perf_counter())
    train(path, replicated(mlp()), batches(), after=reduce)
    times = [None, None]
    dist.all_gather_object(times, list(zip(entered, left))[WARM_UP:])
    moved = [(a[1] + b[1]) / 2 - max(a[0], b[0]) for a, b in zip(*times)]
    return 1e3 * sum(moved) / len(moved)


def run_rank(rank, folder, names, port):
    torch.set_num_threads(1)
    for i, name in enumerate(names):
        torch.manual_seed(0)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port + i), GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", rank=rank, world_size=2)
        path = folder / f"{name}-{VERSION}.rank{rank}.json.gz"
        try:
            spent = JOBS[name]["function"](path, rank)
            if rank == 1:
                note(folder, name, JOBS[name], [f"{name}-{VERSION}.rank{each}.json.gz" for each in range(2)], spent)
        except (ImportError, AttributeError, RuntimeError, TypeError) as error:
            print(f"{name}: {error}")
        dist.barrier()
        dist.destroy_process_group()


def note(folder, name, about, traces, spent):
    path = folder / "truth.json"
    truth = json.loads(path.read_text()) if path.exists() else {}
    truth[f"{name}-{VERSION}"] = {"traces": traces, "part": about["part"], "cause": about["cause"],
                                  "ms": round(spent, 3)}
    path.write_text(json.dumps(truth, indent=1, sort_keys=True) + "\n")
    print(f"{name}: {spent:.1f} ms a step")


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    chosen = sys.argv[2:] or [name for name, each in {**CASES, **JOBS}.items() if each["cause"]]
    torch.set_num_threads(1)
    for chosen_case in chosen:
        if chosen_case in CASES:
            torch.manual_seed(0)
            file = target / f"{chosen_case}-{VERSION}.json.gz"
            note(target, chosen_case, CASES[chosen_case], [file.name], CASES[chosen_case]["function"](file))
    jobs = [name for name in chosen if name in JOBS]
    if jobs:
        mp.spawn(run_rank, args=(target, jobs, 29_600 + os.getpid() % 2000), nprocs=2)
