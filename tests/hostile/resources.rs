//! Memory, tables, stack, instances, handles and calls of the host: bombs at start-up and by growth.

use crate::attack::{Answer, Attack, Fails, Refused};
use molt_tests::component::{ALLOCATOR, MEMORY, component, module, score, sections};

pub(crate) fn attacks() -> Vec<Attack> {
    [fixtures(), memories(), tables(), stacks(), handles(), host_calls(), crowds()]
        .into_iter()
        .flatten()
        .collect()
}

fn memory() -> crate::attack::Expected {
    Fails("memory-limit", "32 MiB")
}

fn fixtures() -> Vec<Attack> {
    // Slow machines must meet the memory limit first, not the one of CPU time.
    let patient = |attack: Attack| attack.with(|access| access.limits.cpu_ms = 10_000);
    vec![
        patient(Attack::reward("memory-by-mebibytes", "alloc", memory())),
        patient(Attack::reward("memory-by-small-boxes", "alloc small", memory())),
        patient(Attack::reward("a-gibibyte-at-once", "alloc at once", memory())),
        patient(Attack::environment("memory-in-constructor", "constructor: alloc", memory())),
        patient(Attack::environment("memory-in-reset", "reset: alloc", memory())),
        patient(Attack::environment("memory-in-step", "step: alloc", memory())),
        patient(Attack::estimator("memory-in-estimate", 11.0, memory())),
    ]
}

