"""Writes the demonstration's data and tokenizer beside this file. Deterministic; needs only Python 3.9 or later.

    python3 examples/demo/make_data.py

The task is to sort four to six digits. Lists are drawn uniformly; whether a list may be trained on or is held out
depends on its digits alone, whatever their order, so that no held-out answer occurs in training.
"""

import json
import random
from itertools import combinations_with_replacement
from pathlib import Path

HERE = Path(__file__).parent
LENGTHS = (4, 5, 6)
DEMONSTRATIONS, TRAINING, HELD_OUT = 96, 6400, 510
HELD_OUT_SHARE = 0.15

TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def rows():
    """Three disjoint lists of {prompt, answer}: demonstrations, training, held out."""
    rng = random.Random(2026)
    answers = ["".join(digits) for n in LENGTHS for digits in combinations_with_replacement("0123456789", n)]
    held = set(rng.sample(answers, round(HELD_OUT_SHARE * len(answers))))
    seen = set()

    def draw(count, held_out):
        result = []
        while len(result) < count:
            length = LENGTHS[len(result) % len(LENGTHS)]
            digits = "".join(rng.choice("0123456789") for _ in range(length))
            answer = "".join(sorted(digits))
            if digits not in seen and (answer in held) == held_out:
                seen.add(digits)
                result.append({"prompt": f"sort {digits}", "answer": answer})
        return result

    return draw(DEMONSTRATIONS, False), draw(TRAINING, False), draw(HELD_OUT, True)


def tokenizer():
    """One token per character, plus the chat markers and role names; the rest of Unicode is <unk>."""
    special = ["<|endoftext|>", "<unk>", "<|im_start|>", "<|im_end|>"]
    roles = ["system", "user", "assistant"]
    characters = list("\n 0123456789abcdefghijklmnopqrstuvwxyz.,:;!?+-*/=()")
    vocabulary = {text: index for index, text in enumerate(special + roles + characters)}
    added = [
        {
            "id": vocabulary[text],
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": text in special,
        }
        for text in special + roles
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "[\\s\\S]"},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }


def main():
    for name, lines in zip(("sft", "train", "held-out"), rows()):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (HERE / f"{name}.jsonl").write_text(text, encoding="utf-8")

    spec = tokenizer()
    ids = spec["model"]["vocab"]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(ids),
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": 0.05,
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "dtype": "float32",
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<unk>",
        "chat_template": TEMPLATE,
    }
    for name, value in (
        ("config.json", config),
        ("tokenizer.json", spec),
        ("tokenizer_config.json", tokenizer_config),
    ):
        text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        (HERE / "model" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
