#!/usr/bin/env python3
"""Writes tests/golden/operator_table_{cpu,cuda}.txt: tables by the installed PyTorch (1.13), from events
with invented times and flops. tests/profiler/operator_table_test.cpp has the same rows."""

import pathlib

from torch.autograd.profiler_util import EventList, FunctionEvent

# name, the host's and the device's microseconds per call, flops per call
OPS = [
    ("copy", [0.5, 0.75], [2.25, 2.5], 0),
    ("gemm", [1234.5, 1100.25, 999.75], [920.0, 2084.0, 1000.125], 134_217_728),
    ("adam", [2_345_678.0], [1_234_567.0], 25_190_400),
]


def table(on_cuda):
    events = []
    now = 0.0
    for name, host_us, device_us, flops in OPS:
        for host, device in zip(host_us, device_us):
            event = FunctionEvent(len(events), name, 1, now, now + host, flops=flops, is_legacy=True, stack=[])
            if on_cuda:
                event.append_kernel(name, 0, device)
            events.append(event)
            now += host + 10
    averages = EventList(events, use_cuda=on_cuda, with_flops=True)
    averages._build_tree()
    key = "cuda_time_total" if on_cuda else "cpu_time_total"
    return averages.key_averages().table(sort_by=key, row_limit=2)


golden = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
for kind in ("cpu", "cuda"):
    (golden / f"operator_table_{kind}.txt").write_text(table(kind == "cuda"))