fn memories() -> Vec<Attack> {
    let declared = |text: &str| component("reward", &format!("(module {text} {ALLOCATOR} {})", score("")));
    let scoring = |body: &str| component("reward", &module(&score(body)));
    vec![
        Attack::made("four-gibibytes-declared", declared(r#"(memory (export "memory") 65536)"#), memory()),
        Attack::made("a-gibibyte-declared", declared(r#"(memory (export "memory") 16384)"#), memory()),
        Attack::made("a-page-too-much-declared", declared(r#"(memory (export "memory") 513)"#), memory()),
        Attack::made(
            "two-memories-declared",
            declared(r#"(memory (export "memory") 300) (memory 300)"#),
            memory(),
        ),
        Attack::made(
            "five-memories",
            declared(&format!("{MEMORY} (memory 1) (memory 1) (memory 1) (memory 1)")),
            Refused("defined memories count of 5 exceeds"),
        ),
        Attack::made(
            "memory-of-64-bits",
            declared(&format!("{MEMORY} (memory i64 0x100000000)")),
            // 2^48 bytes: what the runtime cannot even count as pages of the pool.
            Refused("a minimum byte size of 281474976710656 which exceeds"),
        ),
        Attack::made(
            "growth-that-is-not-believed",
            scoring(
                "(drop (memory.grow (i32.const 600))) (memory.fill (i32.const 0) (i32.const 1) (i32.const 30000000))",
            ),
            memory(),
        ),
        Attack::made(
            "growth-page-by-page",
            scoring("(loop $on (br_if $on (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) unreachable"),
            memory(),
        ),
    ]
}

fn tables() -> Vec<Attack> {
    let with = |text: &str, body: &str| component("reward", &module(&format!("{text} {}", score(body))));
    let elements = || Fails("memory-limit", "table elements");
    vec![
        Attack::made(
            "ten-million-elements-declared",
            with("(table 10000000 funcref)", ""),
            Refused("a minimum element size of 10000000 which exceeds"),
        ),
        Attack::made(
            "elements-of-two-tables-declared",
            with("(table 150000 funcref) (table 150000 funcref)", ""),
            elements(),
        ),
        Attack::made(
            "elements-by-growth",
            with(
                "(table $t 1 funcref)",
                "(loop $on (br_if $on
                   (i32.ne (table.grow $t (ref.null func) (i32.const 1000)) (i32.const -1)))) unreachable",
            ),
            elements(),
        ),
        Attack::made(
            "elements-at-once",
            with(
                "(table $t 1 funcref)",
                "(drop (table.grow $t (ref.null func) (i32.const -2)))
                 (table.fill $t (i32.const 0) (ref.null func) (i32.const 1000000))",
            ),
            elements(),
        ),
        Attack::made(
            "seventeen-tables",
            with(&"(table 1 funcref)".repeat(17), ""),
            Refused("defined tables count of 17 exceeds"),
        ),
    ]
}

fn stacks() -> Vec<Attack> {
    let with = |text: &str, body: &str| component("reward", &module(&format!("{text} {}", score(body))));
    let stack = || Fails("stack-overflow", "overflowed its stack");
    let locals = "i64 ".repeat(5000);
    vec![
        Attack::made(
            "recursion-without-frames",
            with(
                "(func $r (param i32) (result i32) (i32.add (call $r (local.get 0)) (i32.const 1)))",
                "(drop (call $r (i32.const 0)))",
            ),
            stack(),
        ),
        Attack::made(
            "recursion-of-two",
            with("(func $a (call $b) (call $b)) (func $b (call $a) (call $a))", "(call $a)"),
            stack(),
        ),
        Attack::made(
            "recursion-through-a-table",
            with(
                "(table 1 funcref) (elem (i32.const 0) $r) (type $t (func))
                 (func $r (call_indirect (type $t) (i32.const 0)) (call_indirect (type $t) (i32.const 0)))",
                "(call $r)",
            ),
            stack(),
        ),
        Attack::made(
            "recursion-with-large-frames",
            with(
                &format!(
                    "(func $r (param i64) (result i64) (local {locals}) (i64.add (call $r (local.get 0)) (local.get 4000)))"
                ),
                "(drop (call $r (i64.const 0)))",
            ),
            stack(),
        ),
        Attack::made(
            "recursion-of-tail-calls",
            with("(func $r (return_call $r))", "(call $r)"),
            Fails("cpu-limit", "300 ms"),
        ),
    ]
}

const IMPORTS: &str = r#"
(import "wasi:random/random@0.2.6" "get-random-bytes" (func $random (param i64 i32)))
(import "wasi:random/insecure@0.2.6" "get-insecure-random-bytes" (func $insecure (param i64 i32)))
(import "wasi:cli/stdin@0.2.6" "get-stdin" (func $stdin (result i32)))
(import "wasi:cli/stdout@0.2.6" "get-stdout" (func $stdout (result i32)))
(import "wasi:cli/exit@0.2.6" "exit" (func $exit (param i32)))
(import "wasi:clocks/monotonic-clock@0.2.6" "now" (func $now (result i64)))
(import "wasi:clocks/monotonic-clock@0.2.6" "subscribe-duration" (func $timer (param i64) (result i32)))
(import "wasi:io/poll@0.2.6" "poll" (func $poll (param i32 i32 i32)))
(import "wasi:io/poll@0.2.6" "[method]pollable.block" (func $block (param i32)))
(import "wasi:io/poll@0.2.6" "[resource-drop]pollable" (func $drop_pollable (param i32)))
(import "wasi:io/streams@0.2.6" "[method]input-stream.read" (func $read (param i32 i64 i32)))
(import "wasi:io/streams@0.2.6" "[method]input-stream.blocking-read" (func $blocking_read (param i32 i64 i32)))
(import "wasi:io/streams@0.2.6" "[method]input-stream.skip" (func $skip (param i32 i64 i32)))
(import "wasi:io/streams@0.2.6" "[method]output-stream.write" (func $write (param i32 i32 i32 i32)))
(import "wasi:io/streams@0.2.6" "[method]output-stream.write-zeroes" (func $zeroes (param i32 i64 i32)))
(import "wasi:io/streams@0.2.6" "[method]output-stream.blocking-write-zeroes-and-flush" (func $blocking_zeroes (param i32 i64 i32)))
(import "wasi:io/streams@0.2.6" "[method]output-stream.blocking-splice" (func $splice (param i32 i32 i64 i32)))
(import "wasi:io/streams@0.2.6" "[method]output-stream.subscribe" (func $subscribe (param i32) (result i32)))
(import "wasi:io/streams@0.2.6" "[resource-drop]output-stream" (func $drop_output (param i32)))
"#;

/// A reward that may call all of these.
fn calling(body: &str) -> Vec<u8> {
    component("reward", &module(&format!("{IMPORTS} {}", score(body))))
}

fn handles() -> Vec<Attack> {
    let trap = |told| Fails("trap", told);
    vec![
        Attack::made(
            "streams-without-end",
            calling("(loop $on (drop (call $stdout)) (br $on))"),
            trap("handle"),
        ),
        Attack::made(
            "timers-without-end",
            calling("(loop $on (drop (call $timer (i64.const -1))) (br $on))"),
            trap("no free keys"),
        ),
        Attack::made(
            "a-forged-handle",
            calling("(call $zeroes (i32.const 4711) (i64.const 1) (i32.const 2048))"),
            trap("handle"),
        ),
        Attack::made(
            "a-handle-of-another-type",
            calling("(call $zeroes (call $timer (i64.const 0)) (i64.const 1) (i32.const 2048))"),
            trap("handle"),
        ),
        Attack::made(
            "a-handle-that-is-gone",
            calling(
                "(local $out i32) (local.set $out (call $stdout)) (call $drop_output (local.get $out))
                 (call $zeroes (local.get $out) (i64.const 1) (i32.const 2048))",
            ),
            trap("handle"),
        ),
        Attack::made(
            "a-stream-dropped-before-what-waits-for-it",
            calling(
                "(local $out i32) (local.set $out (call $stdout)) (drop (call $subscribe (local.get $out)))
                 (call $drop_output (local.get $out))",
            ),
            trap("crashed"),
        ),
        Attack::made(
            "polling-nothing",
            calling("(call $poll (i32.const 0) (i32.const 0) (i32.const 2048))"),
            trap("poll"),
        ),
        Attack::made(
            "polling-one-a-million-times",
            calling(
                "(local $timer i32) (local $at i32)
                 (local.set $timer (call $timer (i64.const 0)))
                 (drop (memory.grow (i32.const 64)))
                 (local.set $at (i32.const 65536))
                 (loop $more
                   (i32.store (local.get $at) (local.get $timer))
                   (local.set $at (i32.add (local.get $at) (i32.const 4)))
                   (br_if $more (i32.lt_u (local.get $at) (i32.const 4259840))))
                 (call $poll (i32.const 65536) (i32.const 1048576) (i32.const 2048))",
            ),
            Fails("output-limit", "1024 KiB"),
        ),
        Attack::made(
            "polling-outside",
            calling("(call $poll (i32.const 0) (i32.const 0x20000000) (i32.const 2048))"),
            trap("out of bounds"),
        ),
        Attack::made(
            "an-answer-written-outside",
            calling("(call $random (i64.const 8) (i32.const -64))"),
            trap("out of bounds"),
        ),
    ]
}

fn host_calls() -> Vec<Attack> {
    let calls = || Fails("host-calls-limit", "limit of 1000");
    let few = |attack: Attack| attack.with(|access| access.limits.host_calls = 1000);
    vec![
        few(Attack::reward("the-clock-in-a-loop", "clock", calls())),
        few(Attack::made("the-clock-by-hand", calling("(loop $on (drop (call $now)) (br $on))"), calls())),
        few(Attack::made(
            "timers-in-a-loop",
            calling("(loop $on (call $drop_pollable (call $timer (i64.const -1))) (br $on))"),
            calls(),
        )),
        few(Attack::made(
            "waiting-in-a-loop",
            calling(
                "(local $timer i32)
                 (loop $on
                   (local.set $timer (call $timer (i64.const -1)))
                   (call $block (local.get $timer)) (call $drop_pollable (local.get $timer)) (br $on))",
            ),
            calls(),
        )),
        Attack::made(
            "a-mebibyte-of-randomness-in-a-loop",
            calling(
                "(loop $on
                   (global.set $top (i32.const 65536))
                   (call $random (i64.const 1000000) (i32.const 2048)) (br $on))",
            ),
            Fails("cpu-limit", "300 ms"),
        ),
        Attack::made(
            "randomness-without-end",
            calling("(call $random (i64.const -1) (i32.const 2048))"),
            Fails("trap", "random"),
        ),
        Attack::made(
            "randomness-of-a-tebibyte",
            calling("(call $insecure (i64.const 0x10000000000) (i32.const 2048))"),
            Fails("trap", "random"),
        ),
        Attack::made(
            "zeroes-without-end",
            calling("(call $zeroes (call $stdout) (i64.const -1) (i32.const 2048))"),
            Fails("trap", "crashed"),
        ),
        Attack::made(
            "zeroes-without-end-in-patience",
            calling("(call $blocking_zeroes (call $stdout) (i64.const -1) (i32.const 2048))"),
            Fails("trap", "crashed"),
        ),
        Attack::made(
            "more-output-than-is-permitted-is-cut-off",
            calling("(call $write (call $stdout) (i32.const 0) (i32.const 131072) (i32.const 2048))"),
            Answer("reward: 0.0"),
        ),
        Attack::made(
            "output-from-outside",
            calling("(call $write (call $stdout) (i32.const -16) (i32.const 64) (i32.const 2048))"),
            Fails("trap", "out of bounds"),
        ),
        Attack::made(
            "exit-with-a-case-that-does-not-exist",
            calling("(call $exit (i32.const 2))"),
            Fails("trap", "discriminant"),
        ),
    ]
}

/// Rewards that spawn: instances, types and nested components without end, beside a `score` that is in order.
fn crowds() -> Vec<Attack> {
    let crowd = |text: String| wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}"));
    // Each level instantiates the one below twice: 2^20 core instances of one small file.
    let mut doubling = "(component $l0 (core module $m) (core instance (instantiate $m)))".to_owned();
    for level in 1..=20 {
        doubling = format!(
            "(component $l{level} {doubling} (instance (instantiate $l{below})) (instance (instantiate $l{below})))",
            below = level - 1
        );
    }
    let deep = (0..2000).fold(hollow(&[]), |inner, _| hollow(&section(4, &inner)));
    // A type that doubles with every name: nothing in the file, and more than the universe when it is spelled out.
    let mut tuples = "(type $t0 (tuple u8 u8))".to_owned();
    for level in 1..=100 {
        tuples += &format!("(type $t{level} (tuple $t{below} $t{below}))", below = level - 1);
    }
    vec![
        Attack::made("a-crowd-of-one", with_crowd(&crowd("(component)".into())), Answer("reward: 0.0")),
        Attack::made(
            "thirty-three-instances",
            with_crowd(&crowd(format!(
                "(component (core module $m) {})",
                "(core instance (instantiate $m))".repeat(33)
            ))),
            // Its own, which is in order, and those.
            Refused("contains 34 core module instances"),
        ),
        Attack::made(
            "components-that-double",
            with_crowd(&crowd(format!("(component {doubling} (instance (instantiate $l20)))"))),
            Refused("more than 1000 instances"),
        ),
        Attack::made(
            "components-in-components",
            with_crowd(&deep),
            Refused("more than 50 components in each other"),
        ),
        Attack::made(
            "types-that-double",
            with_crowd(&crowd(format!("(component {tuples})"))),
            Refused("effective type size exceeds"),
        ),
    ]
}

/// A reward that also has an instance of the component `crowd`.
fn with_crowd(crowd: &[u8]) -> Vec<u8> {
    let reward = component("reward", &module(&score("")));
    let number = sections(&reward).filter(|(id, _)| *id == 4).count();
    // One instance: of the component with that number, without arguments.
    let instance = [vec![1, 0], leb(number), vec![0]].concat();
    [reward, section(4, crowd), section(5, &instance)].concat()
}

/// A component of these sections.
fn hollow(sections: &[u8]) -> Vec<u8> {
    [b"\0asm\x0d\0\x01\0", sections].concat()
}

fn section(id: u8, content: &[u8]) -> Vec<u8> {
    [&[id][..], &leb(content.len()), content].concat()
}

/// A number as the binary format writes it.
fn leb(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}
