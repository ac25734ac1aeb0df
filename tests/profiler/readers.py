#!/usr/bin/env python3
"""readers.py hta|hta-all|tensorboard|perfetto TRACE...: prints a reader's view of a trace as a line of JSON.

HolisticTraceAnalysis takes the traces of several ranks. As hta it leaves out the last step, as its users see it.

Exits with 77 if the reader is not installed."""

import functools
import json
import os
import shutil
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
# Otherwise it rounds times inward to microseconds, which makes the length of short ops negative.
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"


def hta(*paths, last_step=False):
    from hta.trace_analysis import TraceAnalysis
    from hta.utils.utils import get_kernel_type, merge_kernel_intervals

    with tempfile.TemporaryDirectory() as folder:
        for rank, path in enumerate(paths):
            shutil.copy(path, os.path.join(folder, f"rank{rank}.json"))
        analysis = TraceAnalysis(trace_dir=folder, include_last_profiler_step=last_step)
        times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
        overlaps = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
        ranks = []
        for rank in sorted(analysis.t.get_ranks()):
            works = analysis.t.get_trace(rank)
            works = works[works["stream"].ne(-1)]
            names = works["name"].map(analysis.t.symbol_table.get_sym_table().__getitem__)
            messages = merge_kernel_intervals(works[names.map(get_kernel_type).eq("COMMUNICATION")].copy())
            row = times.loc[rank]
            overlap = overlaps.loc[rank]["comp_comm_overlap_pctg"]
            ranks.append({
                "span": float(row["kernel_time(us)"]),
                "compute": float(row["compute_time(us)"]),
                "non_compute": float(row["non_compute_time(us)"]),
                "idle": float(row["idle_time(us)"]),
                "communication": float((messages["end"] - messages["ts"]).sum()),
                "overlap": None if overlap != overlap else float(overlap) / 100,
            })
    return ranks[0] if len(paths) == 1 else {"ranks": ranks}


def tensorboard(path):
    from torch_tb_profiler.io.cache import Cache
    from torch_tb_profiler.profiler.loader import RunLoader

    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(path, os.path.join(folder, "host_1.1700000000000.pt.trace.json"))
        run = RunLoader("run", folder, Cache()).load()
    # If there is communication, there is also a profile of all workers.
    profile = next(p for p in run.profiles.values() if hasattr(p, "kernel_table"))
    columns = [column["name"] for column in profile.kernel_table["data"]["columns"]]
    return {
        "views": [view.display_name for view in profile.views],
        "kernels": {
            row[0]: row[columns.index("Calls")] for row in profile.kernel_table["data"]["rows"]
        },
    }


def perfetto(path):
    from perfetto.trace_processor import TraceProcessor

    try:
        processor = TraceProcessor(trace=path)
    except Exception as error:  # it downloads a program when it first runs
        print(error, file=sys.stderr)
        sys.exit(77)
    errors = processor.query(
        "select name, value from stats where value > 0 and severity in ('error', 'data_loss')")
    slices = processor.query("select count(*) as n from slice")
    return {"errors": {row.name: row.value for row in errors}, "slices": next(slices).n}


if __name__ == "__main__":
    try:
        readers = {"hta": hta, "hta-all": functools.partial(hta, last_step=True), "tensorboard": tensorboard,
                   "perfetto": perfetto}
        found = readers[sys.argv[1]](*sys.argv[2:])
    except ModuleNotFoundError as missing:
        print(missing, file=sys.stderr)
        sys.exit(77)
    print("\n" + json.dumps(found))
