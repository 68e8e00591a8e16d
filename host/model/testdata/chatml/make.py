"""Writes the tokenizer of the text tests: all bytes, a few merges, ChatML's special tokens. Made with tokenizers 0.23."""

import json
import pathlib

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HERE = pathlib.Path(__file__).parent
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
merges = [("a", "b"), ("u", "s"), ("us", "e"), ("use", "r"), ("Ġ", "t")]
vocab = {text: i for i, text in enumerate(alphabet + ["".join(pair) for pair in merges])}
tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
# A tokenizer may ask for truncation; ours must not obey.
tokenizer.enable_truncation(8)
tokenizer.save(str(HERE / "tokenizer.json"), pretty=False)
(HERE / "tokenizer_config.json").write_text(
    json.dumps(
        {
            "bos_token": {"content": "<|im_start|>", "special": True},
            "eos_token": "<|im_end|>",
            "chat_template": [
                {"name": "tool_use", "template": "unused"},
                {"name": "default", "template": (HERE.parent / "templates" / "chatml.jinja").read_text()},
            ],
        },
        indent=1,
    )
    + "\n"
)
(HERE / "generation_config.json").write_text('{"eos_token_id": [%d]}\n' % tokenizer.token_to_id("<|endoftext|>"))
