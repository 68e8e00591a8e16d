//! Code that a model may write, in the Python that ships: alone, and as the tool of `python-math`.

use crate::attack::{Answer, Attack, Fails};
use molt_sandbox::Limits;

pub(crate) fn attacks() -> Vec<Attack> {
    let limits = Limits { memory_mib: 64, cpu_ms: 500, call_s: 300, ..Limits::default() };
    let python = [without_end(), too_large(), world(), sessions()].into_iter().flatten();
    let python = python.map(|attack| attack.with(|access| access.limits = limits));
    let tools = tools().into_iter().map(|attack| {
        attack.with(|access| {
            access.grants.code = Some("python".into());
            access.limits.cpu_ms = 10_000;
            access.code_limits = limits;
        })
    });
    python.chain(tools).collect()
}

fn without_end() -> Vec<Attack> {
    let stopped = || Fails("cpu-limit", "500 ms");
    vec![
        Attack::python("while-true", &["while True: pass"], stopped()),
        Attack::python("a-tower-of-powers", &["9**9**9**9"], stopped()),
        Attack::python("printing-without-end", &["while True: print('x' * 1000)"], stopped()),
        Attack::python("a-slow-pattern", &["import re; re.match('(a*)*b', 'a' * 40)"], stopped()),
        Attack::python(
            "what-stops-for-no-error",
            &["while True:\n    try:\n        while True: pass\n    except BaseException: pass"],
            stopped(),
        ),
    ]
}

fn too_large() -> Vec<Attack> {
    let short = || Answer("MemoryError\")");
    vec![
        Attack::python("a-string-of-100-mb", &["x = 'a' * 10**8"], short()),
        Attack::python("a-list-of-a-billion", &["x = [0] * 10**9"], short()),
        Attack::python("bytes-of-a-gibibyte", &["x = b'a' * (1 << 30)"], short()),
        Attack::python(
            "recursion-without-end-in-python",
            &["def f(n): return f(n + 1)\nf(0)"],
            Answer("RecursionError: maximum recursion depth exceeded\")"),
        ),
        Attack::python("a-print-of-a-megabyte", &["print('a' * 10**6)"], Answer("characters left out")),
    ]
}

fn world() -> Vec<Attack> {
    let error = |name, code: &'static [&'static str], error| Attack::python(name, code, Answer(error));
    let no_files = "PermissionError: there are no files here\")";
    vec![
        error("the-passwords-in-python", &["open('/etc/passwd')"], no_files),
        error("the-list-of-the-root-in-python", &["import os; os.listdir('/')"], no_files),
        error("a-file-in-python", &["import pathlib; pathlib.Path('x').write_text('y')"], no_files),
        error("a-command-in-python", &["import os; os.system('ls')"], "has no attribute 'system'\")"),
        error("a-fork-in-python", &["import os; os.fork()"], "has no attribute 'fork'\")"),
        error("a-process-in-python", &["import subprocess"], "No module named 'subprocess'\")"),
        error("a-socket-in-python", &["import socket"], "No module named 'socket'\")"),
        error("native-code-in-python", &["import ctypes"], "No module named 'ctypes'\")"),
        error(
            "a-thread-in-python",
            &["import threading; threading.Thread(target=print).start()"],
            "RuntimeError: can't start new thread\")",
        ),
        error("the-variables-in-python", &["import os; dict(os.environ)"], "value: Some(\"{}\")"),
        error("the-exit-in-python", &["raise SystemExit(2)"], "SystemExit: 2\")"),
    ]
}

fn sessions() -> Vec<Attack> {
    vec![
        Attack::python(
            "a-name-of-another-session",
            &["import builtins\nx = builtins.x = 'kept'\nx", "x"],
            Answer("NameError: name 'x' is not defined\")"),
        ),
        Attack::python(
            "a-module-of-another-session",
            &[
                "import sys, math\nsys.x = math.pi = 'kept'",
                "import sys, math\nhasattr(sys, 'x'), math.pi == 'kept'",
            ],
            Answer("value: Some(\"(False, False)\")"),
        ),
    ]
}

fn tools() -> Vec<Attack> {
    let stopped = "The code was stopped: it ran for more than 500 ms";
    vec![
        Attack::tool("a-tool-that-works", "6 * 7", Answer("content: \"42\"")),
        Attack::tool("while-true-as-a-tool", "while True: pass", Answer(stopped)),
        Attack::tool("a-tower-of-powers-as-a-tool", "9**9**9**9", Answer(stopped)),
        Attack::tool("a-string-of-100-mb-as-a-tool", "'a' * 10**8", Answer("MemoryError\"")),
        Attack::tool(
            "the-passwords-as-a-tool",
            "open('/etc/passwd').read()",
            Answer("PermissionError: there are no files here\""),
        ),
    ]
}
