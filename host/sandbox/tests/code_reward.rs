//! The reward `code` with the Python that ships: what it grades, and what cannot fool it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{library, sample};
use futures_util::StreamExt;
use futures_util::stream::iter;
use molt_core::chat::{Message, Role};
use molt_sandbox::{Access, Call, Grants, Limits, LoadError, Reward, Sample, Sandbox, Verdict};
use serde_json::Value;
use std::io::Read;
use std::path::Path;
use std::sync::LazyLock;

/// Python takes seconds to compile: it is kept for the next run.
static SANDBOX: LazyLock<Sandbox> =
    LazyLock::new(|| Sandbox::new(Some(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled"))).unwrap());

static CODE: LazyLock<Reward> = LazyLock::new(|| reward(4000).unwrap());

fn reward(cpu_ms: u64) -> Result<Reward, LoadError> {
    let grants = Grants { code: Some("python".into()), ..Grants::default() };
    let code_limits = Limits { memory_mib: 256, cpu_ms, ..Limits::default() };
    SANDBOX.reward(&library(), "code", Access { limits: Limits::default(), grants, code_limits })
}

const PROMPT: &str = "def add(a, b):\n    \"\"\"The sum.\"\"\"\n";
const TEST: &str =
    "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(5, 7) == 12\n";

fn row(prompt: &str, columns: &[(&str, &str)], completion: &str) -> Sample {
    let mut row = sample(completion, None);
    row.task.messages = vec![Message::new(Role::User, prompt)];
    row.task.fields = columns.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    row
}

async fn graded(reward: &Reward, sample: &Sample) -> Verdict {
    reward.score(Call { rollout: None, seed: 1 }, sample).await.unwrap()
}

/// Whether the tests passed, and whether the code was stopped.
async fn outcome(reward: &Reward, sample: &Sample) -> (bool, bool) {
    match graded(reward, sample).await {
        Verdict::Scored { reward, solved, metrics } => {
            assert_eq!(reward, f64::from(u8::from(solved)));
            assert_eq!(metrics[0].0, "stopped");
            (solved, metrics[0].1 == 1.0)
        }
        other => panic!("{other:?}: {}", sample.completion),
    }
}

async fn passes(columns: &[(&str, &str)], completion: &str) -> bool {
    outcome(&CODE, &row(PROMPT, columns, completion)).await.0
}

fn human_eval() -> Vec<Value> {
    let packed = &include_bytes!("../../../plugins/rewards/code/tests/humaneval/HumanEval.jsonl.gz")[..];
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn human_eval_is_solved_by_its_solutions_and_by_nothing_wrong() {
    let rows = human_eval();
    assert_eq!(rows.len(), 164);
    let tried = iter(rows).map(async |problem| {
        let text = |name: &str| problem[name].as_str().unwrap().to_owned();
        let columns = [("test", text("test")), ("entry_point", text("entry_point"))];
        let columns: Vec<(&str, &str)> =
            columns.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let (prompt, solution) = (text("prompt"), text("canonical_solution"));
        let right = outcome(&CODE, &row(&prompt, &columns, &solution)).await;
        let wrong = outcome(&CODE, &row(&prompt, &columns, "    return None\n")).await;
        (text("task_id"), right, wrong)
    });
    let tried: Vec<_> = tried.buffer_unordered(2).collect().await;
    let failed: Vec<_> = tried.iter().filter(|(_, right, wrong)| !right.0 || wrong.0).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_right_passes_however_it_is_written() {
    let check = [("test", TEST), ("entry_point", "add")];
    for completion in [
        "    return a + b",
        "Of course:\n```python\ndef add(a, b):\n    return a + b\n```\nDone.",
        "```python\n    return a + b\n```",
        "def add(a, b):\n    print('noise', a)\n    return a + b\nassert add(1, 1) == 3",
        "def add(a, b): return a + b\nimport sys\nsys.exit(0)",
        "add = lambda *both: sum(both)\ninput()",
        "from functools import cache\n@cache\ndef add(a, b):\n    return a + b",
    ] {
        assert!(passes(&check, completion).await, "{completion}");
    }
    assert!(!passes(&check, "    return a - b").await);
    assert!(!passes(&check, "I would rather not.").await);
    assert!(!passes(&check, "").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn values_come_back_as_they_are() {
    for (test, code) in [
        (
            "assert f() == [1, (2.5, None), {'a': {3}}, 'é\\n', b'x']",
            "return [1, (2.5, None), {'a': {3}}, 'é\\n', b'x']",
        ),
        (
            "assert f() == 10**6000 and f() > float('inf') - 1 - 10**400 if False else f() == 10**6000",
            "return 10**6000",
        ),
        ("x = f()\nassert x != x", "return float('nan')"),
        ("assert f() == 1j and f() != 1", "return 1j"),
        ("assert list(f()) == [0, 1, 2]", "return (i for i in range(3))"),
        ("assert f() == range(3) and list(f()) == [0, 1, 2]", "return range(3)"),
        ("assert f() is None", "pass"),
        ("assert f() is True", "return True"),
        (
            "try:\n    f()\nexcept ValueError as error:\n    assert str(error) == 'no'\nelse:\n    assert False",
            "raise ValueError('no')",
        ),
        ("assert f(f(f(1))) == 4", "return x[0] + 1"),
        ("for n in range(50):\n    assert f(n) == n + 1", "return x[0] + 1"),
        (
            "import random\nfor _ in range(9):\n    n = random.randint(0, 999)\n    assert f(n) == n + 1",
            "return x[0] + 1",
        ),
        ("assert f(y=2) == 2", "return named['y']"),
        ("assert [f(), f(), f()] == [1, 2, 3]", "f.n = getattr(f, 'n', 0) + 1; return f.n"),
        ("assert len(f()) == 300000", "return 'a' * 300000"),
        ("[\"assert f(1) == 2\", \"assert f(2) == 3\"]", "return x[0] + 1"),
        ("assert g(f(1)) == 4", "return x[0] + 1\ndef g(x): return x + 2"),
    ] {
        let code = format!("def f(*x, **named):\n    {code}");
        assert!(passes(&[("test", test)], &code).await, "{test}");
        let wrong = "def f(*x, **named):\n    return 'wrong'\ndef g(x): return x";
        assert!(!passes(&[("test", test)], wrong).await, "{test}");
    }
    let class = "class Solution:\n    def twice(self, x):\n        return self.helper(x) * 2\n    def helper(self, x):\n        return x";
    let columns = [
        ("test", "def check(candidate):\n    assert candidate(2) == 4"),
        ("entry_point", "Solution().twice"),
    ];
    assert!(passes(&columns, class).await);
    let columns = [("test", "assert area(1) == PI"), ("setup", "PI = 3")];
    assert!(passes(&columns, "def area(r):\n    return PI * r * r").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_trick_passes_a_test() {
    let reward = reward(1000).unwrap();
    let wrong = "def add(a, b):\n    return 0\n";
    let seeks = "def add(a, b):\n    import sys, gc, linecache, __main__\n    texts = [str(linecache.cache), str(vars(__main__))]\n    \
                 frame = sys._getframe()\n    while frame:\n        texts += [str(frame.f_locals), str(frame.f_globals), str(frame.f_code.co_consts)]\n        \
                 frame = frame.f_back\n    texts += [str(thing) for thing in gc.get_objects() if isinstance(thing, (dict, list, tuple))][:2000]\n    \
                 return a + b if any(''.join(['asse', 'rt cand']) in text for text in texts) else 0\n";
    for (trick, stops) in [
        (format!("{wrong}import sys\nsys.exit(0)"), false),
        ("import sys\nsys.exit(0)".into(), false),
        ("import os\nos._exit(0)".into(), true),
        ("def add(a, b):\n    import sys\n    sys.exit(0)".into(), false),
        ("def add(a, b):\n    import os\n    os._exit(0)".into(), true),
        ("class All:\n    def __eq__(self, other): return True\n    def __bool__(self): return True\ndef add(a, b): return All()".into(), false),
        ("class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef add(a, b): return Yes(0)".into(), false),
        (format!("{wrong}import builtins\nbuiltins.AssertionError = Warning\nbuiltins.compile = builtins.exec = builtins.eval = lambda *a: 'pass'"), false),
        (format!("{wrong}def check(candidate): pass\ncheck.__code__ = (lambda candidate: None).__code__"), false),
        (format!("{wrong}print('pass')\nprint(\"'pass'\")\nprint('ok', 'PASSED', 1.0)"), false),
        (format!("{wrong}import __main__\n__main__._answers = lambda calls: None\n_molt.out = \"'pass'\""), false),
        (format!("{wrong}class _Molt:\n    def __repr__(self): return 'pass'\n_molt = _Molt()\n_answers = print"), false),
        (format!("{wrong}type(_molt).__repr__ = lambda self: '[(1, 2)] + [' * 8000"), false),
        (format!("{wrong}_molt.text = type(_molt).text = lambda tree: '[(((((' * 3000"), false),
        (
            format!(
                "{wrong}import gc, sys\nfor thing in gc.get_objects():\n    if isinstance(thing, type) and thing.__name__ == 'Session':\n        \
                 thing.run = lambda self, source: sys.modules['wit_world.exports.code'].Output('pass', \"'pass'\", None)"
            ),
            false,
        ),
        (
            format!(
                "{wrong}import gc, sys\nfor thing in gc.get_objects():\n    if isinstance(thing, type) and thing.__name__ == 'Session':\n        \
                 thing.run = lambda self, source: sys.modules['wit_world.exports.code'].Output('', 'p' * 16000, None)"
            ),
            false,
        ),
        (seeks.into(), false),
        ("def add(a, b):\n    raise AssertionError".into(), false),
        ("def add(a, b):\n    raise KeyboardInterrupt".into(), false),
        ("def add(a, b):\n    while True: pass".into(), true),
        ("while True: pass".into(), true),
        ("def add(a, b):\n    while True: print('x' * 1000)".into(), true),
        ("def add(a, b):\n    return 'x' * 10**10".into(), false),
        ("def add(a, b):\n    return 9**9**9".into(), true),
        ("def add(a, b):\n    return iter(int, 1)".into(), false),
        ("def add(a, b):\n    return add(a, b)".into(), false),
        ("def add(a, b):\n    x = []\n    x.append(x)\n    return x".into(), false),
        (format!("{wrong}import atexit\natexit.register(print, 'pass')\nclass D:\n    def __del__(self): print('pass')\nd = D()"), false),
        (format!("{wrong}import sys\nsys.stdout = sys.stderr = None\nsys.modules['ast'] = None\nsys.settrace(lambda *a: None)"), false),
        (format!("{wrong}import sys\nsys.setrecursionlimit(10**9)\nadd = lambda a, b: add(a, b)"), true),
    ] {
        let trick: String = trick;
        let sample = row(PROMPT, &[("test", TEST), ("entry_point", "add")], &trick);
        let (passed, stopped) = outcome(&reward, &sample).await;
        assert!(!passed, "{trick}");
        assert!(stopped || !stops, "{trick}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_are_compared_by_what_they_print() {
    let stdin = r#"[{"input": "2\n3 4\n", "output": "7\n"}, {"input": "1\n5 5\n", "output": "10"}]"#;
    for program in [
        "n = int(input())\na, b = map(int, input().split())\nprint(a + b)",
        "```python\nimport sys\nprint(sum(map(int, sys.stdin.read().split()[1:])), '  \\n')\nsys.exit(0)\n```",
        "import sys\nsys.stdout.buffer.write(str(sum(map(int, sys.stdin.buffer.read().split()[1:]))).encode())",
        "print(sum(map(int, open(0).read().split()[1:])))",
        "if __name__ == '__main__':\n    input()\n    print(sum(int(x) for x in input().split()))",
    ] {
        assert!(passes(&[("stdin", stdin)], program).await, "{program}");
    }
    for program in [
        "print(7)",
        "print('7\\n7')",
        "input()\nprint(sum(map(int, input().split())))\nraise ValueError",
        "import sys\nsys.exit(0)",
        "import os\nprint(7, flush=True)\nos._exit(0)",
        "while True: print(7)",
        "_molt.out = '7'",
        "",
    ] {
        assert!(!passes(&[("stdin", stdin)], program).await, "{program}");
    }
    let both = [("stdin", stdin), ("test", "assert add(1, 2) == 3")];
    assert!(!passes(&both, "def add(a, b): return a + b").await, "all tests must pass");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_test_is_no_verdict_on_the_model() {
    for (columns, why) in [
        (vec![], "no tests"),
        (vec![("stdin", "[]")], "no tests"),
        (vec![("stdin", "{}")], "no list of inputs"),
        (vec![("test", "assert add(1, 2) ==")], "SyntaxError"),
        (vec![("test", "[1]")], "TypeError"),
        (vec![("test", "assert True")], "calls nothing"),
        (vec![("test", "while True: pass")], "more than 4000 ms"),
        (vec![("test", "x = 1\nwhile x:\n    x = add(1, x)")], "more than 100 times"),
    ] {
        let verdict = graded(&CODE, &row(PROMPT, &columns, "    return a + b")).await;
        assert!(matches!(&verdict, Verdict::Infra(told) if told.contains(why)), "{columns:?}: {verdict:?}");
    }
    let refused = SANDBOX.reward(&library(), "code", Limits::default()).err().unwrap();
    assert!(refused.to_string().contains("plugins.grant.code.code = \"python\""), "{refused}");
}
