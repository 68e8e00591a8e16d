"""Writes value_loss.json: the clipped value loss of PPO and its gradients, by PyTorch's autograd in float64.

    python3 value_loss.py > value_loss.json
"""

import json

import torch

cases = []
generator = torch.Generator().manual_seed(5)
for clip in [0.0, 0.05, 0.2, 1.0]:
    for _ in range(40):
        value, old, target = (torch.randn(3, generator=generator, dtype=torch.float64) * 0.4).tolist()
        v = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        losses = [(v - target) ** 2]
        if clip > 0:
            losses.append((old + (v - old).clamp(-clip, clip) - target) ** 2)
        loss = 0.5 * torch.stack(losses).max()
        loss.backward()
        cases.append({
            "clip": clip, "value": value, "old": old, "target": target, "loss": loss.item(), "slope": v.grad.item(),
        })
print(json.dumps({"torch": torch.__version__, "cases": cases}, indent=1))
