//! A component without its debug information.
//!
//! Source lines are looked up by the host whenever a plugin crashes, outside of every limit, by code that trusts
//! a compiler to have written what it reads: deep nesting overflows the host's stack, and a few bytes stand for
//! gigabytes. So only an author's tools keep them.

use std::ops::Range;
use wasmparser::{BinaryReaderError, Parser, Payload};

/// What such sections are called, with their parts behind it.
const DEBUG: &[u8] = b".debug_";

/// The ids of the sections that hold a core module and a component.
const MODULE: u8 = 1;
const COMPONENT: u8 = 4;

/// `bytes`, which are a valid component, without the debug information of all modules in it.
pub(crate) fn debug_information(bytes: Vec<u8>) -> Result<Vec<u8>, BinaryReaderError> {
    if !bytes.windows(DEBUG.len()).any(|window| window == DEBUG) {
        return Ok(bytes);
    }
    let copy = |range: Range<usize>| bytes.get(range).unwrap_or_default();
    let mut outer = Vec::new();
    let (mut id, mut body) = (COMPONENT, Vec::new());
    for payload in Parser::new(0).parse_all(&bytes) {
        match payload? {
            Payload::Version { range, .. } => body.extend_from_slice(copy(range)),
            Payload::ModuleSection { .. } => {
                outer.push((std::mem::replace(&mut id, MODULE), std::mem::take(&mut body)))
            }
            Payload::ComponentSection { .. } => {
                outer.push((std::mem::replace(&mut id, COMPONENT), std::mem::take(&mut body)));
            }
            Payload::End(_) => {
                let Some((around, mut before)) = outer.pop() else { break };
                section(&mut before, id, &body);
                (id, body) = (around, before);
            }
            Payload::CustomSection(custom) if custom.name().as_bytes().starts_with(DEBUG) => {}
            other => {
                if let Some((id, range)) = other.as_section() {
                    section(&mut body, id, copy(range));
                }
            }
        }
    }
    Ok(body)
}

/// Writes a section: its id, its length in LEB128, and what is in it.
fn section(to: &mut Vec<u8>, id: u8, body: &[u8]) {
    to.push(id);
    let mut length = body.len();
    while length >= 0x80 {
        to.push(length as u8 | 0x80);
        length >>= 7;
    }
    to.push(length as u8);
    to.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn only_debug_information_is_left_out_however_deep_it_is() {
        let component = |debug: &str| {
            let text = format!(
                r#"(component
                    (core module (func (export "f") (i32.const 7) drop) (@custom "kept" "1") {debug})
                    (component (core module (memory 1) {debug} (data "{}")) (@custom "kept" "2"))
                    (@custom "version" "0.1.0"))"#,
                "x".repeat(300)
            );
            wat::parse_str(&text).unwrap()
        };
        let without = component("");
        let with = component(r#"(@custom ".debug_info" "abc") (@custom ".debug_str" "d")"#);
        assert_eq!(debug_information(with).unwrap(), without);
        assert_eq!(debug_information(without.clone()).unwrap(), without);
        // The name alone, where it is no section's.
        let mentioned = component(r#"(@custom "other" ".debug_info")"#);
        assert_eq!(debug_information(mentioned.clone()).unwrap(), mentioned);
    }
}
