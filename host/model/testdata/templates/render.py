"""Renders every template with every conversation as transformers does, into golden.json."""

import datetime
import json
import pathlib
import sys

import jinja2
import transformers
from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2026, 7, 4, 15, 6, 7)

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather in a città <today> & tomorrow",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "number", "default": 1.0, "maximum": 1e16}},
            "required": ["city"],
        },
    },
}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "id": "call12345", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}}],
}


def say(role, content, **more):
    return {"role": role, "content": content, **more}


CASES = {
    "user": {"messages": [say("user", "Hi there")], "add_generation_prompt": True},
    "system": {"messages": [say("system", "Be brief."), say("user", "Hi")], "add_generation_prompt": True},
    "turns": {
        "messages": [say("user", "1+1?"), say("assistant", "2"), say("user", " And 2+2? \n"), say("assistant", "4")],
        "add_generation_prompt": False,
    },
    "think": {
        "messages": [
            say("user", "1+1?"),
            say("assistant", "<think>\neasy\n</think>\n\n2"),
            say("user", "2+2?"),
            say("assistant", "<think>\nhard\n</think>\n\n4"),
            say("user", "3+3?"),
        ],
        "add_generation_prompt": True,
    },
    "unicode": {"messages": [say("user", "naïve 🦀 {{ x }} {% if %} \"q\" <b>&amp;</b> \\n")], "add_generation_prompt": True},
    "tools": {
        "messages": [say("user", "Weather?"), CALL, say("tool", '{"sun": 1}', tool_call_id="call12345"), say("tool", "cold", tool_call_id="call12345")],
        "tools": [TOOL],
        "add_generation_prompt": True,
    },
    "order": {"messages": [say("assistant", "first"), say("assistant", "second")], "add_generation_prompt": True},
}


def render(template, case):
    context = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", **case}
    try:
        return context, template.render(**context)
    except (jinja2.exceptions.TemplateError, TypeError) as error:
        print(f"  {error}", file=sys.stderr)
        return context, None


golden = {
    "made_with": {"transformers": transformers.__version__, "jinja2": jinja2.__version__},
    "contexts": {name: render(jinja2.Template(""), case)[0] for name, case in CASES.items()},
    "renders": {},
}
for path in sorted(HERE.glob("*.jinja")):
    template = _compile_jinja_template(path.read_bytes().decode())
    template.environment.globals["strftime_now"] = NOW.strftime
    golden["renders"][path.stem] = {name: render(template, case)[1] for name, case in CASES.items()}
    print(path.stem, sum(text is not None for text in golden["renders"][path.stem].values()), "of", len(CASES))
(HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")
