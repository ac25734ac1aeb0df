#!/usr/bin/env python3
"""account_picture.py OUTPUT OUT.svg: draws the account of a step that a trainer printed as one bar.

docs/account.svg is of bench/results/intel-xeon-2-cores/mlp_single.txt."""

import html
import re
import sys

WIDTH, LEFT, BAR, TOP = 900, 20, 46, 46
COLOURS = {"forward": "#4c78a8", "loss": "#b279a2", "recompute": "#72b7b2", "backward": "#f58518",
           "optimizer": "#54a24b", "data wait": "#9d755d", "exposed communication": "#e45756", "host": "#bab0ac"}


def account_of(text):
    """The parts in ms by name, and the wall time."""
    block = re.search(r"^Account of a step.*\n((?:  .*\n)+)", text, re.MULTILINE)
    if not block:
        sys.exit("account_picture: error: no account of a step in the output; give what a trainer printed")
    rows = re.findall(r"^  (.+?) {2,}([0-9.]+) ms +[0-9.]+ %$", block[1], re.MULTILINE)
    parts = {name: float(ms) for name, ms in rows}
    wall = parts.pop("wall time")
    parts.pop("between steps", None)
    return {name: ms for name, ms in parts.items() if ms > 0}, wall


def picture(parts, wall, title):
    scale = (WIDTH - 2 * LEFT) / wall
    height = TOP + BAR + 24 + 20 * ((len(parts) + 2) // 3) + 10
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
           'font-family="sans-serif" font-size="13">',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
           f'<text x="{LEFT}" y="28" font-size="15">{html.escape(title)}: {wall:.3f} ms</text>']
    x = LEFT
    for index, (name, ms) in enumerate(parts.items()):
        colour = COLOURS.get(name, "#dddddd")
        out.append(f'<rect x="{x:.1f}" y="{TOP}" width="{ms * scale:.2f}" height="{BAR}" fill="{colour}"/>')
        if ms * scale > 90:
            out.append(f'<text x="{x + 8:.1f}" y="{TOP + BAR / 2 + 5}" fill="white">{html.escape(name)}</text>')
        x += ms * scale
        column, row = index % 3, index // 3
        left, base = LEFT + column * (WIDTH - 2 * LEFT) / 3, TOP + BAR + 34 + 20 * row
        out.append(f'<rect x="{left:.1f}" y="{base - 11}" width="12" height="12" fill="{colour}"/>')
        out.append(f'<text x="{left + 18:.1f}" y="{base}">{html.escape(name)} {ms:.3f} ms, {100 * ms / wall:.1f} %</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    model = re.search(r"^(\d+ x Linear\(.*?\)), .*?(batch \d+)", text, re.MULTILINE)
    title = f"One training step of {model[1]}, {model[2]}" if model else "One training step"
    parts, wall = account_of(text)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(picture(parts, wall, title))


main()
