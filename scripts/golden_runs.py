"""Training runs in PyTorch, for the golden files of losses and parameters."""

import torch

from golden_values import numbers, xxh3

OPTIMIZERS = {
    "adam": (torch.optim.Adam, {"lr": 1e-3}),
    "adam_wd": (torch.optim.Adam, {"lr": 1e-3, "weight_decay": 1e-2}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 1e-2}),
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
}


class Mlp(torch.nn.Module):
    """Alternating Linear and ReLU; the parameters are net.0.weight, net.0.bias, net.2.weight, ..."""

    def __init__(self, layers, last_relu):
        super().__init__()
        modules = []
        for inputs, outputs in zip(layers, layers[1:]):
            modules += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
        self.net = torch.nn.Sequential(*(modules if last_relu else modules[:-1]))

    def forward(self, x):
        return self.net(x)


def by_name(model, values):
    return {name: numbers(value) for (name, _), value in zip(model.named_parameters(), values)}


def everything(model, optimizer, x, out):
    """All numbers of one step, recorded after it."""
    parameters = list(model.parameters())
    step = {
        "x": numbers(x),
        "out": numbers(out),
        "gradients": by_name(model, [parameter.grad for parameter in parameters]),
        "parameters": by_name(model, parameters),
    }
    for name, key in {"m": "exp_avg", "v": "exp_avg_sq"}.items():
        step[name] = by_name(model, [optimizer.state[parameter][key] for parameter in parameters])
    return step


class Run:
    """One training run: the usual PyTorch training script with a seed, and what to record of it."""

    def __init__(self, layers, batch, steps, seed, last_relu=True, zero_grad=True,
                 optimizer="adam", loss="mse", whole=False, clip_norm=None):
        self.layers, self.batch, self.steps, self.seed = layers, batch, steps, seed
        self.last_relu, self.zero_grad, self.whole = last_relu, zero_grad, whole
        self.optimizer, self.loss, self.clip_norm = optimizer, loss, clip_norm

    def header(self):
        names = ["layers", "batch", "steps", "seed", "last_relu", "zero_grad", "loss"]
        kind, options = OPTIMIZERS[self.optimizer]
        return {name: getattr(self, name) for name in names} | {
            "optimizer": {"name": kind.__name__.lower(), **options}} | (
            {} if self.clip_norm is None else {"clip_norm": self.clip_norm})

    def target(self):
        if self.loss == "mse":
            return torch.randn(self.batch, self.layers[-1])
        return torch.randint(0, self.layers[-1], (self.batch,))

    def __call__(self):
        torch.manual_seed(self.seed)
        model = Mlp(self.layers, self.last_relu)
        kind, options = OPTIMIZERS[self.optimizer]
        optimizer = kind(model.parameters(), **options)
        loss_of = torch.nn.MSELoss() if self.loss == "mse" else torch.nn.CrossEntropyLoss()
        shapes = {name: list(p.shape) for name, p in model.named_parameters()}
        initial = {name: xxh3(p) for name, p in model.named_parameters()}
        values = by_name(model, model.parameters()) if self.whole else None
        losses, x_hashes, y_hashes, whole_steps, norms = [], [], [], [], []
        for _ in range(self.steps):
            x, y = torch.randn(self.batch, self.layers[0]), self.target()
            if self.zero_grad:
                optimizer.zero_grad()
            out = model(x)
            loss = loss_of(out, y)
            loss.backward()
            if self.clip_norm is not None:
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), self.clip_norm)
                norms.append(norm.item())
            optimizer.step()
            losses.append(loss.item())
            x_hashes.append(xxh3(x))
            y_hashes.append(xxh3(y))
            if self.whole:
                target = numbers(y) if self.loss == "mse" else y.tolist()
                whole_steps.append(everything(model, optimizer, x, out) | {"y": target})
        final = {name: xxh3(p) for name, p in model.named_parameters()}
        record = self.header() | {
            "parameters": [{"name": name, "shape": shapes[name], "initial_xxh3": initial[name],
                            "final_xxh3": final[name]} for name in shapes],
            "losses": losses,
            "losses_hex": [value.hex() for value in losses],
            "x_xxh3": x_hashes,
            "y_xxh3": y_hashes,
        } | ({"norms": norms} if norms else {})
        return record | ({"initial": values, "each_step": whole_steps} if self.whole else {})
