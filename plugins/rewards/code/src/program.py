# A whole program, with its standard input; what it prints is kept apart from what is said here.
import io as _io
import sys as _sys


class _Printed(_io.BytesIO):
    # A program may close its output, and what it put in place of it.
    def close(self):
        pass


def _program(source, given):
    given, printed = given.encode(), _Printed()
    _sys.stdin = _io.TextIOWrapper(_io.BytesIO(given), encoding="utf-8")
    kept, _sys.stdout = _sys.stdout, _io.TextIOWrapper(printed, encoding="utf-8", errors="replace", write_through=True)
    standard = _sys.stdin
    _builtins.open = lambda file, *_, **__: standard if file == 0 else _refused(file)
    try:
        exec(compile(source, "<solution>", "exec"), {"__name__": "__main__", "__builtins__": _builtins})
    except SystemExit as leave:
        if leave.code not in (None, 0):
            raise
    finally:
        _sys.stdout = kept
    _molt.out = printed.getvalue().decode("utf-8", "replace")


def _refused(file):
    raise PermissionError("there are no files here")
