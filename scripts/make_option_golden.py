#!/usr/bin/env python3
"""Writes tests/golden/options/*.json: short training runs of the newest PyTorch, one for each choice of an
option, which the tests compare with within float32's rounding.

A run is described by the equivalent arguments of mlp_single, so a new choice is one line here. The files
hold the data of runs that read files, the loss of every step, and the final weights.

  scripts/make_option_golden.py            write every file
  scripts/make_option_golden.py gelu       write the files whose names contain one of these words
"""

import json
import pathlib
import sys
from functools import partial

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


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, algorithm 2, written as PyTorch would."""

    def __init__(self, parameters, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                mean = state.setdefault("exp_avg", torch.zeros_like(parameter))
                update = (mean * beta1).add_(parameter.grad, alpha=1 - beta1).sign_()
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"])
                mean.mul_(beta2).add_(parameter.grad, alpha=1 - beta2)


def philox4x32_10(counter, key):
    """The ten rounds of Salmon et al. 2011 on one counter of four words, with a two-word key."""
    word = (1 << 32) - 1
    for _ in range(10):
        products = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [products[1] >> 32 ^ counter[1] ^ key[0], products[1] & word,
                   products[0] >> 32 ^ counter[3] ^ key[1], products[0] & word]
        key = [(key[0] + 0x9E3779B9) & word, (key[1] + 0xBB67AE85) & word]
    return counter


class Dropout(torch.nn.Module):
    """torch.nn.Dropout with masks by seed, step, layer, row of the step and column. It contains the module
    that it follows, so the names of weights are the same as without it."""

    def __init__(self, activation, rate, layer):
        super().__init__()
        self.activation, self.rate, self.layer, self.step = activation, rate, layer, 0

    def mask(self, rows, cols):
        key = [SEED & 0xFFFFFFFF, SEED >> 32]
        quarter = (cols + 3) // 4
        words = [philox4x32_10([col % quarter, row, self.layer, self.step], key)[col // quarter]
                 for row in range(rows) for col in range(cols)]
        kept = torch.tensor(words).reshape(rows, cols) >= int(self.rate * 2**32)
        return kept / (1 - self.rate)

    def forward(self, x):
        x = self.activation(x)
        if not self.training:
            return x
        self.step += 1
        return x * self.mask(*x.shape)


class Run:
    """One training run. `arguments` are mlp_single's, in addition to the common ones."""

    def __init__(self, arguments, layers=(6, 9, 8, 4), steps=8, activation="relu", lr=1e-2,
                 loss_of=torch.nn.MSELoss(), optimizer=torch.optim.Adam,
                 scheduler=None, dropout=0.0, dtype=torch.float32):
        self.arguments, self.loss_of, self.optimizer = arguments, loss_of, optimizer
        self.scheduler, self.dropout, self.dtype = scheduler, dropout, dtype
        self.layers, self.steps, self.activation, self.lr = layers, steps, activation, lr

    def model(self):
        modules = []
        for layer, (inputs, outputs) in enumerate(zip(self.layers, self.layers[1:])):
            activation = ACTIVATIONS[self.activation]()
            if self.dropout:
                activation = Dropout(activation, self.dropout, layer)
            modules += [torch.nn.Linear(inputs, outputs), activation]
        return torch.nn.Sequential(*modules[:-1])

    def batches(self):
        """x and y of every step: fresh random numbers."""
        for _ in range(self.steps):
            yield torch.randn(BATCH, self.layers[0]), torch.randn(BATCH, self.layers[-1])

    def shape(self):
        return ["--batch-size", str(BATCH), "--steps", str(self.steps)]

    def after_step(self, step, model):
        """Called after each step."""

    def record(self):
        """The contents of the file apart from losses and weights."""
        return {}

    def __call__(self):
        torch.manual_seed(SEED)
        model = self.model()
        optimizer = self.optimizer(model.parameters(), lr=self.lr)
        scheduler = self.scheduler(optimizer) if self.scheduler else None
        scaler = torch.amp.GradScaler("cpu", enabled=self.dtype == torch.float16)
        losses, rates = [], []
        for step, (x, y) in enumerate(self.batches()):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.zero_grad()
            with torch.autocast("cpu", self.dtype, enabled=self.dtype != torch.float32):
                loss = self.loss_of(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if scheduler:
                scheduler.step()
            losses.append(loss.item())
            self.after_step(step, model)
        common = ["--layers", ",".join(map(str, self.layers)), "--no-last-relu", "--seed", str(SEED),
                  "--lr", str(self.lr)] + self.shape()
        return {
            "made_with": f"torch {torch.__version__}",
            "arguments": common + self.arguments,
            "losses": losses,
            "rates": rates,
            "parameters": {f"net.{name}": values.flatten().tolist()
                           for name, values in model.state_dict().items()},
        } | self.record()


class FileRun(Run):
    """Two epochs over samples from files, the last quarter of which is the test set."""

    TRAIN, TEST, BATCH, EPOCHS = 24, 8, 6, 2

    def __init__(self, arguments, target, shuffle=True, standardize=False, **others):
        super().__init__(arguments, **others)
        generator = torch.Generator().manual_seed(11)
        samples = self.TRAIN + self.TEST
        self.x = torch.randn(samples, self.layers[0], generator=generator)
        self.y = target(samples, self.layers[-1], generator)
        self.shuffle = shuffle
        self.inputs = self.x  # the model's input
        if standardize:
            self.x = 3 * self.x + torch.arange(float(self.layers[0]))
            deviations, means = torch.std_mean(self.x[:self.TRAIN], 0, correction=0)
            self.inputs = (self.x - means) / deviations
        self.evaluations = []

    def batches(self):
        for epoch in range(self.EPOCHS):
            order = torch.arange(self.TRAIN)
            if self.shuffle:
                order = torch.randperm(self.TRAIN,
                                       generator=torch.Generator().manual_seed(SEED + epoch))
            for rows in order.split(self.BATCH):
                yield self.inputs[rows], self.y[rows]

    def shape(self):
        share = self.TEST / (self.TRAIN + self.TEST)
        return ["--batch-size", str(self.BATCH), "--epochs", str(self.EPOCHS),
                "--test-split", str(share)]

    def after_step(self, step, model):
        if (step + 1) % (self.TRAIN // self.BATCH) != 0:
            return
        x, y = self.inputs[self.TRAIN:], self.y[self.TRAIN:]
        model.eval()
        with torch.no_grad():
            out = model(x)
        model.train()
        found = {"loss": self.loss_of(out, y).item()}
        if "cross-entropy" in self.arguments:
            found["accuracy"] = (out.argmax(1) == y).double().mean().item()
        elif "bce" in self.arguments:
            found["accuracy"] = ((out > 0) == (y > 0.5)).double().mean().item()
        else:
            # As sklearn's r2_score: the mean over the outputs.
            distances = (y - y.mean(0)).square().sum(0)
            found["r2"] = (1 - (out - y).square().sum(0) / distances).mean().item()
            found["mean_absolute_error"] = (out - y).abs().mean().item()
        self.evaluations.append(found)

    def record(self):
        return {"x": self.x.flatten().tolist(), "y": self.y.flatten().tolist(),
                "samples": len(self.x), "steps_of_epoch": self.TRAIN // self.BATCH,
                "evaluations": self.evaluations}


def numbers(samples, outputs, generator):
    return 2 * torch.randn(samples, outputs, generator=generator)


def classes(samples, outputs, generator):
    return torch.randint(0, outputs, (samples,), generator=generator)


def bits(samples, outputs, generator):
    return torch.randint(0, 2, (samples, outputs), generator=generator).float()


def all_runs():
    runs = {f"activation_{name}": Run(["--activation", name], activation=name)
            for name in ACTIVATIONS}
    runs["loss_mse"] = FileRun(["--loss", "mse"], numbers)
    # SGD, because its gradients cancel and Adam would turn rounding errors into full steps.
    runs["loss_l1"] = FileRun(["--loss", "l1", "--optimizer", "sgd"], numbers,
                              loss_of=torch.nn.L1Loss(), optimizer=torch.optim.SGD)
    runs["loss_huber"] = FileRun(["--loss", "huber"], numbers, loss_of=torch.nn.HuberLoss())
    runs["loss_cross-entropy"] = FileRun(["--loss", "cross-entropy"], classes,
                                         loss_of=torch.nn.CrossEntropyLoss())
    runs["loss_smoothed"] = FileRun(["--loss", "cross-entropy", "--label-smoothing", "0.1"], classes,
                                    loss_of=torch.nn.CrossEntropyLoss(label_smoothing=0.1))
    runs["loss_bce"] = FileRun(["--loss", "bce"], bits, layers=(6, 9, 8, 1),
                               loss_of=torch.nn.BCEWithLogitsLoss())
    for activation, rate in (("relu", 0.5), ("tanh", 0.3), ("sigmoid", 0.1), ("gelu", 0.2)):
        runs[f"dropout_{activation}"] = Run(
            ["--activation", activation, "--dropout", str(rate)], activation=activation,
            dropout=rate)
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        for activation, rate in (("tanh", 0.3), ("sigmoid", 0.0), ("sigmoid", 0.1)):
            arguments = ["--precision", name, "--activation", activation]
            runs[f"{name}_{'dropout_' if rate else ''}{activation}"] = Run(
                arguments + (["--dropout", str(rate)] if rate else []), activation=activation,
                dropout=rate, dtype=dtype)
    runs["dropout_files"] = FileRun(["--dropout", "0.25"], numbers, dropout=0.25)
    runs["data_no_shuffle"] = FileRun(["--no-shuffle"], numbers, shuffle=False)
    runs["data_standardize"] = FileRun(["--standardize"], numbers, standardize=True)
    optim = torch.optim
    for name, arguments, optimizer in (
            ("adam", ["adam"], optim.Adam),
            ("adam_amsgrad", ["adam", "--amsgrad"], partial(optim.Adam, amsgrad=True)),
            ("adamw", ["adamw"], optim.AdamW),
            ("adamw_amsgrad", ["adamw", "--amsgrad"], partial(optim.AdamW, amsgrad=True)),
            ("sgd", ["sgd", "--momentum", "0.9", "--nesterov"],
             partial(optim.SGD, momentum=0.9, nesterov=True)),
            ("rmsprop", ["rmsprop"], optim.RMSprop),
            ("rmsprop_all", ["rmsprop", "--momentum", "0.9", "--weight-decay", "0.1"],
             partial(optim.RMSprop, momentum=0.9, weight_decay=0.1)),
            ("adagrad", ["adagrad"], optim.Adagrad),
            ("adagrad_decay", ["adagrad", "--weight-decay", "0.1"],
             partial(optim.Adagrad, weight_decay=0.1)),
            ("lion", ["lion"], Lion),
            ("lion_all", ["lion", "--betas", "0.8,0.95", "--weight-decay", "0.1"],
             partial(Lion, betas=(0.8, 0.95), weight_decay=0.1))):
        # tanh has no flat regions, in which gradients are 0 and rounding decides the signs.
        runs[f"optimizer_{name}"] = Run(["--activation", "tanh", "--optimizer"] + arguments,
                                        activation="tanh", optimizer=optimizer)
    rates = optim.lr_scheduler
    for name, arguments, scheduler in (
            ("linear", ["linear", "--lr-min", "0.002"],
             lambda o: rates.LinearLR(o, 1, 0.2, total_iters=8)),
            ("cosine", ["cosine", "--lr-min", "0.001"],
             lambda o: rates.CosineAnnealingLR(o, 8, eta_min=0.001)),
            ("step", ["step", "--lr-step", "3", "--lr-gamma", "0.5"],
             lambda o: rates.StepLR(o, 3, gamma=0.5)),
            ("warmup_cosine", ["cosine", "--lr-warmup", "3"],
             lambda o: rates.SequentialLR(
                 o, [rates.LinearLR(o, 1 / 3, 1, total_iters=2), rates.CosineAnnealingLR(o, 5)],
                 milestones=[3]))):
        runs[f"lr_{name}"] = Run(["--lr-schedule"] + arguments, scheduler=scheduler)
    return runs


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
