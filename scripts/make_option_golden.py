#!/usr/bin/env python3
"""Writes tests/golden/options/*.json: short training runs of a newest PyTorch, one for each choice
of an option, for the tests to compare with within float32's rounding.

A run is told by the arguments of mlp_single that ask for the same, so a new choice is one line
here. The files hold the data of those runs that read files, the loss of every step and the
weights after the last.

  scripts/make_option_golden.py            write every file
  scripts/make_option_golden.py gelu       write the files whose names contain one of these words
"""

import json
import pathlib
import sys

sys.dont_write_bytecode = True
import torch  # noqa: E402

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "options"
SEED = 3
BATCH = 7

ACTIVATIONS = {
    "relu": torch.nn.ReLU,
    "gelu": torch.nn.GELU,
    "gelu-tanh": lambda: torch.nn.GELU(approximate="tanh"),
    "silu": torch.nn.SiLU,
    "tanh": torch.nn.Tanh,
    "sigmoid": torch.nn.Sigmoid,
    "leaky-relu": torch.nn.LeakyReLU,
}


class Run:
    """One training run. `arguments` are those of mlp_single beside the common ones."""

    def __init__(self, arguments, layers=(6, 9, 8, 4), steps=8, activation="relu", lr=1e-2):
        self.arguments = arguments
        self.layers, self.steps, self.activation, self.lr = layers, steps, activation, lr

    def model(self):
        modules = []
        for inputs, outputs in zip(self.layers, self.layers[1:]):
            modules += [torch.nn.Linear(inputs, outputs), ACTIVATIONS[self.activation]()]
        return torch.nn.Sequential(*modules[:-1])

    def __call__(self):
        torch.manual_seed(SEED)
        model = self.model()
        optimizer = torch.optim.Adam(model.parameters(), lr=self.lr)
        loss_of = torch.nn.MSELoss()
        losses = []
        for _ in range(self.steps):
            x, y = torch.randn(BATCH, self.layers[0]), torch.randn(BATCH, self.layers[-1])
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        common = ["--layers", ",".join(map(str, self.layers)), "--no-last-relu", "--seed", str(SEED),
                  "--batch-size", str(BATCH), "--steps", str(self.steps), "--lr", str(self.lr)]
        return {
            "made_with": f"torch {torch.__version__}",
            "arguments": common + self.arguments,
            "losses": losses,
            "parameters": {f"net.{name}": values.flatten().tolist()
                           for name, values in model.state_dict().items()},
        }


def all_runs():
    return {f"activation_{name}": Run(["--activation", name], activation=name)
            for name in ACTIVATIONS}


def main():
    torch.set_num_threads(1)
    GOLDEN.mkdir(exist_ok=True)
    words = sys.argv[1:]
    for name, run in all_runs().items():
        if words and not any(word in name for word in words):
            continue
        lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in run().items())
        (GOLDEN / f"{name}.json").write_text(f"{{\n{lines}\n}}\n")
        print(f"wrote {name}.json")


if __name__ == "__main__":
    main()
