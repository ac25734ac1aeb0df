#!/usr/bin/env python3
"""ranks_picture.py OUT.svg: draws who sends what to whom, for each way in which four ranks share a step.

docs/ranks.svg was made by scripts/ranks_picture.py docs/ranks.svg. It is as wide as a phone's page.
"""

import math
import sys

WIDTH, PANEL, HEIGHT, RADIUS, RANK = 390, 195, 184, 40, 14
# What is sent: its color, and a dash that tells it apart in grey.
SENT = {"gradients": ("#b34700", ""), "parameters": ("#0072b2", "7 3"), "results of layers": ("#00734f", "2 3")}


def text(x, y, words, more=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{words}</text>'


def arrow(begin, end, what, aside=0.0):
    """From one rank's edge to another's, moved aside so that two directions are two arrows."""
    length = math.dist(begin, end)
    along = [(b - a) / length for a, b in zip(begin, end)]
    across = (-along[1] * aside, along[0] * aside)
    points = [(p[0] + s * (RANK + 2) * along[0] + across[0], p[1] + s * (RANK + 2) * along[1] + across[1])
              for p, s in ((begin, 1), (end, -1))]
    color, dash = SENT[what]
    name = what.split()[0]
    return (f'<path d="M{points[0][0]:.1f} {points[0][1]:.1f}L{points[1][0]:.1f} {points[1][1]:.1f}" stroke="{color}" '
            f'stroke-width="2" stroke-dasharray="{dash}" marker-end="url(#{name})"/>')


def panel(index, title, below, places, arrows):
    """`places` of the ranks and `arrows` (from, to, what, aside) between them."""
    left, top = index % 2 * PANEL, 8 + index // 2 * HEIGHT
    places = [(left + PANEL / 2 + x, top + 78 + y) for x, y in places]
    drawn = [text(left + PANEL / 2, top + 14, title, 'text-anchor="middle" font-weight="bold"')]
    drawn += [arrow(places[a], places[b], what, aside) for a, b, what, aside in arrows]
    for rank, (x, y) in enumerate(places):
        drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RANK}" fill="white" stroke="#333" stroke-width="1.5"/>'
                     + text(x, y + 5, rank, 'text-anchor="middle"'))
    drawn += [text(left + PANEL / 2, top + 152 + 14 * i, line, 'text-anchor="middle" font-size="12"')
              for i, line in enumerate(below)]
    return drawn


def main():
    square = [(-RADIUS, -RADIUS), (RADIUS, -RADIUS), (RADIUS, RADIUS), (-RADIUS, RADIUS)]
    ring = [(i, (i + 1) % 4) for i in range(4)]
    line = [(-82, 0), (-27, 0), (27, 0), (82, 0)]
    rings = lambda *sent: [(a, b, what, 4 * (2 * i - len(sent) + 1)) for a, b in ring for i, what in enumerate(sent)]
    star = [arrow for other in (1, 2, 3) for arrow in ((other, 0, "gradients", 4), (0, other, "parameters", 4))]
    pairs = [(a, b, "results of layers", 4) for a in range(4) for b in range(4) if a != b and abs(a - b) != 2]
    stages = [each for a in range(3) for each in ((a, a + 1, "results of layers", 5), (a + 1, a, "gradients", 5))]
    panels = [("ddp", ["everyone gets the sum", "during backward"], square, rings("gradients")),
              ("zero1, zero2, zero3", ["gradients to their owner,", "parameters back to all"], square,
               rings("gradients", "parameters")),
              ("server", ["all to rank 0 and back:", "its link is the bottleneck"], square, star),
              ("factor", ["inputs and output gradients", "of layers, to everyone"], square, rings("results of layers")),
              ("--tensor 4", ["a sum for every pair of layers,", "forward and backward"], square, pairs),
              ("--pipeline 4", ["stages pass results on,", "and gradients back"], line, stages)]
    height = 8 + HEIGHT * math.ceil(len(panels) / 2) + 30
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
           'role="img" aria-label="Who sends what to whom, for six ways to share a step" font-family="sans-serif" '
           'font-size="13" fill="none">', f'<rect width="{WIDTH}" height="{height}" fill="white"/>', "<defs>"]
    for what, (color, _) in SENT.items():
        svg.append(f'<marker id="{what.split()[0]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="4.5" markerHeight="4.5" '
                   f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{color}"/></marker>')
    svg.append('</defs><g fill="#222">')
    for index, (title, below, places, arrows) in enumerate(panels):
        svg += panel(index, title, below, places, arrows)
    x = 12
    for what, (color, dash) in SENT.items():
        svg.append(f'<path d="M{x} {height - 16}h26" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>'
                   + text(x + 31, height - 12, what, 'font-size="12"'))
        x += 48 + 7 * len(what)
    svg.append("</g></svg>\n")
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write("\n".join(svg))


main()
