#!/usr/bin/env python3
"""PyTorch's side of side_by_side.py: a process that keeps PyTorch loaded and, for each line of JSON
on its standard input, trains or draws numbers and answers with a line of JSON.

{"do": "info"}
{"do": "randn", "seed", "sizes", "file"}: consecutive calls of torch.randn, written as raw float32
{"do": "train", "block", "dim", "depth", "length", "batch", "precision", "steps", "warmup"}: the loop of
practical.py, with seed 0 where the way is eager or fused; compiled and captured steps train on from call to call.
The precision is fp32, tf32, or bf16 or fp16, which autocast the forward pass and the loss; fp16 has a GradScaler
"""

import argparse
import copy
import json
import sys
import time

import torch
from torch import nn


# The ways that compile, and torch.compile's mode.
MODES = {"compile": None, "max-autotune": "max-autotune", "reduce-overhead": "reduce-overhead"}
VARIANTS = ["eager", "fused", *MODES, "graph"]
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def layers_of(order):
    """As in practical.py."""
    for _ in range(order["depth"]):
        if order["block"] == "transformer":
            yield nn.TransformerEncoderLayer(order["dim"], order["dim"] // 64 or 1, 4 * order["dim"], dropout=0,
                                             activation="gelu", batch_first=True, norm_first=True)
        else:
            yield nn.Linear(order["dim"], order["dim"])
            yield nn.ReLU()


class Worker:
    def __init__(self, variant, device):
        self.variant = variant
        self.device = torch.device(device)
        self.cuda = self.device.type == "cuda"
        self.first = (None, None, None)  # a shape, its model of seed 0 on the CPU, the generator's state after it
        self.kept = (None, None)  # the most recent case that took long to prepare, and its step

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()

    def info(self, _):
        name = torch.cuda.get_device_name() if self.cuda else "cpu"
        return {"torch": torch.__version__, "cuda": torch.version.cuda, "device": name}

    def randn(self, order):
        torch.manual_seed(order["seed"])
        with open(order["file"], "wb") as file:
            for size in order["sizes"]:
                file.write(torch.randn(size, device=self.device).cpu().numpy().tobytes())
        return {}

    def model(self, order):
        """The model of seed 0, with PyTorch's generators in the state after drawing its weights."""
        torch.manual_seed(0)
        shape = (order["block"], order["dim"], order["depth"])
        if self.first[0] != shape:
            self.first = (None, None, None)
            self.first = (shape, nn.Sequential(*layers_of(order)), torch.get_rng_state())
        torch.set_rng_state(self.first[2])
        return copy.deepcopy(self.first[1]).to(self.device)

    def step_of(self, model, precision):
        """A function of x and y that trains one step and returns the loss."""
        how = {"fused": {"fused": True}, "graph": {"fused": True, "capturable": True}}.get(self.variant, {})
        criterion = nn.MSELoss()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **how)
        scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        compiled = self.variant in MODES
        if compiled:
            torch._dynamo.reset()
            model = torch.compile(model, mode=MODES[self.variant])
            optimizer.step = torch.compile(optimizer.step)

        def step(x, y):
            if compiled:
                torch.compiler.cudagraph_mark_step_begin()
            optimizer.zero_grad()
            # The cache of casted weights has no use in a loop of one forward pass, and must not outlive a capture.
            with torch.autocast(self.device.type, HALVES.get(precision, torch.bfloat16),
                                enabled=precision in HALVES, cache_enabled=False):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        return self.captured(step) if self.variant == "graph" else step

    def captured(self, step):
        """The step as one CUDA graph; its first, eager steps do not appear in the losses."""
        still = {}

        def run(x, y):
            if not still:
                still["x"], still["y"] = x.clone(), y.clone()
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(3):
                        step(still["x"], still["y"])
                torch.cuda.current_stream().wait_stream(side)
                still["graph"] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(still["graph"]):
                    still["loss"] = step(still["x"], still["y"])
            still["graph"].replay()
            return still["loss"].clone()

        run.inputs = still
        return run

    def train(self, order):
        torch.backends.cuda.matmul.allow_tf32 = order["precision"] == "tf32"
        case = tuple(order[key] for key in ("block", "dim", "depth", "length", "batch", "precision"))
        if self.kept[0] == case:
            step = self.kept[1]
        else:
            self.kept = (None, None)
            step = self.step_of(self.model(order), order["precision"])
            if self.variant in MODES or self.variant == "graph":
                self.kept = (case, step)
        inputs = getattr(step, "inputs", {})
        rows = [order["length"]] if order["block"] == "transformer" else []
        shape = (order["batch"], *rows, order["dim"])
        times, losses = [], []
        for _ in range(order["steps"]):
            x = torch.randn(shape, device=self.device)
            y = torch.randn(shape, device=self.device)
            if inputs:
                inputs["x"].copy_(x)
                inputs["y"].copy_(y)
            self.synchronize()
            start = time.perf_counter()
            losses.append(step(x, y))
            self.synchronize()
            times.append(time.perf_counter() - start)
        return {"step_time_s": times[order["warmup"]:], "loss": [loss.item() for loss in losses]}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=VARIANTS, default="eager")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    worker = Worker(options.variant, options.device)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(worker, order["do"])(order)
        except Exception as error:  # whatever PyTorch raises: this variant cannot do that here
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print("answer " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
