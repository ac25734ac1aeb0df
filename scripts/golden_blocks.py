#!/usr/bin/env python3
"""Writes some of tests/golden/attention/*.json, the losses of transformer blocks in PyTorch:

cuda_*.json with the numbers that its CUDA generator draws. No GPU is used: the generator is written here, by
Philox and cuRAND's Box-Muller transform, in float64, and rounded last. A GPU's sines are less exact, by 5e-6
at most.
bf16_tiny_*_b1_* and bf16_tiny_*_l1_* under torch.autocast with one sequence, and with sequences of one row.

  python3 scripts/golden_blocks.py     needs PyTorch 2 and NumPy
"""

import json
import math
import pathlib

import numpy
import torch

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "attention"
WORD = 2**32
THREADS = 256  # of a block; each draws four numbers, as far apart as there are threads


def philox4x32_10(counter, key):
    """The ten rounds of Salmon et al. 2011 on counters of four words, in arrays of uint64."""
    low = numpy.uint64(WORD - 1)
    for step in range(10):
        keys = [numpy.uint64((key[0] + step * 0x9E3779B9) % WORD),
                numpy.uint64((key[1] + step * 0xBB67AE85) % WORD)]
        first = counter[0] * numpy.uint64(0xD2511F53)
        second = counter[2] * numpy.uint64(0xCD9E8D57)
        shift = numpy.uint64(32)
        counter = [second >> shift ^ counter[1] ^ keys[0], second & low,
                   first >> shift ^ counter[3] ^ keys[1], first & low]
    return counter


class Generator:
    """torch.randn(..., device="cuda") after manual_seed, of fewer numbers than a GPU has threads."""

    def __init__(self, seed):
        self.seed, self.calls = seed, 0

    def randn(self, *shape):
        count = math.prod(shape)
        threads = -(-count // THREADS) * THREADS
        zero = numpy.zeros(threads, dtype=numpy.uint64)
        counter = [zero + numpy.uint64(self.calls), zero, numpy.arange(threads, dtype=numpy.uint64),
                   zero]
        words = philox4x32_10(counter, [self.seed % WORD, self.seed // WORD])
        self.calls += 1
        numbers = []
        for radius_word, angle_word in ((words[0], words[1]), (words[2], words[3])):
            radius = numpy.sqrt(-2 * numpy.log((radius_word + 0.5) / WORD))
            angle = 2 * math.pi * (angle_word + 0.5) / WORD
            numbers += [radius * numpy.sin(angle), radius * numpy.cos(angle)]
        flat = numpy.concatenate(numbers)[:count].astype(numpy.float32)
        return torch.from_numpy(flat).reshape(shape)


def losses_of(dim, heads, length, batch, blocks, ffn, causal, seed, steps, precision, draw=None):
    """The loss of each step, and the first numbers of x; torch.randn draws them unless `draw` does."""
    torch.manual_seed(seed)
    model = torch.nn.ModuleList(
        torch.nn.TransformerEncoderLayer(dim, heads, ffn, dropout=0, activation="gelu",
                                         norm_first=True, batch_first=True)
        for _ in range(blocks))
    mask = torch.nn.Transformer.generate_square_subsequent_mask(length) if causal else None
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    losses, first = [], []
    for _ in range(steps):
        x, y = ((draw or torch).randn(batch, length, dim) for _ in range(2))
        first = first or x.flatten()[:8].tolist()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            for block in model:
                x = block(x, src_mask=mask, is_causal=causal)
            loss = torch.nn.functional.mse_loss(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, first


def write(name, draw=None, **shape):
    shape = {**shape, "steps": 10}
    golden = {"torch": torch.__version__, **shape}
    golden["losses"], golden["x_first8"] = losses_of(**shape, draw=draw)
    if not draw:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            golden["losses_math_kernel"], _ = losses_of(**shape)
    (GOLDEN / f"{name}.json").write_text(json.dumps(golden) + "\n")
    print(f"wrote {name}.json")


def main():
    torch.set_num_threads(1)
    for seed in (0, 1):
        for causal in (False, True):
            write(f"cuda_{'causal_' if causal else ''}d64_h4_l16_b4_n2_s{seed}", Generator(seed),
                  dim=64, heads=4, length=16, batch=4, blocks=2, ffn=256, causal=causal,
                  precision="float32", seed=seed)
    for length, batch in ((4, 1), (1, 2)):
        write(f"bf16_tiny_d16_h2_l{length}_b{batch}_n1_s0", dim=16, heads=2, length=length, batch=batch,
              blocks=1, ffn=64, causal=False, precision="bfloat16", seed=0)


if __name__ == "__main__":
    main()
