//! Components made of core WebAssembly by hand, for what a compiler would not write: guests that break the
//! canonical ABI, or that take part in an attack before or after a call.

use crate::root;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::{Resolve, WorldId};

/// A component of a world of `tests/wit` whose only code is the core module `text`, in the text format.
///
/// Its exports are named as the canonical ABI says: `molt:plugin/reward@0.2.0#score`, `cabi_realloc`, ….
pub fn component(world: &str, text: &str) -> Vec<u8> {
    let module = wat::parse_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    from_module(world, module)
}

/// The same of a module in the binary format.
pub fn from_module(world: &str, mut module: Vec<u8>) -> Vec<u8> {
    let (resolve, world) = resolve(world);
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("metadata");
    let mut encoder = ComponentEncoder::default();
    encoder.validate(true).module(&module).unwrap_or_else(|error| panic!("{error:#}"));
    encoder.encode().unwrap_or_else(|error| panic!("{error:#}"))
}

/// The contract, WASI as far as hostile components call it, and one of their worlds.
pub(crate) fn resolve(world: &str) -> (Resolve, WorldId) {
    let mut resolve = Resolve::default();
    resolve.push_dir(root().join("wit/0.2.0")).expect("the contract");
    let mut package = None;
    for file in ["tests/wit/wasi.wit", "tests/wit/hostile.wit"] {
        let path = root().join(file);
        let text = std::fs::read_to_string(&path).expect("the worlds");
        package = Some(resolve.push_str(&path, &text).unwrap_or_else(|error| panic!("{error:#}")));
    }
    let world = resolve.select_world(package.as_slice(), Some(world)).expect("the world");
    (resolve, world)
}

/// The sections of a binary that is in order: of each its id, and where it ends.
pub fn sections(bytes: &[u8]) -> impl Iterator<Item = (u8, usize)> {
    let mut at = 8;
    std::iter::from_fn(move || {
        let id = *bytes.get(at)?;
        let (mut length, mut shift) = (0, 0);
        loop {
            at += 1;
            length |= usize::from(bytes[at] & 0x7f) << shift;
            shift += 7;
            if bytes[at] < 0x80 {
                break;
            }
        }
        at += 1 + length;
        Some((id, at))
    })
}

/// Memory, and an allocator that only ever grows. A module with these exports has the rest of its text in `rest`.
pub fn module(rest: &str) -> String {
    format!("(module {rest}\n{MEMORY}\n{ALLOCATOR})")
}

/// One page, whose first 64 KiB the allocator leaves to the attack.
pub const MEMORY: &str = r#"(memory (export "memory") 2)"#;

/// A bump allocator above the first page.
pub const ALLOCATOR: &str = r#"
(global $top (mut i32) (i32.const 65536))
(func $realloc (export "cabi_realloc") (param i32 i32 i32) (param $size i32) (result i32) (local $at i32)
  (local.set $at (i32.and (i32.add (global.get $top) (i32.const 7)) (i32.const -8)))
  (global.set $top (i32.add (local.get $at) (local.get $size)))
  (if (i32.gt_u (global.get $top) (i32.mul (memory.size) (i32.const 65536)))
    (then (drop (memory.grow (i32.add (i32.shr_u (local.get $size) (i32.const 16)) (i32.const 1))))))
  (local.get $at))"#;

/// The `score` of a reward whose `body` leaves its verdict at address 1024: the case at 1024, the reward at 1032,
/// whether it is solved at 1040, the metrics' address and number at 1044 and 1048; the address and length of a
/// reason at 1032 and 1036. The completion is `$text`, of `$length` bytes.
pub fn score(body: &str) -> String {
    format!(
        r#"(func (export "molt:plugin/reward@0.2.0#score")
  (param $id i32) (param $id_length i32) (param $prompt i32) (param $prompt_length i32)
  (param $labelled i32) (param $label i32) (param $label_length i32)
  (param $fields i32) (param $fields_length i32) (param $seed i64)
  (param $messages i32) (param $messages_length i32)
  (param $text i32) (param $length i32) (param $truncated i32) (result i32)
  {body}
  (i32.const 1024))"#
    )
}
