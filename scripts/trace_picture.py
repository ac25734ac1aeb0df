#!/usr/bin/env python3
"""trace_picture.py TRACE STEP OUT.svg: draws a profiled step of a trace that --trace wrote; STEP is its number, or "median" for
the one of median length. scripts/step_pictures.sh makes docs/lanes.svg and docs/profiler_step.svg with it.
"""

import gzip
import html
import json
import math
import re
import sys

from step_colors import COLORS, ink, legend

WIDTH, ROW, LEFT, TOP = 480, 28, 66, 30  # as wide as a phone's page


def time_axis(ms, y, scale):
    """Marks at round times, in milliseconds."""
    rough = ms / 6
    power = 10 ** math.floor(math.log10(rough))
    distance = next(digits * power for digits in (1, 2, 5, 10) if digits * power >= rough)
    parts = [f'<line x1="{LEFT}" x2="{LEFT + ms * scale:.1f}" y1="{y + 4}" y2="{y + 4}" stroke="#666"/>']
    for mark in range(int(ms / distance) + 1):
        x = LEFT + mark * distance * scale
        unit = " ms" if mark == 0 else ""
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y + 4}" y2="{y + 9}" stroke="#666"/>'
                     f'<text x="{x:.1f}" y="{y + 22}" text-anchor="middle">{mark * distance:.3g}{unit}</text>')
    return parts


def chosen_step(events, number):
    steps = [e for e in events if re.fullmatch(r"ProfilerStep#\d+", e["name"])]
    if number == "median":
        return sorted(steps, key=lambda e: e["dur"])[(len(steps) - 1) // 2]
    return next(e for e in steps if e["name"] == f"ProfilerStep#{number}")


def bars_of(events, begin, end):
    """(row, event, phase) of what the host and the streams did in the step; a row is named by its lane."""
    names = {e["tid"]: e["args"]["name"] for e in events
             if e["name"] == "thread_name" and e["args"]["name"].startswith("stream")}
    lanes = {tid: re.sub(r".*\((.*)\)", r"\1", name) for tid, name in names.items()}
    for event in events:
        if event["ph"] != "X" or not begin <= event["ts"] <= end:
            continue
        if event["cat"] == "cpu_op":
            yield "host", event, "host"
        elif event["cat"] in ("kernel", "gpu_memcpy"):
            yield lanes.get(event["tid"], f"stream {event['tid']}"), event, event["args"]["phase"]


def main():
    path, number, out = sys.argv[1:4]
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    step = chosen_step(events, number)
    begin, end = step["ts"], step["ts"] + step["dur"]
    bars = list(bars_of(events, begin, end))
    order = ["host", "copy", "compute", "side", "comm"]
    rows = sorted({name for name, _, _ in bars}, key=lambda name: (order + [name]).index(name))
    rows = {name: TOP + index * ROW for index, name in enumerate(rows)}
    height = TOP + len(rows) * ROW + 66
    scale = (WIDTH - LEFT - 10) / (end - begin)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{1.5 * WIDTH:.0f}" height="{1.5 * height:.0f}" '
             f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" role="img" '
             f'aria-label="A step on its lanes, {(end - begin) / 1e3:.3f} ms">',
             f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
             f'<text x="8" y="18">{step["name"].replace("Profiler", "").replace("#", " ")}: '
             f'{(end - begin) / 1e3:.3f} ms</text>']
    for name, y in rows.items():
        parts.append(f'<text x="8" y="{y + 18}">{html.escape(name)}</text>')
    for name, event, phase in bars:
        x = LEFT + (event["ts"] - begin) * scale
        width = max(0.3, event["dur"] * scale)
        label = f"{event['name']}, {event['dur']:.1f} us"
        parts.append(f'<rect class="{phase.replace(" ", "-")}" x="{x:.2f}" y="{rows[name] + 3}" width="{width:.2f}" '
                     f'height="{ROW - 6}" fill="{COLORS[phase]}" stroke="white" '
                     f'stroke-width="0.3"><title>{html.escape(label)}</title></rect>')
        if width > 8.5 * len(event["name"]):
            parts.append(f'<text x="{x + 3:.2f}" y="{rows[name] + 18}" fill="{ink(COLORS[phase])}">'
                         f'{html.escape(event["name"])}</text>')
    parts += time_axis((end - begin) / 1e3, TOP + len(rows) * ROW, 1e3 * scale)
    used = [phase for phase in COLORS if any(phase == each for _, _, each in bars)]
    half = 5 if len(used) > 5 else len(used)
    parts += legend(used[:half], 8, height - 24) + legend(used[half:], 8, height - 7)
    parts.append("</svg>\n")
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(parts))


main()
