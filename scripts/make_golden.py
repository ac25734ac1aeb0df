#!/usr/bin/python3
"""Writes tests/golden/*.json: what PyTorch computes, for the tests to compare with.

Made for Debian 12's python3-torch (1.13) with python3-xxhash and OpenBLAS. Every file names the
settings it was made under. Bits of products depend on the BLAS kernels, so the script fixes those
(OPENBLAS_CORETYPE=Haswell) and one thread, by starting itself anew with them set.

  scripts/make_golden.py                write every file
  scripts/make_golden.py tiny opt       write the files whose names contain one of these words
  scripts/make_golden.py --check        write nothing; say how committed files differ, exit 1 if so
  scripts/make_golden.py --check --core SkylakeX    the same with other BLAS kernels

Tensors are float32 lists (shortest decimals that read back to the same float32) or XXH3-64 hashes
of their little-endian bytes. Losses stand there as decimals of the float64 that loss.item() gives
and as float.hex().
"""

import argparse
import ctypes
import json
import os
import pathlib
import re
import sys

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"


def fixed_settings(core):
    return {
        "OPENBLAS_CORETYPE": core,
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "ATEN_CPU_CAPABILITY": "avx2",
    }


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only the files whose names contain one of these")
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    parser.add_argument("--core", default="Haswell", help="OPENBLAS_CORETYPE (Haswell)")
    arguments = parser.parse_args()
    if arguments.core != "Haswell" and not arguments.check:
        parser.error("the committed files are made with Haswell kernels; --core needs --check")
    return arguments


# The settings count when the libraries load, hence before the imports.
ARGUMENTS = parse_arguments()
SETTINGS = fixed_settings(ARGUMENTS.core)
if any(os.environ.get(name) != value for name, value in SETTINGS.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **SETTINGS})

import numpy  # noqa: E402
import torch  # noqa: E402
import xxhash  # noqa: E402

torch.set_num_threads(1)


def made_with():
    """The settings of this process, as the libraries report them."""
    torch.mm(torch.ones(8, 8), torch.ones(8, 8))
    maps = pathlib.Path("/proc/self/maps").read_text()
    libraries = {line.split()[-1] for line in maps.splitlines() if re.search(r"/lib\w*blas", line)}
    openblas = [path for path in sorted(libraries) if "openblas" in os.path.realpath(path)]
    if not openblas:
        sys.exit("make_golden.py: error: torch uses no OpenBLAS; install libopenblas0-pthread")
    blas = ctypes.CDLL(openblas[0])
    blas.openblas_get_config.restype = ctypes.c_char_p
    blas.openblas_get_corename.restype = ctypes.c_char_p
    capability = re.search(r"CPU capability usage: (\S+)", torch.__config__.show()).group(1)
    return {
        "torch": torch.__version__,
        "cpu_capability": capability,
        "threads": torch.get_num_threads(),
        "blas": blas.openblas_get_config().decode(),
        "blas_core": blas.openblas_get_corename().decode(),
        "OPENBLAS_CORETYPE": os.environ["OPENBLAS_CORETYPE"],
    }


# ---- values ----


def little_endian(tensor):
    array = tensor.detach().contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def xxh3(tensor):
    return xxhash.xxh3_64_hexdigest(little_endian(tensor))


def numbers(tensor):
    """The values, flat, as decimals that read back to the same float32, also by way of a double."""
    array = tensor.detach().contiguous().numpy().reshape(-1)
    values = [float(str(value)) for value in array]
    if numpy.array(values, dtype=numpy.float32).tobytes() != array.tobytes():
        raise ValueError("a decimal does not read back to its float32")
    return values


def hexadecimal(tensor):
    return [value.hex() for value in tensor.tolist()]


# ---- random streams ----

