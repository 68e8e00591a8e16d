//! Loops and crashes in everything that the host calls: exports, start-up, the allocator, the tidying after a call.

use crate::attack::{Attack, Fails};
use molt_tests::component::{ALLOCATOR, MEMORY, component, module, score};

pub(crate) fn attacks() -> Vec<Attack> {
    [fixtures(), start_up(), allocators(), after_the_call(), environments(), estimators()]
        .into_iter()
        .flatten()
        .collect()
}

const FOREVER: &str = "(loop $on (br $on))";

fn fixtures() -> Vec<Attack> {
    let cpu = || Fails("cpu-limit", "300 ms");
    vec![
        Attack::reward("loop-in-score", "loop", cpu()),
        Attack::reward("slow-regular-expression", "backtrack", cpu()),
        Attack::reward("panic", "trap", Fails("trap", "this reward panics on purpose")),
        Attack::reward("panic-with-escapes", "panic with escapes", Fails("trap", "]0;owned")),
        Attack::reward("panic-at-length", "panic at length", Fails("trap", "long")),
        Attack::reward("abort", "abort", Fails("trap", "crashed")),
        Attack::reward("exit", "exit", Fails("trap", "exited with status 1")),
        Attack::reward("exit-as-if-all-were-well", "exit 0", Fails("trap", "exited with status 0")),
        Attack::reward("division-by-zero", "divide", Fails("trap", "crashed")),
        Attack::reward("index-out-of-bounds", "index", Fails("trap", "crashed")),
        Attack::reward("recursion", "recurse", Fails("stack-overflow", "overflowed its stack")),
        Attack::environment("loop-in-constructor", "constructor: loop", cpu()),
        Attack::environment("loop-in-reset", "reset: loop", cpu()),
        Attack::environment("loop-in-step", "step: loop", cpu()),
        Attack::environment("panic-in-constructor", "constructor: trap", Fails("trap", "on purpose")),
        Attack::environment("panic-in-reset", "reset: trap", Fails("trap", "on purpose")),
        Attack::environment("panic-in-step", "step: trap", Fails("trap", "on purpose")),
        Attack::environment("exit-in-step", "step: exit", Fails("trap", "status 0")),
        Attack::environment(
            "recursion-in-constructor",
            "constructor: recurse",
            Fails("stack-overflow", "stack"),
        ),
        Attack::environment("recursion-in-step", "step: recurse", Fails("stack-overflow", "stack")),
        Attack::estimator("loop-in-estimate", 1.0, cpu()),
        Attack::estimator("panic-in-estimate", 2.0, Fails("trap", "this estimator panics on purpose")),
    ]
}

/// A reward that gives 1, and has something more.
fn reward(rest: &str) -> Vec<u8> {
    component("reward", &module(&format!("{rest}\n{}", score("(f64.store (i32.const 1032) (f64.const 1))"))))
}

/// A reward whose `score` is this body.
fn scoring(body: &str) -> Vec<u8> {
    component("reward", &module(&score(body)))
}

