"""Reference numbers for host/model, computed by Hugging Face transformers on the CPU, in float32 but for bfloat16.safetensors.

Versions that made the committed files: Python 3.12.1, torch 2.13.0, transformers 5.19.0, safetensors 0.8.0.
Every file it writes names the versions that made it.

    python reference.py                        random models, and the numbers of every committed model
    python reference.py --smollm2 DIR          the numbers of SmolLM2-135M-Instruct, which is too big to commit
    python reference.py --check DIR REFERENCE  does transformers load DIR and agree with REFERENCE (1e-5 max abs)?
"""

import argparse
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

# Name, shape and seed of the ids.
DENSE = (("tiny-qwen3", (2, 40), 3), ("tiny-llama3", (1, 160), 4))
TESTDATA = Path(__file__).resolve().parent.parent / "testdata"
VERSIONS = {"python": platform.python_version()} | {p: version(p) for p in ("torch", "transformers", "safetensors")}


def load(directory, dtype=torch.float32, **changed):
    """The model with the plainest attention; `changed` replaces keys of its config.json."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager", **changed)
    return model.eval()


def random_ids(shape, vocab, seed):
    return torch.randint(3, vocab, shape, generator=torch.Generator().manual_seed(seed))


def randomise(model, seed):
    """Weights large enough for logits far from uniform, and norm weights that are not all one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in name else 0.12 * noise)
    return model