SEEDS = [0, 1, 2, 42, 1234567890123, 2**32 + 5, 2**63 + 11, -1]
SIZES = [*range(1, 16), 16, 17, 31, 33, 100, 1000, 4099]
UNIFORM_RANGES = [(-0.3, 0.7, 1000), (-1.0 / 28.0, 1.0 / 28.0, 784), (5.0, 1e6, 17)]
LINEAR_SHAPES = [(4, 3), (784, 128), (1000, 7), (256, 256)]
INTERLEAVED = [
    [("randn", 3), ("randn", 16), ("randn", 3), ("rand", 4)],
    [("randn", 40), ("rand", 4), ("randn", 1), ("randn", 33), ("randn", 15), ("rand", 7)],
    [("rand", 625), ("randn", 5), ("randperm", 10), ("randn", 2), ("randn", 1000), ("randn", 8)],
    [("randn", 2), ("rand", 3), ("randn", 4099), ("randn", 3), ("randperm", 700), ("randn", 2)],
]
DRAWS = {"rand": torch.rand, "randn": torch.randn, "randperm": torch.randperm}


def words(seed, count):
    """Whole 32-bit words: a random float64 shows all bits of every second one."""
    torch.manual_seed(seed)
    draws = torch.rand(count, dtype=torch.float64).numpy() * 2.0**53
    return (draws.astype(numpy.uint64) & numpy.uint64(0xFFFFFFFF)).astype(numpy.uint32)


def linear(seed, inputs, outputs):
    torch.manual_seed(seed)
    layer = torch.nn.Linear(inputs, outputs)
    return {
        "inputs": inputs,
        "outputs": outputs,
        "weight": xxh3(layer.weight),
        "bias": xxh3(layer.bias),
    }


def uniform(seed, low, high, size):
    torch.manual_seed(seed)
    drawn = torch.empty(size).uniform_(low, high)
    return {"low": low.hex(), "high": high.hex(), "size": size, "xxh3": xxh3(drawn)}


def calls(seed, sequence):
    """One generator, several draws."""
    torch.manual_seed(seed)
    return [{"draw": draw, "size": n, "xxh3": xxh3(DRAWS[draw](n))} for draw, n in sequence]


def first_values(seed, draw, size):
    torch.manual_seed(seed)
    return hexadecimal(draw(size))


def permutation(seed, size):
    torch.manual_seed(seed)
    return torch.randperm(size)


def stream(seed):
    return {
        "seed": str(seed),
        "every_second_word": [int(word) for word in words(seed, 8)],
        "every_second_word_of_2000_xxh3": xxhash.xxh3_64_hexdigest(words(seed, 1000).tobytes()),
        "rand_8": first_values(seed, torch.rand, 8),
        "randn_8": first_values(seed, torch.randn, 8),
        "randn_40": first_values(seed, torch.randn, 40),
        # After each randn, 4 of rand show where the generator stands.
        "randn_then_rand": [calls(seed, [("randn", size), ("rand", 4)]) for size in SIZES],
        "rand": [calls(seed, [("rand", size)]) for size in SIZES],
        "interleaved": [calls(seed, sequence) for sequence in INTERLEAVED],
        "uniform": [uniform(seed, *drawn) for drawn in UNIFORM_RANGES],
        "linear": [linear(seed, *shape) for shape in LINEAR_SHAPES],
        "randperm_10": permutation(seed, 10).tolist(),
        "randperm_5000_xxh3": xxh3(permutation(seed, 5000)),
    }


def rng_cpu():
    return {"streams": [stream(seed) for seed in SEEDS]}


# ---- training ----

OPTIMIZERS = {
    "adam": (torch.optim.Adam, {"lr": 1e-3}),
    "adam_wd": (torch.optim.Adam, {"lr": 1e-3, "weight_decay": 1e-2}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 1e-2}),
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
}


class Mlp(torch.nn.Module):
    """Linear and ReLU in turn; its parameters are net.0.weight, net.0.bias, net.2.weight, ..."""

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
    """All numbers of one step, after it."""
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
    """One training run: the practical's script with a seed, and what to note of it."""

    def __init__(self, layers, batch, steps, seed, last_relu=True, zero_grad=True,
                 optimizer="adam", loss="mse", whole=False):
        self.layers, self.batch, self.steps, self.seed = layers, batch, steps, seed
        self.last_relu, self.zero_grad, self.whole = last_relu, zero_grad, whole
        self.optimizer, self.loss = optimizer, loss

    def header(self):
        names = ["layers", "batch", "steps", "seed", "last_relu", "zero_grad", "loss"]
        kind, options = OPTIMIZERS[self.optimizer]
        return {name: getattr(self, name) for name in names} | {
            "optimizer": {"name": kind.__name__.lower(), **options}}

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
        losses, x_hashes, y_hashes, whole_steps = [], [], [], []
        for _ in range(self.steps):
            x, y = torch.randn(self.batch, self.layers[0]), self.target()
            if self.zero_grad:
                optimizer.zero_grad()
            out = model(x)
            loss = loss_of(out, y)
            loss.backward()
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
        }
        return record | ({"initial": values, "each_step": whole_steps} if self.whole else {})


