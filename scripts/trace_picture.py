#!/usr/bin/env python3
"""trace_picture.py TRACE STEP OUT.svg: draws one profiled step of a trace that --trace wrote.

docs/profiler_step.svg was made with it, and docs/lanes.svg, the step of a rank, by

    mpirun -np 2 build/mlp_ddp --dim 1024 --depth 3 --bucket-mib 4 --steps 20 --trace lanes.json
    scripts/trace_picture.py lanes.rank0.json 14 docs/lanes.svg
"""

import gzip
import html
import json
import math
import sys

from step_colors import COLORS, ink, legend

WIDTH, ROW, LEFT, TOP = 1000, 30, 130, 40


def time_axis(ms, y, scale):
    """Marks at round times, in milliseconds."""
    rough = ms / 8
    power = 10 ** math.floor(math.log10(rough))
    distance = next(digits * power for digits in (1, 2, 5, 10) if digits * power >= rough)
    parts = [f'<line x1="{LEFT}" x2="{LEFT + ms * scale:.1f}" y1="{y + 4}" y2="{y + 4}" stroke="#666"/>']
    for mark in range(int(ms / distance) + 1):
        x = LEFT + mark * distance * scale
        unit = " ms" if mark == 0 else ""
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y + 4}" y2="{y + 9}" stroke="#666"/>'
                     f'<text x="{x:.1f}" y="{y + 22}" text-anchor="middle">{mark * distance:.3g}{unit}</text>')
    return parts


def main():
    path, number, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    step = next(e for e in events if e["name"] == f"ProfilerStep#{number}")
    begin, end = step["ts"], step["ts"] + step["dur"]
    names = {e["tid"]: e["args"]["name"] for e in events
             if e["name"] == "thread_name" and e["args"]["name"].startswith("stream")}
    rows = {"host": 0}
    bars = []
    for event in events:
        if event["ph"] != "X" or not begin <= event["ts"] <= end:
            continue
        if event["cat"] == "cpu_op":
            bars.append(("host", event, "host"))
        elif event["cat"] in ("kernel", "gpu_memcpy"):
            stream = names.get(event["tid"], f"stream {event['tid']}")
            rows.setdefault(stream, 0)
            bars.append((stream, event, event["args"]["phase"]))
    for index, name in enumerate(sorted(rows)):
        rows[name] = TOP + index * ROW
    height = TOP + len(rows) * ROW + 60
    scale = (WIDTH - LEFT - 10) / (end - begin)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
             f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
             f'<text x="10" y="20">Step {number}: {(end - begin) / 1e3:.3f} ms</text>']
    for name, y in rows.items():
        parts.append(f'<text x="10" y="{y + 18}">{html.escape(name)}</text>')
    for name, event, phase in bars:
        x = LEFT + (event["ts"] - begin) * scale
        width = max(0.5, event["dur"] * scale)
        label = f"{event['name']}, {event['dur']:.1f} us"
        parts.append(f'<rect x="{x:.2f}" y="{rows[name] + 3}" width="{width:.2f}" '
                     f'height="{ROW - 6}" fill="{COLORS[phase]}" stroke="white" '
                     f'stroke-width="0.4"><title>{html.escape(label)}</title></rect>')
        if width > 8 * len(event["name"]):
            parts.append(f'<text x="{x + 4:.2f}" y="{rows[name] + 19}" fill="{ink(COLORS[phase])}">'
                         f'{html.escape(event["name"])}</text>')
    parts += time_axis((end - begin) / 1e3, TOP + len(rows) * ROW, 1e3 * scale)
    parts += legend([phase for phase in COLORS if any(phase == used for _, _, used in bars)], LEFT, height - 11)
    parts.append("</svg>\n")
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(parts))


main()
