"""predictions.py RESULTS.json...: errors of the predictions of studies, by scheme, the worst and all.

A command line counts once, against the median of its measurements; cases beyond the cores are shown only.
Direction: of two cases of an experiment whose measured intervals are apart, the faster one was predicted.
Studies of `mlp_lab what-if --check` come with the errors of predicted gains, by what they were made from;
their direction is right where a gain whose interval excludes 1 was predicted to be a gain, or a loss a loss.
"""

import collections
import itertools
import json
import re
import statistics
import sys

WORST = 10
SCHEME = re.compile(r"--scheme (\S+)")


def scheme_of(command):
    """How the ranks of a command line share a step."""
    if "mlp_single" in command:
        return "one device"
    if "mlp_dp" in command:
        return "stages of a process" if "--pipeline" in command else "data-parallel"
    named = SCHEME.search(command)
    words = [named.group(1) if named else "ddp"]
    if "--sync-every" in command:
        words = ["local SGD"]
    return ", ".join(words + [axis for axis in ("tensor", "pipeline") if f"--{axis} " in command])


def error_of(case, measured_s):
    return case["predicted_step_s"] / measured_s - 1


def percent(share):
    return f"{100 * share:.1f} %"


def quantile(sorted_values, share):
    place = share * (len(sorted_values) - 1)
    low = int(place)
    high = min(low + 1, len(sorted_values) - 1)
    return sorted_values[low] + (place - low) * (sorted_values[high] - sorted_values[low])


def why(case):
    """The part of the step that is off most."""
    parts = case["predicted_phases_s"]
    more = {part: parts[part] - case["compared_phases_s"][part] for part in parts}
    part = max(more, key=lambda each: abs(more[each]))
    return f"{part} {1e3 * more[part]:+.3f} ms"


def directions(cases):
    """(schemes, is right) of each pair that is certainly apart."""
    for a, b in itertools.combinations(cases, 2):
        of_a, of_b = a["compared_step_s"], b["compared_step_s"]
        apart = of_a["high"] and of_b["high"] and (of_a["high"] < of_b["low"] or of_b["high"] < of_a["low"])
        if a["command"] == b["command"] or not apart:
            continue
        is_right = (a["predicted_step_s"] < b["predicted_step_s"]) == (of_a["median"] < of_b["median"])
        yield {scheme_of(a["command"]), scheme_of(b["command"])}, is_right


def repeated(by_command):
    """How far apart one command line is in experiments that ran at other times: no prediction is closer."""
    times = [[case["compared_step_s"]["median"] for _, case in cases] for cases in by_command.values() if len(cases) > 1]
    apart = sorted(max(each) / min(each) - 1 for each in times)
    if not apart:
        return "No command line was measured in two experiments."
    return (
        f"Measured again in another experiment, the slowest time of a command line is above its fastest by "
        f"{percent(statistics.median(apart))} (median of {len(apart)}), {percent(apart[-1])} at most."
    )


def row(name, errors, pairs):
    sizes = sorted(abs(each) for each in errors)
    right = sum(is_right for _, is_right in pairs)
    direction = f"{right} of {len(pairs)}, {percent(right / len(pairs))}" if pairs else "-"
    figures = [statistics.median(sizes), quantile(sizes, 0.9), sizes[-1]]
    return f"{name:<22}{len(sizes):>12}" + "".join(f"{percent(each):>18}" for each in figures) + f"  {direction}"


def error_of_gain(gain):
    return gain["gain"]["median"] / gain["measured_gain"]["median"] - 1


def show_gains(experiments):
    """A row for what predictions of gains were made from, the worst, and all; nothing if none was checked."""
    checked = [
        (experiment["cases"][0], gain)
        for experiment in experiments
        for gain in experiment.get("gains", [])
        if gain["gain"] and gain["measured_gain"]
    ]
    if not checked:
        return
    title = f"{'gains made from':<32}{'predictions':>12}{'median':>18}{'90th percentile':>18}{'worst':>18}"
    print(f"{title}  direction right")
    for made_from in ("all", *sorted({gain["made_from"] for _, gain in checked})):
        own = [gain for _, gain in checked if made_from in ("all", gain["made_from"])]
        pairs = []
        for gain in own:
            low, high = gain["measured_gain"]["low"], gain["measured_gain"]["high"]
            if low is not None and (low > 1 or high < 1):
                pairs.append(((), (gain["gain"]["median"] > 1) == (low > 1)))
        print(row(f"{made_from:<32}", [error_of_gain(gain) for gain in own], pairs))
    print(f"\nThe {WORST} worst gains, predicted and measured:")
    for case, gain in sorted(checked, key=lambda each: -abs(error_of_gain(each[1])))[:WORST]:
        print(
            f"{100 * error_of_gain(gain):>+8.1f} %{gain['gain']['median']:>8.3f}x"
            f"{gain['measured_gain']['median']:>8.3f}x  {gain['change']}: {case['command']}"
        )
    print()


def main():
    studies = [json.load(open(path)) for path in sys.argv[1:]]
    experiments = [each for study in studies for each in study["experiments"]]
    show_gains(experiments)
    within, lines, pairs = [], [], []
    for experiment in experiments:
        predicted = [case for case in experiment["cases"] if "predicted_step_s" in case]
        own = [case for case in predicted if not case["beyond_cores"]]
        pairs += directions(own)
        within += [(experiment["name"], case) for case in own]
        for case in predicted:
            measured_s = case["compared_step_s"]["median"]
            lines.append(
                f"{experiment['name'] + ': ' + case['key']:<40}{1e3 * measured_s:>12.3f} ms"
                f"{1e3 * case['predicted_step_s']:>12.3f} ms{100 * error_of(case, measured_s):>+9.1f} %"
                + ("  beyond the cores" if case["beyond_cores"] else "")
            )
    by_command = collections.defaultdict(list)
    for name, case in within:
        by_command[case["command"]].append((name, case))
    errors = {}
    for command, cases in by_command.items():
        measured_s = statistics.median(case["compared_step_s"]["median"] for _, case in cases)
        errors[command] = error_of(cases[0][1], measured_s)
    print(f"{'scheme':<22}{'predictions':>12}{'median':>18}{'90th percentile':>18}{'worst':>18}  direction right")
    print(row("all", errors.values(), pairs))
    for scheme in sorted({scheme_of(command) for command in errors}):
        own = [error for command, error in errors.items() if scheme_of(command) == scheme]
        print(row(scheme, own, [pair for pair in pairs if scheme in pair[0]]))
    print(f"\n{repeated(by_command)}")
    print(f"\nThe {WORST} worst, and the part of the step that is off most:")
    for command in sorted(errors, key=lambda each: -abs(errors[each]))[:WORST]:
        name, case = by_command[command][0]
        print(f"{100 * errors[command]:>+8.1f} %  {why(case):<32}{name}: {case['key']}")
    print(f"\n{'experiment: case':<40}{'measured':>15}{'simulated':>15}{'error':>11}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
