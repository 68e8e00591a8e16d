"""Makes adamw.json: what torch.optim.AdamW does to a matrix (decayed) and a vector (not decayed).

Run with torch 2.13 or any later one: python adamw.py > adamw.json
"""

import json
import random

import torch

random.seed(20)


def draw(count, scale):
    return [round(random.gauss(0, scale), 4) for _ in range(count)]


def case(weight_decay, max_grad_norm, lr):
    options = dict(lr=lr, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=weight_decay, max_grad_norm=max_grad_norm)
    start = dict(matrix=draw(6, 1), vector=draw(3, 1))
    matrix = torch.tensor(start["matrix"]).reshape(2, 3).requires_grad_()
    vector = torch.tensor(start["vector"]).requires_grad_()
    optimiser = torch.optim.AdamW(
        [dict(params=[matrix]), dict(params=[vector], weight_decay=0.0)],
        lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=weight_decay,
    )
    steps = []
    for _ in range(5):
        gradients = draw(6, 1), draw(3, 1)
        matrix.grad = torch.tensor(gradients[0]).reshape(2, 3)
        vector.grad = torch.tensor(gradients[1])
        bound = max_grad_norm if max_grad_norm > 0 else float("inf")
        norm = torch.nn.utils.clip_grad_norm_([matrix, vector], bound).item()
        optimiser.step()
        steps.append(dict(
            matrix_grad=gradients[0], vector_grad=gradients[1], grad_norm=norm,
            matrix=matrix.flatten().tolist(), vector=vector.tolist(),
        ))
    return dict(**options, **start, steps=steps)


cases = [case(0.0, 0.0, 0.01), case(0.1, 1.0, 0.01), case(0.5, 2.0, 0.1)]
print(json.dumps(dict(torch=torch.__version__, cases=cases), indent=1))
