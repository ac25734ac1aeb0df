"""Functions shared by comparisons in rounds: the interval of a figure, and whether a machine was too noisy
for a verdict. In each round, every variant runs once; a figure, such as a ratio, is computed once per
round.
"""

import math
import os
import pathlib
import statistics
import time

LARGEST_LOST = 0.25  # share of its time that a run may lose to other programs
LARGEST_WIDTH = 0.5  # of an interval, as a share of the figure


def cut_of(n):
    """The number of n sorted figures outside a 95 % interval of their median, at either end."""
    cut = 0
    while 2 * sum(math.comb(n, k) for k in range(cut + 1)) / 2**n <= 0.05:
        cut += 1
    return cut - 1


def median_of(figures):
    """The middle value; of two middle values the geometric mean, so a ratio's inverse is consistent."""
    ordered = sorted(figures)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else math.sqrt(ordered[half - 1] * ordered[half])


def summary(figures):
    """Median and interval by order statistics; the ends are null below six figures, which have none."""
    ordered = sorted(figures)
    cut = cut_of(len(ordered))
    return {"median": median_of(ordered), "low": ordered[cut] if cut >= 0 else None,
            "high": ordered[-1 - cut] if cut >= 0 else None, "of_rounds": list(figures)}


class LostTime:
    """What this process loses to others from start() on, as the fields of LostTime (src/core/host.h)."""

    def start(self):
        self.begin, self.begin_s = self.read(), time.process_time()

    def record(self, wall_s):
        threads, stolen_s, all_ran_s = self.read()
        spent = []
        for thread, (ran, waited) in threads.items():
            before = self.begin[0].get(thread, (0, 0))
            spent.append((ran - before[0], waited - before[1]))
        most = max((ran for ran, _ in spent), default=0)
        busy = [(ran, waited) for ran, waited in spent if 2 * ran >= most and ran > 0]
        ran, waited = max(busy, key=lambda each: each[1] / sum(each), default=(0, 0))
        return {"wall_s": wall_s, "waited_s": waited, "ready_s": ran + waited,
                "own_ran_s": time.process_time() - self.begin_s, "all_ran_s": all_ran_s - self.begin[2],
                "stolen_s": stolen_s - self.begin[1], "busy_threads": len(busy)}

    @staticmethod
    def read():
        threads = {}
        for task in pathlib.Path("/proc/self/task").iterdir():
            try:
                ran, waited, _ = (task / "schedstat").read_text().split()
                threads[task.name] = (1e-9 * int(ran), 1e-9 * int(waited))
            except (OSError, ValueError):
                pass  # the thread has ended, or the kernel does not report it
        words = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in words]
        user, nice, system, _, _, irq, softirq, stolen = ticks
        return threads, stolen, user + nice + system + irq + softirq


def lost_share(record):
    """The lost share in a record of LostTime or --metrics; threads wait for each other too."""
    cores = max(1, min(record["busy_threads"], len(os.sched_getaffinity(0))))
    tick_s = 0.01  # of /proc/stat, as in lost_share() (src/lab/study/start.cpp)
    others_s = max(0, record["all_ran_s"] - record["own_ran_s"] - 2 * tick_s)
    waited = min(record["waited_s"], others_s) / record["ready_s"] if record["ready_s"] > 0 else 0
    return waited + max(0, record["stolen_s"] - tick_s) / (record["wall_s"] * cores)


def least_lost(run, tries=3):
    """Repeats a run that lost too much; of several runs, returns the one that lost least, however slow."""
    runs = []
    for _ in range(tries):
        runs.append(run())
        if runs[-1]["lost"] <= LARGEST_LOST:
            break
    return min(runs, key=lambda each: each["lost"])


def why_invalid(rounds, figures):
    """Why these rounds, each a list of its runs' losses, allow no verdict; empty if they do."""
    disturbed = sum(max(lost) > LARGEST_LOST for lost in rounds)
    if 4 * disturbed > len(rounds):
        share = statistics.median(max(lost) for lost in rounds)
        return (f"{disturbed} of {len(rounds)} rounds lost more than {LARGEST_LOST:.0%} of their time "
                f"to other programs or the host (half of them {share:.0%})")
    for name, figure in figures.items():
        if figure["low"] is None:
            return f"{len(rounds)} rounds have no interval; it takes 6"
        if figure["high"] - figure["low"] > LARGEST_WIDTH * figure["median"]:
            return (f"the interval of {name}, {figure['low']:.2f} to {figure['high']:.2f}, is wider "
                    f"than {LARGEST_WIDTH:.0%} of {figure['median']:.2f}")
    return ""
