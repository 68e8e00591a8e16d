"""Runs Python code that a model wrote.

A session is one module's namespace: what a run defines, later runs see. Time, memory and the amount of data are
the host's to limit; what is bounded here is what goes back to a model, so that it stays readable.
"""

import ast
import builtins
import io
import linecache
import random
import sys
import traceback
import types

from wit_world.exports import code
from wit_world.exports.code import Output

import quiet
import standard_library  # noqa: F401  what code may import must be there before the component is made

# Characters that go back to the model; more is cut in the middle.
PRINTED = 64 * 1024
HALF = PRINTED // 2
VALUE = 16 * 1024
ERROR = 8 * 1024

# Frames of a traceback.
FRAMES = 20


class Session(code.Session):
    def __init__(self) -> None:
        # All instances begin as the same image of memory; the system's randomness is the run's, by its seed.
        random.seed()
        # The last one has a hint for authors of plugins, when there is nothing more to import.
        del sys.meta_path[-1]
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        self.namespace = main.__dict__
        self.namespace["__builtins__"] = builtins
        self.runs = 0

    def run(self, source: str) -> Output:
        self.runs += 1
        name = f"<run {self.runs}>"
        # Where a traceback finds the lines of code.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        printed = Printed()
        sys.stdin, sys.stdout, sys.stderr = io.StringIO(), printed, printed
        value = error = None
        try:
            value = shown(evaluate(source, name, self.namespace))
        except SystemExit as exit:
            if exit.code not in (None, 0):
                error = f"SystemExit: {exit.code}"
        except BaseException as exception:
            error = told(exception)
        return Output(well_formed(printed.text()), bounded(value, VALUE), bounded(error, ERROR))


def evaluate(source: str, name: str, namespace: dict) -> object:
    """Executes the code; the value of its last statement if that is an expression, else None."""
    tree = compile(source, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec", dont_inherit=True), namespace)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), namespace)


def shown(value: object) -> str | None:
    return None if value is None else repr(value)


def told(exception: BaseException) -> str:
    """What Python says of an uncaught exception, without the frames of this file and of the library."""
    frames = [frame for frame in traceback.extract_tb(exception.__traceback__) if frame.filename.startswith("<run ")]
    lines = traceback.format_exception_only(exception)
    if len(frames) > FRAMES:
        first, last = frames[: FRAMES // 2], frames[-FRAMES // 2 :]
        between = f"  … {len(frames) - FRAMES} frames left out …\n"
        lines = [*traceback.format_list(first), between, *traceback.format_list(last), *lines]
    else:
        lines = [*traceback.format_list(frames), *lines]
    if frames:
        lines.insert(0, "Traceback (most recent call last):\n")
    return "".join(lines).rstrip("\n")


def bounded(text: str | None, limit: int) -> str | None:
    if text is None or len(text) <= limit:
        return text and well_formed(text)
    half = limit // 2
    return well_formed(text[:half] + left_out(len(text) - limit) + text[-half:])


def left_out(count: int) -> str:
    return f"\n… {count} characters left out …\n"


def well_formed(text: str) -> str:
    """Half a surrogate pair is a character to Python, and to nobody else."""
    return text.encode("utf-8", "backslashreplace").decode()


class Printed(io.TextIOBase):
    """Standard output and standard error in one, in the order of writing; the middle is cut out of much."""

    def __init__(self) -> None:
        self.head, self.tail = [], []
        self.head_length = self.tail_length = self.cut = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        first = text[: HALF - self.head_length]
        self.head.append(first)
        self.head_length += len(first)
        if rest := text[len(first) :]:
            self.tail.append(rest)
            self.tail_length += len(rest)
            if self.tail_length > PRINTED:
                self.shorten()
        return len(text)

    def shorten(self) -> None:
        tail = "".join(self.tail)
        self.cut += max(len(tail) - HALF, 0)
        self.tail = [tail[-HALF:]]
        self.tail_length = len(self.tail[0])

    def text(self) -> str:
        self.shorten()
        return "".join([*self.head, left_out(self.cut) if self.cut else "", *self.tail])


quiet.no_files()
