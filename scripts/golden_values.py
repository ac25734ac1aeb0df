"""The format in which golden files store tensors."""

import numpy
import xxhash


def little_endian(tensor):
    array = tensor.detach().contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def xxh3(tensor):
    return xxhash.xxh3_64_hexdigest(little_endian(tensor))


def numbers(tensor):
    """The values, flat, as decimals that read back to the same float32, even through a double."""
    array = tensor.detach().contiguous().numpy().reshape(-1)
    values = [float(str(value)) for value in array]
    if numpy.array(values, dtype=numpy.float32).tobytes() != array.tobytes():
        raise ValueError("a decimal does not read back to its float32")
    return values


def hexadecimal(tensor):
    return [value.hex() for value in tensor.tolist()]