def make_models():
    """A bfloat16 Qwen3 in one file, and a float16 Llama in shards whose config.json has the older layout."""
    shape = dict(vocab_size=512, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    shape |= dict(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    rope = {"rope_type": "default", "rope_theta": 1e6}
    config = Qwen3Config(
        **shape, intermediate_size=160, head_dim=32, max_position_embeddings=256, rope_parameters=rope
    )
    randomise(Qwen3ForCausalLM(config), 1).bfloat16().save_pretrained(TESTDATA / "tiny-qwen3")

    rope = {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    config = LlamaConfig(
        **shape, intermediate_size=160, head_dim=16, max_position_embeddings=512, rope_parameters=rope,
        tie_word_embeddings=True, rms_norm_eps=1e-5,
    )  # fmt: skip
    directory = TESTDATA / "tiny-llama3"
    randomise(LlamaForCausalLM(config), 2).half().save_pretrained(directory, max_shard_size="80KB")
    text = json.loads((directory / "config.json").read_text())
    text["torch_dtype"] = text.pop("dtype")
    text["rope_scaling"] = text.pop("rope_parameters")
    text["rope_theta"] = text["rope_scaling"].pop("rope_theta")
    (directory / "config.json").write_text(json.dumps(text, indent=2) + "\n")

    # Layers of experts with a dense one between.
    config = Qwen3MoeConfig(
        vocab_size=96, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        intermediate_size=48, moe_intermediate_size=16, num_experts=6, num_experts_per_tok=2, mlp_only_layers=[1],
        norm_topk_prob=True, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )  # fmt: skip
    model = randomise(Qwen3MoeForCausalLM(config), 6)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "mlp" in name:
                parameter *= 4  # so that routing matters to the logits
    model.bfloat16().save_pretrained(TESTDATA / "tiny-qwen3-moe")

    for directory in (TESTDATA / "tiny-qwen3", TESTDATA / "tiny-llama3", TESTDATA / "tiny-qwen3-moe"):
        (directory / "generation_config.json").unlink(missing_ok=True)


def logits_of(name, shape, seed, **changed):
    model = load(TESTDATA / name, **changed)
    ids = random_ids(shape, model.config.vocab_size, seed)
    with torch.no_grad():
        logits = model(ids).logits
    return model, {"ids": ids, "logits": logits}


def greedy(model, count):
    """The `count` most likely tokens after the beginning-of-sequence token, one by one."""
    ids = torch.tensor([[model.config.bos_token_id]])
    with torch.no_grad():
        for _ in range(count):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids[0]


def gradients(model, ids):
    """Mean cross-entropy of the next token over the batch, and what autograd makes of it, per parameter."""
    logits = model(ids).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    parameters = {}
    for name, parameter in sorted(model.named_parameters()):
        flat = parameter.grad.flatten()
        at = [(i * 7919 + 13) % flat.numel() for i in range(4)]
        parameters[name] = {"norm": flat.double().norm().item(), "at": at, "entries": flat[at].tolist()}
    return {"versions": VERSIONS, "loss": loss.item(), "parameters": parameters}


def rope_frequencies():
    """The rotary frequencies of each supported kind of scaling, at the shape of Llama 3.1 8B."""
    llama3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    shape = dict(vocab_size=8, hidden_size=4096, intermediate_size=8, num_hidden_layers=1, num_attention_heads=32)
    cases = []
    for rope in ({"rope_type": "default"}, {"rope_type": "linear", "factor": 4.0}, {"rope_type": "llama3"} | llama3):
        config = LlamaConfig(**shape, max_position_embeddings=131072, rope_parameters=rope | {"rope_theta": 500000.0})
        frequencies = LlamaRotaryEmbedding(config).inv_freq.tolist()
        cases.append({"config": config.to_dict(), "frequencies": frequencies})
    return {"versions": VERSIONS, "cases": cases}


def write_bfloat16():
    """Logits for the ids of the float32 reference, computed in bfloat16 throughout."""
    for name, shape, seed in DENSE:
        _, tensors = logits_of(name, shape, seed, dtype=torch.bfloat16)
        save_file({"logits": tensors["logits"].float()}, TESTDATA / name / "bfloat16.safetensors", metadata=VERSIONS)


def write_committed():
    make_models()
    (TESTDATA / "rope.json").write_text(json.dumps(rope_frequencies()) + "\n")
    for name, shape, seed in DENSE:
        _, tensors = logits_of(name, shape, seed)
        save_file(tensors, TESTDATA / name / "reference.safetensors", metadata=VERSIONS)
    write_bfloat16()
    _, tensors = logits_of("tiny-qwen3-moe", (2, 24), 7)
    _, plain = logits_of("tiny-qwen3-moe", (2, 24), 7, norm_topk_prob=False)
    tensors["logits_without_renormalisation"] = plain["logits"]
    save_file(tensors, TESTDATA / "tiny-qwen3-moe" / "reference.safetensors", metadata=VERSIONS)
    model, tensors = logits_of("stories260k", (2, 64), 5)
    tensors["greedy"] = greedy(model, 160)
    save_file(tensors, TESTDATA / "stories260k" / "reference.safetensors", metadata=VERSIONS)
    report = json.dumps(gradients(model, tensors["ids"]), indent=1)
    (TESTDATA / "stories260k" / "gradients.json").write_text(report + "\n")


def write_smollm2(directory):
    """The 64 largest logits at each of 32 positions of a chat prompt, and the log-sum-exp over all of them."""
    from tokenizers import Tokenizer

    text = "<|im_start|>user\nAnna has 12 apples and buys 7 more. She eats 3. How many apples are left?<|im_end|>\n"
    ids = Tokenizer.from_file(str(Path(directory) / "tokenizer.json")).encode(text + "<|im_start|>assistant\n").ids
    ids = torch.tensor([ids[:32]])
    assert ids.shape == (1, 32)
    with torch.no_grad():
        logits = load(directory)(ids).logits[0]
    top, top_ids = logits.topk(64, dim=-1)
    tensors = {"ids": ids, "top_ids": top_ids, "top_logits": top, "logsumexp": logits.logsumexp(-1)}
    save_file(tensors, TESTDATA / "smollm2-135m-instruct.safetensors", metadata=VERSIONS)


def check(directory, reference):
    with safe_open(reference, "pt") as file:
        ids, expected = file.get_tensor("ids"), file.get_tensor("logits")
    with torch.no_grad():
        difference = (load(directory)(ids).logits - expected).abs().max().item()
    print(f"{directory}: max abs difference {difference:.3g} by {VERSIONS}")
    return difference <= 1e-5


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--smollm2", metavar="DIR")
    arguments.add_argument("--check", nargs=2, metavar=("DIR", "REFERENCE"))
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    if chosen.check:
        sys.exit(0 if check(*chosen.check) else 1)
    elif chosen.smollm2:
        write_smollm2(chosen.smollm2)
    else:
        write_committed()
