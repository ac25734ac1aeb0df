"""The numbers that PyTorch's CPU generator draws, for the golden file rng_cpu."""

import numpy
import torch
import xxhash

from golden_values import hexadecimal, numbers, xxh3

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
    """Whole 32-bit words: a random float64 contains all bits of every second one."""
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
    """Several draws from one generator."""
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
        # After each randn, 4 values of rand show the generator's position.
        "randn_then_rand": [calls(seed, [("randn", size), ("rand", 4)]) for size in SIZES],
        "rand": [calls(seed, [("rand", size)]) for size in SIZES],
        "interleaved": [calls(seed, sequence) for sequence in INTERLEAVED],
        "uniform": [uniform(seed, *drawn) for drawn in UNIFORM_RANGES],
        "linear": [linear(seed, *shape) for shape in LINEAR_SHAPES],
        "randperm_10": permutation(seed, 10).tolist(),
        "randperm_5000_xxh3": xxh3(permutation(seed, 5000)),
    }


def untempered(word):
    """The state word from which MT19937 produces this output."""
    word ^= word >> 18
    word ^= (word << 15) & 0xEFC60000
    half = word
    for _ in range(4):
        half = word ^ ((half << 7) & 0x9D2C5680)
    whole = half
    for _ in range(2):
        whole = half ^ (whole >> 11)
    return whole


def generator_about_to_draw(outputs):
    """Puts words into torch's generator that seeds almost never produce."""
    torch.manual_seed(0)
    state = torch.get_rng_state()
    raw = state.numpy()
    raw[8:12].view(numpy.int32)[0] = 624  # words left
    raw[16:24].view(numpy.uint64)[0] = 0  # index of the next word
    raw[24:24 + 8 * len(outputs)].view(numpy.uint64)[:] = [untempered(word) for word in outputs]
    torch.set_rng_state(state)


def normal_edges():
    """randn of the smallest and largest radii, around the borders of octants and of the logarithm."""
    root_half = round((1 - 0.5**0.5) * 2**24)
    radii = [0, 1, 2**23, root_half - 1, root_half, root_half + 1, 2**24 - 2, 2**24 - 1]
    angles = [(octant * 2**21 + offset) % 2**24 for octant in range(8) for offset in (-1, 0, 1)]
    pairs = [(radius, angle) for radius in radii for angle in angles]
    blocks = [pairs[start:start + 8] for start in range(0, len(pairs), 8)]
    outputs = [pair[half] for block in blocks for half in (0, 1) for pair in block]
    generator_about_to_draw(outputs)
    if (torch.rand(len(outputs)) * 2**24).tolist() != outputs:
        raise ValueError("the generator's state is laid out differently")
    generator_about_to_draw(outputs)
    return {"low_24_bits": outputs, "randn": numbers(torch.randn(len(outputs)))}


def rng_cpu():
    return {"streams": [stream(seed) for seed in SEEDS], "normal_edges": normal_edges()}
