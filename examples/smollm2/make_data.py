"""Writes the sums beside this file. Deterministic; needs only Python 3.9 or later.

    python3 examples/smollm2/make_data.py

All sums of two digits, shuffled: 20 held out, 80 to train on.
"""

import json
import random
from itertools import product
from pathlib import Path

HERE = Path(__file__).parent
HELD_OUT = 20


def write(name, sums):
    rows = [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in sums]
    (HERE / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    sums = list(product(range(10), repeat=2))
    random.Random(2).shuffle(sums)
    write("held-out.jsonl", sums[:HELD_OUT])
    write("train.jsonl", sums[HELD_OUT:])
