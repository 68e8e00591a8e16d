# The session in which the model's code runs. It sees the arguments of calls, and no test.
def _answers(calls):
    found = []
    for key, name, positional, named in _molt.read(calls):
        try:
            function = eval(name, globals())
            result = function(*[_molt.unpack(value) for value in positional], **{name: _molt.unpack(value) for name, value in named})
            answer = ("value", _molt.pack(result))
        except BaseException as error:
            answer = ("error", type(error).__name__, str(error)[:200])
        found.append((key, answer))
    _molt.out = _molt.text(found)