def square(dim, depth):
    return [dim] * (depth + 1)


def all_files():
    """Name to the function that makes the content."""
    files = {"rng_cpu": rng_cpu}
    for seed in (0, 1):
        for dim, depth, batch in ((256, 3, 16), (1024, 2, 64)):
            name = f"mlp_d{dim}_l{depth}_b{batch}_s{seed}"
            shape = (square(dim, depth), batch, 10, seed)
            files[name] = Run(*shape)
            files[f"{name}_nolastrelu"] = Run(*shape, last_relu=False)
            files[f"{name}_nozerograd"] = Run(*shape, zero_grad=False)
        tiny = (square(8, 2), 4, 3, seed)
        files[f"tiny_d8_l2_b4_s{seed}"] = Run(*tiny, whole=True)
        files[f"tiny_d8_l2_b4_s{seed}_nolastrelu"] = Run(*tiny, last_relu=False, whole=True)
    files["long500_d256_l3_b16_s0"] = Run(square(256, 3), 16, 500, 0)
    files["ce_tiny"] = Run([12, 10, 7], 5, 4, 0, last_relu=False, loss="cross_entropy", whole=True)
    for optimizer in ("adam_wd", "adamw", "sgd", "sgd_momentum"):
        files[f"opt_{optimizer}_d256_l3_b16_s0"] = Run(square(256, 3), 16, 10, 0,
                                                       optimizer=optimizer)
    return files


# ---- files ----


def compact(value, depth=0):
    """JSON in which each list of plain values stands on one line."""
    if isinstance(value, dict):
        inner = ",\n".join(f'{" " * (depth + 1)}{json.dumps(key)}: {compact(item, depth + 1)}'
                           for key, item in value.items())
        return f'{{\n{inner}\n{" " * depth}}}' if depth < 3 else json.dumps(value)
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        inner = ",\n".join(" " * (depth + 1) + compact(item, depth + 1) for item in value)
        return f'[\n{inner}\n{" " * depth}]'
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def differences(old, new, place=""):
    """The places where two JSON values differ, as text."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in list(old) + [key for key in new if key not in old]:
            missing = object()
            pair = old.get(key, missing), new.get(key, missing)
            if missing in pair:
                yield f"{place}.{key}: only {'regenerated' if pair[0] is missing else 'committed'}"
            else:
                yield from differences(*pair, f"{place}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, pair in enumerate(zip(old, new)):
            yield from differences(*pair, f"{place}[{i}]")
    elif old != new:
        yield f"{place}: committed {json.dumps(old)[:60]}, regenerated {json.dumps(new)[:60]}"


def check(path, text):
    """Prints how the committed file differs; true if it does not."""
    if not path.exists():
        print(f"{path.name}: not there")
        return False
    found = list(differences(json.loads(path.read_text()), json.loads(text)))
    for line in found[:10]:
        print(f"{path.name}{line}")
    if len(found) > 10:
        print(f"{path.name}: and {len(found) - 10} more differences")
    return not found


def main():
    settings = made_with()
    print("settings: " + ", ".join(f"{name} {value}" for name, value in settings.items()))
    chosen = {name: make for name, make in all_files().items()
              if not ARGUMENTS.words or any(word in name for word in ARGUMENTS.words)}
    if not chosen:
        sys.exit("make_golden.py: error: no golden file has such a name")
    GOLDEN.mkdir(parents=True, exist_ok=True)
    equal = 0
    for name, make in chosen.items():
        path = GOLDEN / f"{name}.json"
        text = compact({"made_with": settings} | make()) + "\n"
        if ARGUMENTS.check:
            equal += check(path, text)
        else:
            path.write_text(text)
            print(f"wrote {path.name}, {len(text)} bytes")
    if ARGUMENTS.check:
        print(f"{equal} of {len(chosen)} files equal")
        sys.exit(0 if equal == len(chosen) else 1)


if __name__ == "__main__":
    main()
