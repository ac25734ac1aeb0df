#!/usr/bin/env python3
"""gpu_calls_test.py SOURCE: the calls of docs/gpu.md fit a machine that is lent for 15 minutes, and time our kernels first."""

import pathlib
import re
import sys
import unittest

SOURCE = pathlib.Path(sys.argv.pop(1))
START_S, LENT_S, CALL_S = 60, 900, 600


class GpuCalls(unittest.TestCase):
    def test_fit_fifteen_minutes(self):
        script = (SOURCE / "scripts/gpu_check.sh").read_text()
        known = re.search(r"all_stages=\((.*)\)", script)[1].split()
        calls = re.findall(r"^\| `--seconds (\d+) ([a-z ]+)` \| ([\d, ]+) \|$", (SOURCE / "docs/gpu.md").read_text(), re.M)
        self.assertEqual(len(calls), 2)
        for limit, stages, seconds in calls:
            self.assertLessEqual(set(stages.split()), set(known))
            each = list(map(int, seconds.split(",")))
            self.assertEqual(len(each), len(stages.split()), stages)
            self.assertLessEqual(sum(each), int(limit), stages)
            self.assertLessEqual(int(limit), CALL_S)
        self.assertLessEqual(START_S + sum(int(call[0]) for call in calls), LENT_S)

    def test_time_our_kernels_first_after_the_rate_of_tensor_cores(self):
        self.assertIn("all_stages=(build products ", (SOURCE / "scripts/gpu_check.sh").read_text())
        stage = (SOURCE / "scripts/gpu_stages.sh").read_text().split("stage_products() {")[1]
        self.assertLess(stage.index("--tensor-rate"), stage.index("--autotune"))


unittest.main()