fn start_up() -> Vec<Attack> {
    let start = |body: &str| reward(&format!("(func $begin {body}) (start $begin)"));
    let initialize = |body: &str| reward(&format!("(func (export \"_initialize\") {body})"));
    vec![
        Attack::made("loop-in-start", start(FOREVER), Fails("cpu-limit", "300 ms")),
        Attack::made("loop-in-initialize", initialize(FOREVER), Fails("cpu-limit", "300 ms")),
        Attack::made("crash-in-start", start("unreachable"), Fails("trap", "unreachable")),
        Attack::made("recursion-in-start", start("(call $begin)"), Fails("stack-overflow", "stack")),
        Attack::made(
            "memory-in-start",
            start("(loop $on (drop (memory.grow (i32.const 16))) (br $on))"),
            Fails("cpu-limit", "300 ms"),
        ),
        Attack::made(
            "data-beyond-the-memory",
            reward(r#"(data (i32.const 131070) "too long")"#),
            Fails("trap", "out of bounds"),
        ),
    ]
}

/// Allocators, which the host calls for the arguments of a call.
fn allocators() -> Vec<Attack> {
    let with = |body: &str| {
        let allocator = format!(
            "(func $realloc (export \"cabi_realloc\") (param i32 i32 i32) (param $size i32) (result i32) {body})"
        );
        let imports = r#"(import "wasi:random/random@0.2.6" "get-random-u64" (func $random (result i64)))"#;
        component("reward", &format!("(module {imports} {MEMORY} {allocator} {})", score("")))
    };
    vec![
        Attack::made(
            "loop-in-allocator",
            with("(loop $on (br $on)) unreachable"),
            Fails("cpu-limit", "300 ms"),
        ),
        Attack::made("crash-in-allocator", with("unreachable"), Fails("trap", "unreachable")),
        Attack::made(
            "recursion-in-allocator",
            with("(call $realloc (i32.const 0) (i32.const 0) (i32.const 1) (local.get $size))"),
            Fails("stack-overflow", "stack"),
        ),
        Attack::made(
            "allocator-points-outside",
            with("(i32.const -65536)"),
            Fails("bad-return", "beyond end of memory"),
        ),
        Attack::made(
            "allocator-points-to-the-end",
            with("(i32.const 131071)"),
            Fails("bad-return", "beyond end of memory"),
        ),
        Attack::made("allocator-misaligns", with("(i32.const 65537)"), Fails("bad-return", "aligned")),
        Attack::made(
            "allocator-calls-out",
            with("(drop (call $random)) (i32.const 65536)"),
            Fails("trap", "cannot leave component instance"),
        ),
    ]
}

/// The guest's tidying, which the host calls after it has read the answer.
fn after_the_call() -> Vec<Attack> {
    let with = |body: &str| {
        reward(&format!("(func (export \"cabi_post_molt:plugin/reward@0.2.0#score\") (param i32) {body})"))
    };
    vec![
        Attack::made("loop-after-the-call", with(FOREVER), Fails("cpu-limit", "300 ms")),
        Attack::made("crash-after-the-call", with("unreachable"), Fails("trap", "unreachable")),
        Attack::made(
            "indirect-call-of-another-type",
            component(
                "reward",
                &module(&format!(
                    "(table 1 funcref) (elem (i32.const 0) $odd) (type $even (func (param i64)))
                     (func $odd (result i32) (i32.const 1)) {}",
                    score("(call_indirect (type $even) (i64.const 1) (i32.const 0))")
                )),
            ),
            Fails("trap", "indirect call type mismatch"),
        ),
        Attack::made(
            "indirect-call-of-nothing",
            component(
                "reward",
                &module(&format!(
                    "(table 1 funcref) (type $even (func)) {}",
                    score("(call_indirect (type $even) (i32.const 0))")
                )),
            ),
            Fails("trap", "uninitialized"),
        ),
        Attack::made(
            "integer-overflow",
            scoring("(drop (i32.trunc_f64_s (f64.const 1e300)))"),
            Fails("trap", "integer overflow"),
        ),
        Attack::made(
            "reading-outside",
            scoring("(drop (i64.load (i32.const -4)))"),
            Fails("trap", "out of bounds"),
        ),
        Attack::made(
            "writing-outside",
            scoring("(memory.fill (i32.const 131072) (i32.const 1) (i32.const 1))"),
            Fails("trap", "out of bounds"),
        ),
        Attack::made(
            "filling-without-end",
            scoring("(loop $on (memory.fill (i32.const 0) (i32.const 1) (i32.const 131072)) (br $on))"),
            Fails("cpu-limit", "300 ms"),
        ),
    ]
}

/// An environment by hand, whose functions are these bodies. It may call `$new` to make a handle of a number.
pub(crate) fn environment(constructor: &str, reset: &str, step: &str) -> Vec<u8> {
    environment_with("", constructor, reset, step)
}

/// The same with something more in its module.
pub(crate) fn environment_with(more: &str, constructor: &str, reset: &str, step: &str) -> Vec<u8> {
    let name = "molt:plugin/environment@0.2.0#";
    let text = format!(
        r#"(module
        (import "[export]molt:plugin/environment@0.2.0" "[resource-new]episode" (func $new (param i32) (result i32)))
        (import "[export]molt:plugin/environment@0.2.0" "[resource-drop]episode" (func $drop (param i32)))
        {MEMORY} {ALLOCATOR} {more}
        (func (export "{name}[constructor]episode")
          (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i64) (result i32) {constructor})
        (func (export "{name}[method]episode.reset") (param $self i32) (result i32) {reset} (i32.const 1024))
        (func (export "{name}[method]episode.step") (param $self i32) (param i32 i32 i32 i32 i32) (result i32)
          {step} (i32.const 1024)))"#
    );
    component("environment", &text)
}

pub(crate) const NEW: &str = "(call $new (i32.const 7))";

fn environments() -> Vec<Attack> {
    vec![
        Attack::made_environment(
            "an-episode-that-was-never-made",
            environment("(i32.const 4711)", "", ""),
            Fails("bad-return", "handle"),
        ),
        Attack::made_environment(
            "an-episode-that-is-gone",
            environment(
                "(local $made i32) (local.set $made (call $new (i32.const 7))) (call $drop (local.get $made))
                 (local.get $made)",
                "",
                "",
            ),
            Fails("bad-return", "handle"),
        ),
        Attack::made_environment(
            "episodes-without-end",
            environment("(loop $on (drop (call $new (i32.const 1))) (br $on)) unreachable", "", ""),
            Fails("trap", "handle"),
        ),
        Attack::made_environment(
            "loop-in-reset-by-hand",
            environment(NEW, FOREVER, ""),
            Fails("cpu-limit", "300 ms"),
        ),
    ]
}

/// An estimator by hand, whose functions are these bodies.
pub(crate) fn estimator(describe: &str, estimate: &str) -> Vec<u8> {
    component(
        "estimator",
        &module(&format!(
            r#"(func (export "molt:plugin/estimator@0.2.0#describe") (result i32) {describe} (i32.const 2048))
               (func (export "molt:plugin/estimator@0.2.0#estimate") (param $batch i32) (result i32)
                 {estimate} (i32.const 1024))"#
        )),
    )
}

fn estimators() -> Vec<Attack> {
    vec![
        Attack::made_estimator("loop-in-describe", estimator(FOREVER, ""), Fails("cpu-limit", "300 ms")),
        Attack::made_estimator(
            "crash-in-describe",
            estimator("unreachable", ""),
            Fails("trap", "unreachable"),
        ),
    ]
}
