#!/usr/bin/env python3
"""predictions_test.py <source root>: errors of predictions by scheme, of made-up studies."""

import contextlib
import io
import json
import sys
import tempfile

sys.path.insert(0, sys.argv[1] + "/bench")
import predictions  # noqa: E402


def case(key, command, measured_s, predicted_s, beyond=False):
    estimate = {"median": measured_s, "low": 0.98 * measured_s, "high": 1.02 * measured_s}
    return {"key": key, "command": command, "beyond_cores": beyond, "compared_step_s": estimate,
            "predicted_step_s": predicted_s, "compared_phases_s": {"forward": 0.4, "backward": measured_s - 0.4},
            "predicted_phases_s": {"forward": 0.4, "backward": predicted_s - 0.4}}


first = [case("one", "mlp_single --dim 8", 1.0, 1.1), case("zero", "mpirun -np 2 mlp_ddp --scheme zero1", 0.5, 0.6),
         case("local", "mpirun -np 2 mlp_ddp --sync-every 4", 2.0, 0.5),
         case("many", "mpirun -np 4 mlp_ddp", 1.0, 9.0, beyond=True),
         {"key": "unpredicted", "command": "mlp_single", "beyond_cores": False}]
second = [case("again", "mlp_single --dim 8", 1.2, 1.1)]


def gain(change, made_from, predicted, measured, width=0.01):
    if predicted is not None:
        predicted = {"median": predicted, "low": None, "high": None}
    return {"case": change, "change": change, "made_from": made_from, "step_s": None, "gain": predicted,
            "measured_gain": {"median": measured, "low": measured - width, "high": measured + width}}


gains = [gain("--delay-ms 0", "measured spans", 2.1, 2.0), gain("--batch-size 16", "ratio", 0.9, 1.2),
         gain("--threads 1", "ratio", 0.9, 1.0), gain("--precision bf16", "no rate", None, 2.0)]
with tempfile.TemporaryDirectory() as folder:
    files = []
    for name, cases in (("a", first), ("b", second)):
        files.append(f"{folder}/{name}.json")
        with open(files[-1], "w") as file:
            experiment = {"name": name, "cases": cases} | ({"gains": gains} if name == "b" else {})
            json.dump({"experiments": [experiment]}, file)
    sys.argv[1:] = files
    with contextlib.redirect_stdout(io.StringIO()) as out:
        predictions.main()
lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
# The two measurements of one command line count once, as 1.1 s. Local SGD is compared with its mean, 2 s.
assert "all 3 20.0 % 64.0 % 75.0 % 1 of 3, 33.3 %" in lines, out.getvalue()
assert any("above its fastest by 20.0 % (median of 1), 20.0 % at most." in line for line in lines), out.getvalue()
assert "zero1 1 20.0 % 20.0 % 20.0 % 1 of 2, 50.0 %" in lines, out.getvalue()
assert "local SGD 1 75.0 % 75.0 % 75.0 % 0 of 2, 0.0 %" in lines, out.getvalue()
assert "-75.0 % backward -1500.000 ms a: local" in lines, out.getvalue()
assert "a: many 1000.000 ms 9000.000 ms +800.0 % beyond the cores" in lines, out.getvalue()
assert not any("unpredicted" in line for line in lines)
# Of the gains, two are certain; of these the batch was predicted to lose.
assert "all 3 10.0 % 22.0 % 25.0 % 1 of 2, 50.0 %" in lines, out.getvalue()
assert "measured spans 1 5.0 % 5.0 % 5.0 % 1 of 1, 100.0 %" in lines, out.getvalue()
assert "-25.0 % 0.900x 1.200x --batch-size 16: mlp_single --dim 8" in lines, out.getvalue()
assert not any("bf16" in line for line in lines)
assert predictions.scheme_of("mpirun -np 4 mlp_ddp --tensor 2 --pipeline 2") == "ddp, tensor, pipeline"
assert predictions.scheme_of("mlp_dp --devices cpu,cpu --pipeline 2") == "stages of a process"
