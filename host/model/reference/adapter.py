"""Checks that PEFT puts an exported adapter on its base, and gets the logits of the exported merged model.

Run with torch, transformers and peft (0.21 was): python adapter.py BASE RUN

BASE is the model.path of a run with lora.rank, RUN its directory.
"""

import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

base, run = sys.argv[1:]
ids = torch.arange(1, 40).unsqueeze(0)
with torch.no_grad():
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merged = AutoModelForCausalLM.from_pretrained(f"{run}/model", dtype=torch.float32)(ids).logits
    plain = model(ids).logits
    adapted = PeftModel.from_pretrained(model, f"{run}/adapter")(ids).logits
moved, apart = (adapted - plain).abs().max().item(), (adapted - merged).abs().max().item()
print(f"the adapter moves logits by {moved:.3g}; adapter and merged model differ by {apart:.3g}")
assert moved > 1e-2 and apart < 1e-4
