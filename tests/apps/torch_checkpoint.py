"""torch_checkpoint.py CHECKPOINT STEPS: PyTorch continues from a checkpoint of mlp_single.

Loads the weights, Adam's state and the random stream of a run on random data without a last ReLU, trains
STEPS more steps with batches of 8, and prints their losses. Exits with 77 if PyTorch is not installed.
"""
import re
import sys

from torch_weights import MLP, read_safetensors, torch


def main():
    path, steps = sys.argv[1], int(sys.argv[2])
    state = read_safetensors(path)
    weights = {name: tensor for name, tensor in state.items() if name.startswith("net.")}
    layers = [tensor for name, tensor in weights.items() if name.endswith(".weight")]
    width = layers[0].shape[1]
    model = MLP([width] * (len(layers) + 1))
    model.load_state_dict(weights)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    done = float(re.search("step-([0-9]+)", path)[1])
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(done),
            "exp_avg": state[f"optimizer.exp_avg.{name}"],
            "exp_avg_sq": state[f"optimizer.exp_avg_sq.{name}"],
        }
    torch.set_rng_state(state["generator"])
    for _ in range(steps):
        x, y = torch.randn(8, width), torch.randn(8, width)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(repr(loss.item()))


main()
