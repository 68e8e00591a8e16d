//! Small files that are much work to compile, or that make much of little when they are instantiated.

use crate::attack::{Attack, Refused};
use molt_tests::component::{ALLOCATOR, MEMORY, component, score};
use std::fmt::Write;

/// Each is more than any compiler writes, and would be seconds to minutes, and up to gigabytes, to compile.
pub(crate) fn attacks() -> Vec<Attack> {
    [
        ("values-of-wide-calls", wide_calls(400)),
        ("values-of-wide-blocks", wide_blocks(400)),
        ("locals-in-nested-loops", nested_loops(20_000, 1_000)),
        ("locals-live-over-many-blocks", many_blocks(4_000, 6_000)),
        ("branch-tables", branch_tables(30, 60_000)),
        ("operands-without-end", operands(400_000)),
        ("blocks-in-blocks", blocks_in_blocks(10_000)),
        ("empty-functions", many_functions(200_000)),
        ("modules-without-end", many_instances(10, 10)),
    ]
    .into_iter()
    .map(|(name, component)| Attack::made(name, component, Refused("would take too long to compile")))
    .collect()
}

fn reward(rest: &str) -> Vec<u8> {
    component("reward", &format!("(module {MEMORY} {ALLOCATOR} {} {rest})", score("")))
}

/// A thousand values come back from one call and go into the next.
fn wide_calls(calls: usize) -> Vec<u8> {
    let thousand = "i32 ".repeat(1000);
    reward(&format!(
        "(func $give (result {thousand}) unreachable) (func $take (param {thousand}))
         (func {})",
        "call $give call $take ".repeat(calls)
    ))
}

/// A thousand values go through one block after the other.
fn wide_blocks(blocks: usize) -> Vec<u8> {
    let thousand = "i32 ".repeat(1000);
    reward(&format!(
        "(type $through (func (param {thousand}) (result {thousand})))
         (func $give (result {thousand}) unreachable) (func $take (param {thousand}))
         (func (param i32) call $give {} call $take)",
        "block (type $through) local.get 0 br_if 0 end ".repeat(blocks)
    ))
}

/// Every local changes within all loops, so every loop merges every local.
fn nested_loops(locals: usize, depth: usize) -> Vec<u8> {
    let mut changes = String::new();
    for local in 1..locals {
        let _ = write!(changes, "local.get {} local.set {local} ", local - 1);
    }
    reward(&format!(
        "(func (param i32) (local {}) {} {changes} local.get {} local.set 0 {})",
        "i32 ".repeat(locals - 1),
        "loop ".repeat(depth),
        locals - 1,
        "local.get 0 br_if 0 end ".repeat(depth)
    ))
}

/// Every local is set at the beginning, read at the end, and lives through all that is between.
fn many_blocks(locals: usize, blocks: usize) -> Vec<u8> {
    let (mut begin, mut end) = (String::new(), String::from("i32.const 0 "));
    for local in 1..locals {
        let _ = write!(begin, "local.get 0 i32.const {local} i32.mul local.set {local} ");
        let _ = write!(end, "local.get {local} i32.xor ");
    }
    reward(&format!(
        "(func (param i32) (result i32) (local {}) {begin} {} {end})",
        "i32 ".repeat(locals - 1),
        "block local.get 0 br_if 0 local.get 0 i32.const 1 i32.sub local.set 0 end ".repeat(blocks)
    ))
}

fn branch_tables(tables: usize, targets: usize) -> Vec<u8> {
    let table = format!("block block local.get 0 br_table {} end end ", "0 1 ".repeat(targets / 2));
    reward(&format!("(func (param i32) {})", table.repeat(tables)))
}

/// So many values are on the operand stack before the first is used.
fn operands(number: usize) -> Vec<u8> {
    reward(&format!(
        "(func (param i32) (result i32) {} {})",
        "local.get 0 i32.load ".repeat(number),
        "i32.add ".repeat(number - 1)
    ))
}

fn blocks_in_blocks(depth: usize) -> Vec<u8> {
    reward(&format!(
        "(func (param i32) {} {})",
        "block ".repeat(depth),
        "local.get 0 br_if 0 end ".repeat(depth)
    ))
}

fn many_functions(number: usize) -> Vec<u8> {
    reward(&"(func)".repeat(number))
}

/// Components in each other, each of which instantiates the one in it several times.
fn many_instances(depth: usize, times: usize) -> Vec<u8> {
    let mut text = String::from("(component $inner (core module $m) (core instance (instantiate $m)))");
    for _ in 0..depth {
        let instances = "(instance (instantiate $inner)) ".repeat(times);
        text = format!("(component $inner {text} {instances})");
    }
    wat::parse_str(text).unwrap_or_else(|error| panic!("{error}"))
}
