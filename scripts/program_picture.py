#!/usr/bin/env python3
"""program_picture.py EXPLAINED OUT.svg: draws the program that --explain printed, with the verbs and the readers.

docs/program.svg was made by

    mpirun -np 2 build/mlp_ddp --explain --dim 1024 --depth 2 > explained.txt
    scripts/program_picture.py explained.txt docs/program.svg
"""

import html
import pathlib
import re
import sys

from step_colors import COLORS, ink

LANES = {"copy": 250, "compute": 420, "comm": 590}
BOX, ROW, TOP, WIDTH = 150, 24, 66, 1000
VERBS = {"data": "input", "forward": "forward", "loss": "loss", "backward": "backward", "optimizer": "update",
         "communication": "exchange"}
READERS = [("order()", "src/core/order.cpp", "who waits for whom"), ("check()", "src/core/checker.cpp", "no two collide"),
           ("MemoryPlan", "src/core/plan.cpp", "where buffers lie"), ("cost_of()", "src/core/ops.cpp", "flops and bytes"),
           ("printer", "src/core/printer.cpp", "--explain"), ("Runner", "src/train/runner.cpp", "runs it on a device"),
           ("simulate()", "src/lab/predict/simulator.cpp", "predicts its time"),
           ("profiler", "src/profiler/operator_table.cpp", "joins it with times")]


def nodes(path):
    """Number, phase, lane, op, and the numbers of the nodes in the same step that it waits for."""
    found = []
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        match = re.match(r" *(\d+)  (\w+) +(\S+) +(\w+) +(\w+) ", line)
        if match:
            number, phase, _, lane, op = match.groups()
            last = re.split(r"  +", line.rstrip())[-1]
            waits = [int(n) for n in re.findall(r"#(\d+)\b(?! of)", last)] if last.startswith("#") else []
            found.append((int(number), phase, lane, op, waits))
    if not found:
        sys.exit(f"program_picture.py: {path} holds no program; write --explain's output there")
    return found


def text(x, y, words, more=""):
    return f'<text x="{x}" y="{y}" {more}>{html.escape(words)}</text>'


def box(x, y, width, words, color, title):
    return (f'<rect x="{x}" y="{y}" width="{width}" height="{ROW - 5}" rx="3" fill="{color}"><title>{title}</title></rect>'
            + text(x + 6, y + 14, words, f'fill="{ink(color)}"'))


def main():
    explained, out = sys.argv[1:3]
    program = nodes(explained)
    height = TOP + ROW * len(program) + 16
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
           'font-family="sans-serif" font-size="12">',
           '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
           '<path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
           text(20, 22, "verbs of Draft", 'font-weight="bold"'),
           text(LANES["copy"], 22, "the program: ops on lanes, in order; arrows are waits", 'font-weight="bold"'),
           text(790, 22, "readers", 'font-weight="bold"')]
    svg += [text(x, 46, lane, 'fill="#555"') for lane, x in LANES.items()]
    places, previous = {}, None
    for row, (number, phase, lane, op, waits) in enumerate(program):
        x, y = LANES[lane], TOP + row * ROW
        places[number] = (x, y + ROW // 2 - 2)
        if phase != previous:
            svg.append(box(20, y, 110, VERBS.get(phase, phase), COLORS[phase], f"phase {phase}"))
            svg.append(f'<path d="M130 {y + 9}H{x - 4}" stroke="#ccc" stroke-dasharray="3 3"/>')
            previous = phase
        svg.append(box(x, y, BOX, f"#{number} {op}", COLORS[phase], f"#{number}, {phase}, waits for {waits or 'nothing'}"))
        for wait in waits:
            fx, fy = places[wait]
            fx, tx = (fx + BOX, x) if fx < x else (fx, x + BOX)
            svg.append(f'<path d="M{fx} {fy}L{tx} {y + 9}" stroke="#555" fill="none" marker-end="url(#tip)"/>')
    source = pathlib.Path(__file__).resolve().parent.parent
    step = min(58, (height - TOP) // len(READERS))
    for index, (name, path, what) in enumerate(READERS):
        if not (source / path).exists():
            sys.exit(f"program_picture.py: {path} is no longer there; correct READERS")
        y = TOP + index * step
        svg.append(f'<path d="M{LANES["comm"] + BOX + 8} {y + 16}H785" stroke="#555" marker-end="url(#tip)"/>'
                   f'<rect x="790" y="{y}" width="200" height="{step - 10}" rx="4" fill="#eee" stroke="#999"/>'
                   + text(798, y + 16, f"{name}: {what}") + text(798, y + 32, path, 'fill="#555" font-size="11"'))
    pathlib.Path(out).write_text("\n".join(svg) + "\n</svg>\n", encoding="utf-8")


main()
