"""torch_weights.py MODEL X Y OURS THEIRS: exchanges weights between barestep and PyTorch.

MODEL is the widths of an MLP, and X and Y are images and labels in idx files; or it is
transformer:DIM,HEADS,LENGTH,FFN,DEPTH, and they are npy files of rows of LENGTH x DIM numbers. Loads OURS, a
safetensors file of mlp_single's, into the same model in PyTorch by load_state_dict, and prints its loss and
accuracy; writes THEIRS, fresh weights of that model, and prints theirs.
Exits with 77 where PyTorch is not installed. The format is read and written here, by its specification,
so that nothing else need be installed.
"""
import ast
import gzip
import json
import struct
import sys

try:
    import torch
except ImportError:
    print("PyTorch is not installed")
    sys.exit(77)


class MLP(torch.nn.Module):
    def __init__(self, widths):
        super().__init__()
        layers = []
        for fan_in, fan_out in zip(widths, widths[1:]):
            layers += [torch.nn.Linear(fan_in, fan_out), torch.nn.ReLU()]
        self.net = torch.nn.Sequential(*layers[:-1])

    def forward(self, x):
        return self.net(x)


class Transformer(torch.nn.Module):
    def __init__(self, dim, heads, length, ffn, depth):
        super().__init__()
        self.shape = (-1, length, dim)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(dim, heads, ffn, dropout=0, activation="gelu", batch_first=True,
                                             norm_first=True) for _ in range(depth))

    def forward(self, x):
        y = x.view(self.shape)
        for layer in self.layers:
            y = layer(y)
        return y.flatten(1)


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    state = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        dtype = {"F32": torch.float32, "U8": torch.uint8}[entry["dtype"]]
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        state[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=dtype).view(entry["shape"])
    return state


def write_safetensors(path, state):
    header, values = {}, b""
    for name, tensor in state.items():
        raw = tensor.detach().contiguous().numpy().tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [len(values), len(values) + len(raw)],
        }
        values += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + values)


def read_idx(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        data = file.read()
    dims = struct.unpack(f">{data[3]}I", data[4 : 4 + 4 * data[3]])
    return torch.frombuffer(bytearray(data[4 + 4 * data[3] :]), dtype=torch.uint8).view(dims)


def read_npy(path):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<H", data[8:10])
    shape = ast.literal_eval(data[10 : 10 + length].decode())["shape"]
    return torch.frombuffer(bytearray(data[10 + length :]), dtype=torch.float32).view(shape)


def say(model, x, y):
    with torch.no_grad():
        output = model(x)
        if y.is_floating_point():
            return print(f"{torch.nn.functional.mse_loss(output, y).item()!r}")
        loss = torch.nn.functional.cross_entropy(output, y)
        correct = (output.argmax(1) == y).sum()
    print(f"{loss.item()!r} {100 * correct.item() / len(y):.2f}%")


def main():
    name, x, y, ours, theirs = sys.argv[1:]
    kind, _, numbers = name.rpartition(":")
    sizes = [int(number) for number in numbers.split(",")]
    if kind == "transformer":
        new_model = lambda: Transformer(*sizes)
        x, y = read_npy(x), read_npy(y)
    else:
        new_model = lambda: MLP(sizes)
        x, y = read_idx(x).flatten(1).float() / 255, read_idx(y).long()
    model = new_model()
    model.load_state_dict(read_safetensors(ours))
    say(model, x, y)

    torch.manual_seed(7)
    model = new_model()
    write_safetensors(theirs, model.state_dict())
    say(model, x, y)


if __name__ == "__main__":
    main()
