"""barestep: what a parallel training step takes, and why.

The programs are in this package and read and write files; these functions run them, return what they wrote, and show
it in a notebook.

    import barestep
    barestep.explain("trace.rank0.json.gz", "trace.rank1.json.gz")
    barestep.predict(machine="h200-nvlink", ranks=4, dim=8192, batch_size=64)
    barestep.run(["--dim", "256", "--depth", "3", "--steps", "20"])
"""

import html
import json
import os
import pathlib
import subprocess
import tempfile

__all__ = ["Error", "Explanation", "Prediction", "Run", "explain", "predict", "program", "run"]


class Error(Exception):
    """What a program printed on stderr; `code` is its exit code."""

    def __init__(self, text, code):
        super().__init__(text)
        self.code = code


def program(name):
    """The path of mlp_single or mlp_lab: of this package, or, for a build, of the folder that BARESTEP_BUILD names."""
    folder = os.environ.get("BARESTEP_BUILD")
    return str(pathlib.Path(folder) / name if folder else pathlib.Path(__file__).parent / "bin" / name)


def _output(name, arguments):
    done = subprocess.run([program(name), *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Error(done.stderr.strip(), done.returncode)
    return done.stdout


def _options(given):
    """{"batch_size": 64, "no_last_relu": True} as text: {"batch-size": "64", "no-last-relu": "true"}."""
    def text(value):
        if isinstance(value, bool):
            return str(value).lower()
        return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

    return {name.replace("_", "-"): text(value) for name, value in given.items() if value is not None}


def _table(columns, rows):
    def row(cells, tag):
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + row(columns, "th") + "".join(row(cells, "td") for cells in rows) + "</table>"


def _ms(seconds):
    return f"{1e3 * seconds:.4g} ms"


class _Shown:
    """Something with data: what the program wrote in JSON."""

    def __init__(self, data):
        self.data = data

    def __getitem__(self, key):
        return self.data[key]


class Explanation(_Shown):
    """results.json of docs/explain.md: accounts, waits, collectives, devices, fixes, pieces, answers, notes."""

    def __str__(self):
        return "\n".join([*self["answers"], *self["notes"]])

    def _repr_html_(self):
        parts = [name for name in self["accounts"][0]["parts_s"]] if self["accounts"] else []
        rows = [[each["rank"], each["step"], _ms(each["wall_s"]), *(_ms(each["parts_s"][name]) for name in parts)]
                for each in self["accounts"]]
        words = "".join(f"<p>{html.escape(line)}</p>" for line in str(self).splitlines())
        return words + _table(["rank", "step", "wall time", *parts], rows)


class Prediction(_Shown):
    """The answer of docs/explore.md: step_s, account, speed_ups, memory, messages, pictures. All of it is simulated."""

    def __str__(self):
        return self["headline"]

    def _repr_html_(self):
        account = _table(["part", "time", "share"], [[p["part"], p["time"], p["share"]] for p in self["account"]])
        rates = _table(["ranks", "step time", "samples/s", "speed-up"],
                       [[r["ranks"], _ms(r["step_s"]), f'{r["samples_per_s"]:.4g}', f'{r["speed_up"]:.2f}x']
                        for r in self["speed_ups"]])
        return f'<p>{html.escape(str(self))}</p>{account}{rates}{self["timeline_svg"]}'


class Run(_Shown):
    """A run of mlp_single: data is the list of records of its steps (docs/files.md), output what it printed."""

    def __init__(self, data, output):
        super().__init__(data)
        self.output = output

    @property
    def losses(self):
        return [each["loss"] for each in self.data if "loss" in each]

    def __str__(self):
        return self.output

    def _repr_html_(self):
        return f"<pre>{html.escape(self.output)}</pre>"


def explain(*traces, machine=None):
    """The account of a run from its traces, one for each rank. `machine`: the card to predict an MLP for."""
    more = ["--machine", machine] if machine else []
    return Explanation(json.loads(_output("mlp_lab", ["explain", *traces, "--json", *more])))


def predict(machine="h200-nvlink", ranks=1, memory=None, **options):
    """A step on another machine: a card's name or its content. Options are those of `mlp_lab predict`, with _ for -."""
    question = {"card": machine, "ranks": ranks, "options": _options(options)}
    if memory is not None:
        question["memory"] = str(memory)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "question.json"
        file.write_text(json.dumps(question), encoding="utf-8")
        return Prediction(json.loads(_output("mlp_lab", ["explore", "--question", file])))


def run(arguments):
    """Trains with mlp_single and these arguments."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "metrics.jsonl"
        output = _output("mlp_single", [*arguments, "--metrics", file])
        return Run([json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()], output)
