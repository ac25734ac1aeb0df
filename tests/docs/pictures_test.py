#!/usr/bin/env python3
"""pictures_test.py SOURCE: the pictures of docs show what their captions claim, and their legends name every color in them.

scripts/step_pictures.sh measures and draws those of steps anew.
"""

import pathlib
import re
import sys
import unittest
import xml.etree.ElementTree

SVG = "{http://www.w3.org/2000/svg}"
DOCS = pathlib.Path(sys.argv.pop(1)) / "docs"


def picture(name):
    return xml.etree.ElementTree.parse(DOCS / name).getroot()


def spans(root, phase):
    """Begin and end of each bar of a phase, by begin."""
    found = [(float(e.get("x")), float(e.get("x")) + float(e.get("width"))) for e in root.iter(SVG + "rect")
             if e.get("class") == phase]
    return sorted(found)


class Pictures(unittest.TestCase):
    def test_of_a_rank_reduces_gradients_while_backward_continues(self):
        root = picture("lanes.svg")
        reductions, backward, adam = (spans(root, phase) for phase in ("communication", "backward", "optimizer"))
        self.assertGreater(len(reductions), 2, "one for each bucket, and the loss")
        during = sum(max(0, min(end, backward[-1][1]) - begin) for begin, end in reductions)
        self.assertGreaterEqual(during, 0.2 * sum(end - begin for begin, end in reductions))
        self.assertGreaterEqual(adam[0][0], reductions[-1][1] - 0.5, "Adam waits for the last bucket")

    def test_of_steps_have_legends_of_exactly_their_colors(self):
        for name in ("lanes.svg", "profiler_step.svg"):
            root = picture(name)
            with self.subTest(name):
                bars = {e.get("fill") for e in root.iter(SVG + "rect") if e.get("class")}
                legend = {e.get("fill") for e in root.iter(SVG + "rect") if e.get("width") == "12"}
                self.assertEqual(bars, legend)

    def test_fit_a_phone(self):
        """At 390 pixels the smallest letters of what scripts draw have 8 pixels or more."""
        for name in ("lanes.svg", "profiler_step.svg", "ranks.svg"):
            root = picture(name)
            with self.subTest(name):
                width = float(root.get("viewBox").split()[2])
                sizes = [float(e.get("font-size", 100)) for e in root.iter()]
                self.assertGreaterEqual(min(sizes) * min(1, 390 / width), 8)

    def test_of_ranks_tell_what_is_sent_without_color(self):
        root = picture("ranks.svg")
        looks = {(e.get("stroke"), e.get("stroke-dasharray")) for e in root.iter(SVG + "path") if e.get("stroke")}
        self.assertEqual(len(looks), 3)
        self.assertEqual(len({dash for _, dash in looks}), 3)
        labels = {e.text for e in root.iter(SVG + "text")}
        self.assertTrue({"gradients", "parameters", "results of layers"} <= labels)


unittest.main()
