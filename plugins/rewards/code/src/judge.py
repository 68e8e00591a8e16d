# The session in which the tests run. Code of the model never does: its functions are stand-ins that know the answers
# which were got elsewhere, as data.
import random as _random


class _Unknown(BaseException):
    """The answer to a call is not known yet."""


class _Error(Exception):
    """An error of a kind that is not Python's own."""


class _Judge:
    # Statements that are passed over in one run, and calls that are the same but for their number.
    PATIENCE = 2000
    ALIKE = 8

    def __init__(self):
        self.answers, self.wanted, self.seen, self.passed_over = {}, [], {}, 0

    def passes_over(self):
        self.passed_over += 1
        if self.passed_over > self.PATIENCE:
            raise _Unknown

    def stand_in(self, name):
        def call(*positional, **named):
            packed = (name, [_molt.pack(value) for value in positional], [(key, _molt.pack(value)) for key, value in named.items()])
            text = _molt.text(packed)
            count = self.seen[text] = self.seen.get(text, 0) + 1
            key = f"{count} {text}"
            if key not in self.answers:
                self.unknown[text] = self.unknown.get(text, 0) + 1
                if self.unknown[text] <= self.ALIKE:
                    self.wanted.append((key, *packed))
                raise _Unknown
            kind, *rest = self.answers[key]
            if kind == "value":
                return _molt.unpack(rest[0])
            own = getattr(_builtins, rest[0], None)
            is_error = isinstance(own, type) and issubclass(own, Exception)
            raise (own if is_error else _Error)(rest[1])

        return call

    def run(self, tree, names, entry):
        _random.seed(0)
        self.seen, self.unknown = {}, {}
        namespace = dict(names, _passes_over=self.passes_over)
        for node in _ast.walk(tree):
            # What neither the row nor Python defines is the model's.
            if isinstance(node, _ast.Name) and node.id not in namespace and not hasattr(_builtins, node.id):
                namespace[node.id] = self.stand_in(node.id)
        candidate = self.stand_in(entry) if entry else None
        if entry and entry.isidentifier():
            namespace[entry] = candidate
        exec(compile(tree, "<test>", "exec"), namespace)
        if entry and "check" in namespace and any(isinstance(node, _ast.FunctionDef) and node.name == "check" for node in tree.body):
            namespace["check"](candidate)

    def verdict(self, setups, test, entry, answers):
        """`pass`, `fail`, or `calls`, which are then what goes back; `broken` if the row's own code is."""
        self.answers = {key: answer for key, answer in _molt.read(answers)}
        names = {"__name__": "__test__", "__builtins__": _builtins}
        for setup in setups:
            # A prompt may end in the middle of a function.
            try:
                exec(compile(setup, "<setup>", "exec"), names)
            except Exception:
                pass
        try:
            if test.lstrip().startswith("["):
                import json

                test = "\n".join(json.loads(test))
            tree, patient = _ast.parse(test), Patient().visit(_ast.parse(test))
        except (SyntaxError, ValueError, TypeError) as error:
            return f"broken: {type(error).__name__}: {error}"
        try:
            self.run(_ast.fix_missing_locations(patient), names, entry)
        except BaseException:
            pass
        if self.wanted:
            return self.ask()
        try:
            self.run(tree, names, entry)
        except _Unknown:
            return self.ask()
        except BaseException as error:
            return f"fail: {type(error).__name__}: {error}"
        # A test without a question is none.
        return "pass" if self.seen else "broken: the test calls nothing of the model's"

    def ask(self):
        _molt.out = _molt.text(self.wanted)
        return "calls"


class Patient(_ast.NodeTransformer):
    """Goes on after a statement that cannot be executed, so that many calls are known after one run."""

    KEPT = (_ast.FunctionDef, _ast.AsyncFunctionDef, _ast.ClassDef, _ast.Import, _ast.ImportFrom, _ast.Global, _ast.Nonlocal,
            _ast.Return, _ast.Raise, _ast.Break, _ast.Continue, _ast.Pass)

    def visit(self, node):
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                setattr(node, field, [self.tried(statement) for statement in block])
        return node

    def tried(self, statement):
        if isinstance(statement, self.KEPT):
            return statement
        note = _ast.Expr(_ast.Call(_ast.Name("_passes_over", _ast.Load()), [], []))
        handler = _ast.ExceptHandler(type=_ast.Name("BaseException", _ast.Load()), name=None, body=[note])
        return _ast.Try(body=[statement], handlers=[handler], orelse=[], finalbody=[])
