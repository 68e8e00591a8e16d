"""One rank of the peer: PyTorch eager, a model of transformers under fully_shard, AdamW.

Arguments: a model directory, and the work as JSON (see work.rs). Every line of standard input is a number of steps to take;
the answer is a line with the seconds that they took and the mean loss of the last. At the end of the input comes a
line with the resident bytes."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, LlamaForCausalLM


def resident(field):
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(field))


def main():
    path, work = sys.argv[1], json.loads(sys.argv[2])
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if size > 1:
        dist.init_process_group("gloo")
    AutoConfig.from_pretrained(path)  # What is imported late is no part of the model.
    base = resident("VmRSS")

    model = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").train()
    if work["recompute"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if size > 1:
        mesh = init_device_mesh("cpu", (size,))
        # What is not computed again is not gathered again either.
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=work["recompute"])
        fully_shard(model, mesh=mesh)
    parameters = list(model.parameters())
    decay = {"weight_decay": work["weight_decay"]}
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], **decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=work["lr"], betas=(0.9, 0.95), eps=1e-8, fused=True)

    rows = torch.tensor(work["tokens"])
    own = rows[rank * len(rows) // size : (rank + 1) * len(rows) // size]
    ids, labels = own[:, :-1].contiguous(), own[:, 1:].contiguous()
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")

    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            logits = model(input_ids=ids, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            del logits
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, work["max_grad_norm"])
            optimiser.step()
            optimiser.zero_grad()
        seconds = time.perf_counter() - start
        mean = loss.detach() / size
        if size > 1:
            dist.all_reduce(mean)
        print(json.dumps({"seconds": seconds, "loss": mean.item()}), flush=True)
    print(json.dumps({"base": base, "peak": resident("VmHWM")}), flush=True)
    if size > 1:
        dist.destroy_process_group()


main()
