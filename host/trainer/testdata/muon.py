"""Makes muon.json: what torch.optim.Muon does to the matrices of layers, and torch.optim.AdamW to the rest.

PyTorch orthogonalises in bfloat16, which has 8 bits; here the iteration runs in float32, and is checked to agree with
PyTorch's own to what bfloat16 resolves.

Run with torch 2.13 or any later one: python muon.py > muon.json
"""

import json
import random

import torch
from torch.optim import _muon

random.seed(21)
in_bfloat16 = _muon._zeropower_via_newtonschulz


def in_float32(grad, coefficients, steps, eps):
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    x = x.T if grad.size(0) > grad.size(1) else x
    rounded = in_bfloat16(grad, coefficients, steps, eps)
    assert (x - rounded).norm() < 0.05 * x.norm()
    return x


_muon._zeropower_via_newtonschulz = in_float32

SHAPES = {
    "model.embed_tokens.weight": (4, 3),
    "model.layers.0.self_attn.q_proj.weight": (5, 3),
    "model.layers.0.mlp.down_proj.weight": (3, 6),
    "model.layers.0.input_layernorm.weight": (3,),
    "lm_head.weight": (4, 3),
}


def draw(shape, scale):
    count = torch.Size(shape).numel()
    return torch.tensor([round(random.gauss(0, scale), 4) for _ in range(count)]).reshape(shape)


def numbers(tensors):
    return {name: tensor.flatten().tolist() for name, tensor in tensors.items()}


def case(lr, weight_decay, max_grad_norm):
    values = {name: draw(shape, 1).requires_grad_() for name, shape in SHAPES.items()}
    start = numbers(values)
    is_muon = lambda name: ".layers." in name and values[name].dim() == 2
    pick = lambda keep: [value for name, value in values.items() if keep(name)]
    muon = torch.optim.Muon(
        pick(is_muon), lr=lr, weight_decay=weight_decay, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw"
    )
    matrices = pick(lambda name: not is_muon(name) and values[name].dim() == 2)
    vectors = pick(lambda name: values[name].dim() < 2)
    adamw = torch.optim.AdamW(
        [dict(params=matrices), dict(params=vectors, weight_decay=0.0)],
        lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=weight_decay,
    )
    steps = []
    for _ in range(4):
        gradients = {name: draw(shape, 1) for name, shape in SHAPES.items()}
        for name, value in values.items():
            value.grad = gradients[name].clone()
        if max_grad_norm > 0:
            torch.nn.utils.clip_grad_norm_(values.values(), max_grad_norm)
        muon.step()
        adamw.step()
        steps.append(dict(gradients=numbers(gradients), values=numbers(values)))
    parameters = [dict(name=name, shape=list(SHAPES[name]), start=start[name]) for name in SHAPES]
    return dict(lr=lr, weight_decay=weight_decay, max_grad_norm=max_grad_norm, parameters=parameters, steps=steps)


cases = [case(0.01, 0.0, 0.0), case(0.1, 0.3, 1.0)]
print(json.dumps(dict(torch=torch.__version__, cases=cases)))
