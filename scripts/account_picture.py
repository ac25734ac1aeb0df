#!/usr/bin/env python3
"""account_picture.py OUT.svg TITLE=FILE...: draws the account of a step of each FILE, a trainer's output, as a bar.

scripts/step_pictures.sh makes docs/account_of_a_step.svg with it.
"""

import html
import re
import sys

from step_colors import COLORS, ink, legend

WIDTH, LEFT, BAR, ROW = 900, 10, 26, 62


def account(path):
    """The parts of a step in ms, in printed order, and the wall time."""
    with open(path, encoding="utf-8") as file:
        text = file.read().split("Account of a step, mean\n", 1)[1]
    parts = []
    for line in text.splitlines():
        name, ms = re.match(r"  (\S.*?) {2,}([\d.]+) ms", line).groups()
        if name == "wall time":
            return parts, float(ms)
        if name not in COLORS:
            sys.exit(f"account_picture.py: no color for '{name}' of {path}; add one to step_colors.py")
        parts.append((name, float(ms)))
    sys.exit(f"account_picture.py: {path} has no wall time")


def main():
    out, runs = sys.argv[1], [argument.rsplit("=", 1) for argument in sys.argv[2:]]
    accounts = [(title, *account(path)) for title, path in runs]
    used = [name for name in COLORS if any(name == part and ms / wall >= 0.005
                                            for _, parts, wall in accounts for part, ms in parts)]
    height = ROW * len(accounts) + 34
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
           f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
    for row, (title, parts, wall) in enumerate(accounts):
        y = row * ROW + 8
        x, scale = LEFT, (WIDTH - 2 * LEFT) / wall
        svg.append(f'<text x="{LEFT}" y="{y + 12}">{html.escape(title)}: {wall:.2f} ms</text>')
        for name, ms in parts:
            width = ms * scale
            label = f"{name}: {ms:.3f} ms, {100 * ms / wall:.1f} %"
            svg.append(f'<rect x="{x:.1f}" y="{y + 20}" width="{width:.1f}" height="{BAR}" '
                       f'fill="{COLORS[name]}"><title>{label}</title></rect>')
            if width > 60:
                svg.append(f'<text x="{x + 5:.1f}" y="{y + 38}" fill="{ink(COLORS[name])}">{100 * ms / wall:.0f} %</text>')
            x += width
    svg += legend(used, LEFT, height - 11)
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(svg) + "\n</svg>\n")


main()
