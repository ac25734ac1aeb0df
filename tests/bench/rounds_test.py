#!/usr/bin/env python3
"""rounds_test.py <source root>: the intervals and verdicts of comparisons in rounds."""

import sys

sys.path.insert(0, sys.argv[1] + "/bench")
import rounds  # noqa: E402

# The number of order statistics to cut: the tables of the sign test.
assert [rounds.cut_of(n) for n in (5, 6, 8, 9, 11, 12, 14, 15)] == [-1, 0, 0, 1, 1, 2, 2, 3]
nine = rounds.summary([40.30, 40.34, 39.88, 38.82, 39.89, 40.35, 55.88, 38.30, 41.52])
assert (nine["median"], nine["low"], nine["high"]) == (40.30, 38.82, 41.52), nine
six = rounds.summary([6.00, 6.04, 5.89, 5.73, 14.04, 6.07])
assert abs(six["median"] - 6.0199668) < 1e-7 and (six["low"], six["high"]) == (5.73, 14.04), six

# A disturbed run is repeated, at most twice; the run that lost least counts, however slow it was.
runs = iter([{"lost": 0.9, "ms": 1}, {"lost": 0.3, "ms": 3}, {"lost": 0.5, "ms": 2}, {"lost": 0, "ms": 4}])
assert rounds.least_lost(lambda: next(runs))["ms"] == 3
assert rounds.least_lost(lambda: next(runs))["ms"] == 4

record = {"wall_s": 2.0, "waited_s": 0.5, "ready_s": 2.0, "own_ran_s": 1.5, "all_ran_s": 1.72, "stolen_s": 0.21,
          "busy_threads": 1}
assert abs(rounds.lost_share(record) - 0.2) < 1e-12, "it waited 0.3 s for its own threads"
assert abs(rounds.lost_share({**record, "all_ran_s": 2.5}) - 0.35) < 1e-12
assert abs(rounds.lost_share({**record, "all_ran_s": 1.4}) - 0.1) < 1e-12
assert abs(rounds.lost_share({**record, "all_ran_s": 1.519}) - 0.1) < 1e-12, "it could be rounding"

figure = {"a ratio": rounds.summary([1.5, 1.6, 1.55, 1.52, 1.58, 1.57])}
assert rounds.why_invalid([[0.0, 0.3]] + [[0.0, 0.0]] * 5, figure) == ""
assert rounds.why_invalid([[0.0, 0.3]] * 2 + [[0.0, 0.0]] * 4, figure).startswith(
    "2 of 6 rounds lost more than 25% of their time to other programs or the host")
wide = {"a ratio": rounds.summary([1.0, 1.6, 1.55, 1.52, 1.58, 2.57])}
assert rounds.why_invalid([[0.0]] * 6, wide) == (
    "the interval of a ratio, 1.00 to 2.57, is wider than 50% of 1.56"), rounds.why_invalid([[0.0]] * 6, wide)
few = {"a ratio": rounds.summary([1.0] * 5)}
assert rounds.why_invalid([[0.0]] * 5, few) == "5 rounds have no interval; it takes 6"
