//! The Python that ships, as a run uses it: alone, and with the environment that gives it to a model.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{call, library, task};
use molt_core::chat::{Message, Role};
use molt_sandbox::{
    Access, Action, Call, Cause, CodeOutput, Environment, Grants, Interpreter, Limits, LoadError, Sandbox,
    Session, ToolCall, Transition,
};
use std::path::Path;
use std::sync::LazyLock;

/// Python takes seconds to compile: it is kept for the next run.
static SANDBOX: LazyLock<Sandbox> =
    LazyLock::new(|| Sandbox::new(Some(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled"))).unwrap());

static PYTHON: LazyLock<Interpreter> = LazyLock::new(|| python(limits()));

fn python(limits: Limits) -> Interpreter {
    SANDBOX.interpreter(&library(), "python", limits).unwrap()
}

fn limits() -> Limits {
    Limits { memory_mib: 256, cpu_ms: 2000, ..Limits::default() }
}

async fn open(seed: u64) -> Session {
    PYTHON.open(Call { rollout: None, seed }).await.unwrap()
}

async fn run(session: &mut Session, code: &str) -> CodeOutput {
    session.run(code).await.unwrap()
}

/// The value of `code` in a session of its own; printed text or an error is none.
async fn value(code: &str) -> String {
    let output = run(&mut open(1).await, code).await;
    assert_eq!((output.printed.as_str(), &output.error), ("", &None), "{code}");
    output.value.unwrap()
}

async fn error(code: &str) -> String {
    run(&mut open(1).await, code).await.error.unwrap()
}

#[tokio::test]
async fn names_last_within_a_session_and_never_to_another() {
    let mut session = open(1).await;
    run(&mut session, "import sys\nx = 40\ndef f(y):\n    return x + y\nsys.secret = 'kept'").await;
    assert_eq!(run(&mut session, "f(2)").await.value.as_deref(), Some("42"));
    let failed = run(&mut session, "x = 1\nf(None)").await;
    assert_eq!(
        failed.error.unwrap(),
        "Traceback (most recent call last):\n  File \"<run 3>\", line 2, in <module>\n    f(None)\n    ~^^^^^^\n  \
         File \"<run 1>\", line 4, in f\n    return x + y\n           ~~^~~\n\
         TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'"
    );
    assert_eq!(run(&mut session, "f(2)").await.value.as_deref(), Some("3"), "an error ends no session");
    let mut other = open(1).await;
    assert!(run(&mut other, "x").await.error.unwrap().ends_with("NameError: name 'x' is not defined"));
    assert_eq!(run(&mut other, "import sys; hasattr(sys, 'secret')").await.value.as_deref(), Some("False"));
}

#[tokio::test]
async fn what_is_printed_comes_back_in_order() {
    let code = "import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c', end='')\n'd'";
    let output = run(&mut open(1).await, code).await;
    let expected = CodeOutput { printed: "a\nb\nc".into(), value: Some("'d'".into()), error: None };
    assert_eq!(output, expected);
    let output = run(&mut open(1).await, "print('before')\n1 / 0").await;
    assert_eq!(output.printed, "before\n");
    assert!(output.error.unwrap().ends_with("ZeroDivisionError: division by zero"));
    for nothing in ["", "None", "x = 1", "# only a comment"] {
        assert_eq!(run(&mut open(1).await, nothing).await, CodeOutput::default(), "{nothing:?}");
    }
}

#[tokio::test]
async fn the_standard_library_works() {
    for (code, expected) in [
        ("import math; math.comb(52, 5), math.isqrt(10**20)", "(2598960, 10000000000)"),
        ("from fractions import Fraction as F; F(1, 3) + F(1, 6)", "Fraction(1, 2)"),
        (
            "from decimal import *; getcontext().prec = 30; Decimal(2).sqrt()",
            "Decimal('1.41421356237309504880168872421')",
        ),
        ("import json; json.loads('{\"a\": [1, null]}')", "{'a': [1, None]}"),
        ("import re; re.findall(r'\\d+', 'a1b22')", "['1', '22']"),
        ("import itertools; len(list(itertools.permutations(range(6))))", "720"),
        ("import statistics; statistics.stdev([1, 2, 3, 4])", "1.2909944487358056"),
        ("from collections import Counter; Counter('abca').most_common(1)", "[('a', 2)]"),
        ("from datetime import *; date(2024, 2, 28) + timedelta(2)", "datetime.date(2024, 3, 1)"),
        ("from datetime import *; datetime.strptime('2024-02-29', '%Y-%m-%d').weekday()", "3"),
        (
            "import functools\n@functools.cache\ndef f(n): return n if n < 2 else f(n - 1) + f(n - 2)\nf(400) % 1000",
            "675",
        ),
        (
            "import sys; sys.setrecursionlimit(10**6)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\nf(20000)",
            "20000",
        ),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nP(3)", "P(x=3)"),
        (
            "import heapq, bisect, string, textwrap, hashlib, cmath; hashlib.sha256(b'').hexdigest()[:8]",
            "'e3b0c442'",
        ),
    ] {
        assert_eq!(value(code).await, expected, "{code}");
    }
}

#[tokio::test]
async fn randomness_is_the_runs() {
    let code = "import random, secrets, uuid; random.random(), secrets.token_hex(4), uuid.uuid4()";
    let mut seen = vec![];
    for seed in [1, 2, 1] {
        seen.push(run(&mut open(seed).await, code).await.value.unwrap());
    }
    assert_eq!(seen[0], seen[2]);
    assert_ne!(seen[0], seen[1]);
    assert_eq!(value("import time; time.sleep(3600); round(time.monotonic()) >= 3600").await, "True");
}

#[tokio::test]
async fn nothing_of_the_machine_is_there() {
    for (code, expected) in [
        ("open('/etc/passwd')", "PermissionError: there are no files here"),
        ("import pathlib; pathlib.Path('x').write_text('y')", "PermissionError: there are no files here"),
        ("import os; os.listdir('/')", "PermissionError: there are no files here"),
        ("import os; os.system('ls')", "AttributeError: module 'os' has no attribute 'system'"),
        ("import os; os.fork()", "AttributeError: module 'os' has no attribute 'fork'"),
        ("import socket", "ModuleNotFoundError: No module named 'socket'"),
        ("import subprocess", "ModuleNotFoundError: No module named 'subprocess'"),
        ("import ctypes", "ModuleNotFoundError: No module named 'ctypes'"),
        ("import urllib.request", "ModuleNotFoundError: No module named 'urllib.request'"),
        ("import threading; threading.Thread(target=print).start()", "RuntimeError: can't start new thread"),
        ("input()", "EOFError: EOF when reading a line"),
        ("raise SystemExit('bye')", "SystemExit: bye"),
        ("import sys; sys.exit(2)", "SystemExit: 2"),
    ] {
        let told = error(code).await;
        assert!(told.ends_with(expected), "{code}: {told}");
    }
    for (code, expected) in [
        ("import os; os.path.exists('/etc/passwd'), os.getcwd()", "(False, '/')"),
        ("import os; dict(os.environ)", "{}"),
        ("import sys; sys.argv, sys.path", "([], [])"),
        ("import platform; platform.node()", "'(none)'"),
    ] {
        assert_eq!(value(code).await, expected, "{code}");
    }
    // What goes around the library is stopped by the host.
    let failure = open(1).await.run("import _socket; _socket.socket().connect(('1.1.1.1', 80))").await;
    assert!(failure.is_err() || failure.unwrap().error.is_some());
}

#[tokio::test]
async fn what_goes_back_to_the_model_is_bounded() {
    let output = run(&mut open(1).await, "print('a' * 10**8)\nprint('end')\n'b' * 10**8").await;
    assert!(output.printed.len() < 66_000 && output.printed.contains("99934469 characters left out"));
    assert!(output.printed.ends_with("aaa\nend\n"));
    assert!(output.value.is_some_and(|value| value.len() < 17_000 && value.ends_with("b'")));
    let output = run(&mut open(1).await, "for i in range(100_000): print(i)").await;
    assert!(output.printed.starts_with("0\n1\n2\n") && output.printed.ends_with("\n99999\n"));
    let told = error("def f(n): g(n)\ndef g(n): f(n + 1)\nf(0)").await;
    assert!(told.len() < 8_300 && told.contains("frames left out"), "{told}");
    assert!(told.ends_with("RecursionError: maximum recursion depth exceeded"), "{told}");
    let told = error("class A:\n    def __repr__(self): return 'x' * 10**7\nraise ValueError(A())").await;
    assert!(told.len() < 8_300, "{}", told.len());
    assert_eq!(value("'\\ud800'").await, "'\\ud800'");
    assert_eq!(run(&mut open(1).await, "print('\\ud800')").await.printed, "\\ud800\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_end_is_stopped() {
    let python = python(Limits { cpu_ms: 500, memory_mib: 64, ..limits() });
    for code in [
        "while True: pass",
        "9**9**9**9",
        "while True: print('x' * 1000)",
        "import re; re.match('(a*)*b', 'a' * 40)",
    ] {
        let failure = python.open(call(1)).await.unwrap().run(code).await.unwrap_err();
        assert_eq!(failure.cause, Cause::Cpu { limit_ms: 500 }, "{code}");
    }
    // Python itself says that memory is short, and goes on.
    let mut session = python.open(call(1)).await.unwrap();
    for code in ["x = 'a' * 10**8", "x = [0] * 10**9", "x = b'a' * (1 << 30)"] {
        let told = run(&mut session, code).await.error.unwrap();
        assert!(told.ends_with("MemoryError"), "{code}: {told}");
    }
    assert_eq!(run(&mut session, "1 + 1").await.value.as_deref(), Some("2"));
    let failure = session.run("x = []\nfor _ in range(10**6): x = [x]\nrepr(x)").await;
    assert!(failure.is_err() || failure.is_ok_and(|output| output.error.is_some()));
}

fn python_math(access: impl Into<Access>) -> Result<Environment, LoadError> {
    SANDBOX.environment(&library(), "python-math", access)
}

fn granted() -> Environment {
    let grants = Grants { code: Some("python".into()), ..Grants::default() };
    let code_limits = Limits { cpu_ms: 500, ..limits() };
    python_math(Access { limits: limits(), grants, code_limits }).unwrap()
}

fn say(text: &str) -> Action {
    Action { text: text.into(), tool_calls: vec![], truncated: false }
}

fn calls(code: &str) -> Action {
    let arguments_json = format!("{{\"code\": {code:?}}}");
    let call = ToolCall { name: "python".into(), arguments_json };
    Action { tool_calls: vec![call], ..say("<tool_call>…</tool_call>") }
}

fn answer(transition: &Transition) -> &Message {
    assert!(!transition.done && transition.messages.len() == 1, "{transition:?}");
    &transition.messages[0]
}

#[tokio::test(flavor = "multi_thread")]
async fn python_math_runs_code_and_grades_the_answer() {
    let environment = granted();
    let mut episode = environment.open(call(1), &task(Some("42"))).await.unwrap();
    let prompt = episode.reset().await.unwrap();
    assert_eq!((prompt[0].role, prompt.len()), (Role::System, 2));
    assert!(prompt[0].content.contains("\"name\": \"python\""));
    for (code, expected) in [
        ("x = 6\nprint(x)", "6"),
        ("x * 7", "42"),
        (
            "y",
            "Traceback (most recent call last):\n  File \"<run 3>\", line 1, in <module>\n    y\nNameError: name 'y' is not defined",
        ),
        (
            "while True: pass",
            "The code was stopped: it ran for more than 500 ms. All names are undefined again.",
        ),
        ("x = 1", "The code ran, and printed nothing."),
    ] {
        let transition = episode.step(&calls(code)).await.unwrap();
        assert_eq!(answer(&transition), &Message::new(Role::Tool, expected), "{code}");
    }
    let malformed = episode.step(&say("<tool_call>{\"name\": \"python\", code}</tool_call>")).await.unwrap();
    assert!(answer(&malformed).content.starts_with("The call is not valid JSON"), "{malformed:?}");
    let end = episode.step(&say("It is \\boxed{42}.")).await.unwrap();
    assert_eq!((end.reward, end.solved, end.done), (Some(1.0), Some(true), true));
    let metrics = [("turns", 7.0), ("tool_calls", 5.0), ("tool_errors", 2.0), ("malformed_calls", 1.0)];
    assert_eq!(end.metrics, metrics.map(|(name, value)| (name.to_owned(), value)));
}

#[tokio::test(flavor = "multi_thread")]
async fn python_math_keeps_episodes_apart() {
    let environment = granted();
    let mut first = environment.open(call(1), &task(Some("1"))).await.unwrap();
    first.step(&calls("secret = 1")).await.unwrap();
    let mut second = environment.open(call(2), &task(Some("1"))).await.unwrap();
    let told = second.step(&calls("secret")).await.unwrap();
    assert!(answer(&told).content.ends_with("NameError: name 'secret' is not defined"));
}

#[tokio::test]
async fn python_math_needs_an_interpreter() {
    let refused = python_math(limits()).err().unwrap();
    assert!(
        matches!(&refused, LoadError::NotGranted { import, .. } if import.starts_with("molt:plugin/code")),
        "{refused}"
    );
}
