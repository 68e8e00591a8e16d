"""Writes quiz.jsonl: two lists of two digits to sort, one after the other. The same bytes every time."""

import json
import pathlib
import random

rng = random.Random(7)
lists = ["".join(rng.choices("0123456789", k=2)) for _ in range(240)]
rows = []
for first, second in zip(lists[::2], lists[1::2]):
    answers = "\n".join("".join(sorted(digits)) for digits in (first, second))
    rows.append({"prompt": f"sort {first}", "more": f"sort {second}", "answer": answers})
text = "".join(json.dumps(row) + "\n" for row in rows)
pathlib.Path(__file__).with_name("quiz.jsonl").write_text(text)
