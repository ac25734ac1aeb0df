#!/usr/bin/env python3
"""program_picture.py EXPLAINED FOLDER: draws the program of a step from what --explain printed.

Writes FOLDER/program_lanes.svg, its nodes by lane with the waits between lanes, and FOLDER/program_readers.svg,
the way from ops to the readers of a program. docs/ has those of
    build/mlp_ddp --explain --dim 1024 --depth 2 --device cpu"""

import html
import pathlib
import re
import sys

COLOURS = {"data": "#9d755d", "injected": "#bab0ac", "forward": "#4c78a8", "loss": "#b279a2", "recompute": "#72b7b2",
           "backward": "#f58518", "reduce": "#e45756", "optimizer": "#54a24b", "evaluate": "#eeca3b"}
READERS = [("planner", "bytes of every buffer, before anything is allocated: --plan"),
           ("checker", "no two nodes that touch the same bytes run unordered"),
           ("runner", "the step itself, node by node or as a CUDA graph"),
           ("pricer", "flops, bytes and messages of every op: the floor"),
           ("timeline", "when each node was queued, began and ended"),
           ("profiler", "the account, the operator table, traces"),
           ("simulator", "the step on machines that are not here"),
           ("printer", "the step as a table: --explain")]


def nodes_of(text):
    """(number, phase, lane, op, numbers it waits for in its step) of every row."""
    nodes = []
    for line in text.splitlines():
        row = re.match(r"^ *(\d+)  (\w+) +(?:\d+|-)  (\w+) +(\w+)  ", line)
        if row:
            waits = re.search(r"(#\d+(?:, #\d+)*)[^#]*$", line)
            same_step = [int(n) for n in re.findall(r"#(\d+)\b(?! of)", waits[1])] if waits else []
            nodes.append((int(row[1]), row[2], row[3], row[4], same_step))
    if not nodes:
        sys.exit("program_picture: error: no program in the input; give what --explain printed")
    return nodes


def svg(width, height, parts):
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
            'font-size="11">\n<defs><marker id="a" markerWidth="7" markerHeight="7" refX="6" refY="3" orient="auto">'
            '<path d="M0,0 L6,3 L0,6 z" fill="#444"/></marker></defs>\n'
            f'<rect width="{width}" height="{height}" fill="white"/>\n')
    return head + "\n".join(parts) + "\n</svg>\n"


def text(x, y, words, more=""):
    return f'<text x="{x}" y="{y}" {more}>{html.escape(words)}</text>'


def box(x, y, width, height, colour):
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{colour}"/>'


def lanes(nodes):
    left, step, tall, gap = 80, 62, 30, 70
    order = [lane for lane in ("copy", "compute", "side", "comm") if any(n[2] == lane for n in nodes)]
    row = {lane: 50 + gap * i for i, lane in enumerate(order)}
    parts = [text(10, 22, "One step, in the order of the program; arrows are waits between lanes", 'font-size="14"')]
    for lane in order:
        parts.append(text(10, row[lane] + tall / 2 + 4, lane, 'font-size="13"'))
        parts.append(f'<line x1="{left}" x2="{left + step * len(nodes)}" y1="{row[lane] + tall / 2}" '
                     f'y2="{row[lane] + tall / 2}" stroke="#ccc"/>')
    place = {number: (left + step * i, row[lane]) for i, (number, _, lane, _, _) in enumerate(nodes)}
    for number, phase, _, op, _ in nodes:
        x, y = place[number]
        parts += [box(x, y, step - 4, tall, COLOURS.get(phase, "#888")),
                  text(x + 3, y + 12, f"#{number}", 'fill="white" font-size="9"'),
                  text(x + 3, y + 24, op.replace("all_reduce", "reduce"), 'fill="white"')]
    for number, _, lane, _, waits in nodes:
        for other in waits:
            if other not in place or nodes[other][2] == lane:
                continue
            (x0, y0), (x1, y1) = place[other], place[number]
            down = y1 > y0
            parts.append(f'<line x1="{x0 + step - 14}" y1="{y0 + (tall if down else 0)}" x2="{x1 + 10}" '
                         f'y2="{y1 + (0 if down else tall)}" stroke="#444" marker-end="url(#a)"/>')
    y = 50 + gap * len(order)
    for i, phase in enumerate(dict.fromkeys(n[1] for n in nodes)):
        parts += [box(left + 110 * i, y, 12, 12, COLOURS.get(phase, "#888")), text(left + 110 * i + 18, y + 11, phase)]
    return svg(left + step * len(nodes) + 10, y + 25, parts)


def readers(nodes):
    parts = [text(20, 24, "ops", 'font-size="15"'), text(250, 24, "program", 'font-size="15"'),
             text(480, 24, "readers", 'font-size="15"')]
    shown = list({op: (op, phase) for _, phase, _, op, _ in reversed(nodes)}.values())[::-1][:9]
    for i, (op, phase) in enumerate(shown):
        y = 40 + 34 * i
        parts += [box(20, y, 120, 26, COLOURS.get(phase, "#888")), text(30, y + 17, op, 'fill="white"'),
                  f'<line x1="142" y1="{y + 13}" x2="246" y2="180" stroke="#444" marker-end="url(#a)"/>']
    parts += ['<rect x="250" y="100" width="140" height="160" rx="6" fill="#f4f4f4" stroke="#444"/>']
    for i, words in enumerate(["a list of nodes:", "op, lane, phase,", "layer, waits", "", f"{len(nodes)} in this step"]):
        parts.append(text(264, 130 + 24 * i, words, 'font-size="13"'))
    for i, (name, gets) in enumerate(READERS):
        y = 40 + 38 * i
        parts += [f'<line x1="392" y1="180" x2="474" y2="{y + 14}" stroke="#444" marker-end="url(#a)"/>',
                  f'<rect x="480" y="{y}" width="460" height="28" rx="4" fill="#eaf1f8"/>',
                  text(490, y + 18, name, 'font-weight="bold" font-size="12"'), text(565, y + 18, gets, 'font-size="12"')]
    return svg(960, 360, parts)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    nodes = nodes_of(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = pathlib.Path(sys.argv[2])
    (folder / "program_lanes.svg").write_text(lanes(nodes), encoding="utf-8")
    (folder / "program_readers.svg").write_text(readers(nodes), encoding="utf-8")


main()
