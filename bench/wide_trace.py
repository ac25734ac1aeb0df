"""Writes a trace as PyTorch's profiler does, of one step with many streams, threads of the host, or members of
an event's args; called by bench/growth.sh: wide_trace.py streams|threads|members N FILE."""

import json
import sys


def event(category, name, row, begin, duration, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": row[0], "tid": row[1], "ts": begin, "dur": duration,
            "args": args}


def streams(count):
    """Each stream runs one kernel, after one of stream 7; the host waits for all of them."""
    for i in range(count):
        for stream, at, duration in ((7, 30, 10), (8 + i, 41, 15)):
            yield event("cuda_runtime", "cudaLaunchKernel", (10, 10), 60 * i + at - 25, 5, correlation=60 * i + at)
            yield event("kernel", "k", (0, stream), 60 * i + at, duration, correlation=60 * i + at)
        yield event("cuda_runtime", "cudaStreamSynchronize", (10, 10), 60 * i + 27, 30, correlation=60 * i + 1)


def threads(count):
    """Each thread runs one op, after one of the first thread."""
    for i in range(count):
        yield event("cpu_op", "aten::mm", (10, 10), 40 * i, 5)
        yield event("cpu_op", "aten::addmm", (10, 11 + i), 40 * i + 7, 20)


def members(count):
    yield event("cpu_op", "aten::mm", (10, 10), 10, 5, **{f"member {i}": i for i in range(count)})


what, count, file = sys.argv[1:]
events = [event("user_annotation", "ProfilerStep#0", (10, 10), 0, 60 * int(count) + 100),
          *globals()[what](int(count))]
with open(file, "w") as out:
    json.dump({"schemaVersion": 1, "traceEvents": events}, out)
