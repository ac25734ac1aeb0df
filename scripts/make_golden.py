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


# The settings take effect when the libraries load, so they are set before the imports.
ARGUMENTS = parse_arguments()
SETTINGS = fixed_settings(ARGUMENTS.core)
if any(os.environ.get(name) != value for name, value in SETTINGS.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **SETTINGS})

sys.dont_write_bytecode = True
try:
    import torch
    import xxhash  # noqa: F401
except ImportError as missing:
    sys.exit(f"make_golden.py: error: module '{missing.name}': {sys.executable} does not find it; "
             f"install python3-{missing.name} and take /usr/bin/python3")

from golden_ddp import DdpRun, ddp_rules  # noqa: E402
from golden_runs import Run  # noqa: E402
from golden_streams import rng_cpu  # noqa: E402

torch.set_num_threads(1)


def made_with():
    """The settings of this process, as reported by the libraries."""
    torch.mm(torch.ones(8, 8), torch.ones(8, 8))
    maps = pathlib.Path("/proc/self/maps").read_text()
    libraries = {line.split()[-1] for line in maps.splitlines() if re.search(r"/lib\w*blas", line)}
    openblas = [path for path in sorted(libraries) if "openblas" in os.path.realpath(path)]
    if not openblas:
        sys.exit("make_golden.py: error: torch uses no OpenBLAS; install libopenblas0-pthread")
    blas = ctypes.CDLL(openblas[0])
    blas.openblas_get_config.restype = ctypes.c_char_p
    blas.openblas_get_corename.restype = ctypes.c_char_p
    core = blas.openblas_get_corename().decode()
    if core.lower() != ARGUMENTS.core.lower():
        sys.exit(f"make_golden.py: error: OPENBLAS_CORETYPE '{ARGUMENTS.core}': OpenBLAS runs the "
                 f"kernels of {core}; take a core that this processor and OpenBLAS know")
    capability = re.search(r"CPU capability usage: (\S+)", torch.__config__.show()).group(1)
    return {
        "torch": torch.__version__,
        "cpu_capability": capability,
        "threads": torch.get_num_threads(),
        "blas": blas.openblas_get_config().decode(),
        "blas_core": core,
        "OPENBLAS_CORETYPE": os.environ["OPENBLAS_CORETYPE"],
    }


def square(dim, depth):
    return [dim] * (depth + 1)


def all_files():
    """Maps each name to the function that produces the content."""
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
    files["clip_adam_d8_l2_b4_s0"] = Run(square(8, 2), 4, 6, 0, whole=True, clip_norm=0.6)
    for optimizer, clip_norm in {"adamw": 0.1, "sgd": 0.112}.items():
        files[f"clip_{optimizer}_d256_l3_b16_s0"] = Run(square(256, 3), 16, 10, 0,
                                                        optimizer=optimizer, clip_norm=clip_norm)
    files["ddp_rules"] = ddp_rules
    for world in (2, 3):
        files[f"ddp_w{world}"] = DdpRun(world, [12, 10, 10, 7], 12, 6, 0)
        files[f"ddp_w{world}_perrank"] = DdpRun(world, [12, 10, 10, 7], 12, 6, 3,
                                                per_rank_seed=True)
    return files


def compact(value, depth=0):
    """JSON with each list of plain values on one line."""
    if isinstance(value, dict):
        inner = ",\n".join(f'{" " * (depth + 1)}{json.dumps(key)}: {compact(item, depth + 1)}'
                           for key, item in value.items())
        return f'{{\n{inner}\n{" " * depth}}}' if depth < 3 else json.dumps(value)
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        inner = ",\n".join(" " * (depth + 1) + compact(item, depth + 1) for item in value)
        return f'[\n{inner}\n{" " * depth}]'
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def differences(old, new, place=""):
    """The differences between two JSON values, as text."""
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
    """Prints how the committed file differs; true if it does not differ."""
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
