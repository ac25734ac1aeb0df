"""The colors of the parts of a step in the pictures of docs/, by the names of a trace and of an account: those of reports
(kAccountParts in src/profiler/account.h, kColors in src/lab/report/svg.cpp)."""

COLORS = {"data": "#e69f00", "data wait": "#e69f00", "host to device": "#e69f00", "injected": "#b8a800",
          "forward": "#0072b2", "loss": "#56b4e9", "recompute": "#1b3a5c", "backward": "#009e73",
          "tensor ranks": "#44aa99", "other stages": "#aa4499", "communication": "#d55e00",
          "exposed communication": "#d55e00", "optimizer": "#cc79a7", "other device": "#7b3294", "host": "#882255",
          "idle": "#777777"}


def luminance(color):
    """Of "#rrggbb", as WCAG defines it."""
    values = [int(color[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ink(color):
    """Black or white, whichever is easier to read on this color; the contrast is at least 4.5."""
    return "black" if luminance(color) > 0.179 else "white"


def legend(names, x, y):
    """The colors of these parts, in a row."""
    drawn = []
    for name in names:
        drawn.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{COLORS[name]}"/>'
                     f'<text x="{x + 16}" y="{y}">{name}</text>')
        x += 38 + 7 * len(name)
    return drawn
