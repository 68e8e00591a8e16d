//! A plugin that does whatever a script of bytes says: it calls everything that the host offers, with arguments,
//! addresses and handles of the script's choice, and returns what the script left in its memory.
//!
//! The functions of the host are read from the worlds, so that a new one is called without a line here.

use crate::component::{ALLOCATOR, component, resolve};
use std::fmt::Write;
use wit_parser::abi::{AbiVariant, WasmSignature, WasmType};
use wit_parser::{Resolve, TypeDefKind, WorldItem};

/// What a script may point to without spelling it out. The first is the label of the task.
const WORDS: [&str; 24] = [
    "",
    "data.txt",
    ".",
    "..",
    "/etc/passwd",
    "../../etc/passwd",
    "new",
    "new/deep",
    "link",
    "folder",
    "GET",
    "POST",
    "content-type",
    "host",
    "/",
    "/data",
    "/scratch",
    "a\u{0}b",
    "\u{202e}",
    "user",
    "remember x\nrecall",
    "loop",
    "http",
    "x-molt",
];

/// The kinds of plugin that a puppet can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Its script is the completion.
    Reward,
    /// Its script is the first completion.
    GroupReward,
    /// Its script is the task's id at first, and the action's text later.
    Environment,
    /// Its script is the turns of the tokens.
    Estimator,
}

/// The puppet as a component. A script's bytes are given as the characters U+0000 to U+00FF.
pub fn puppet(part: Part) -> Vec<u8> {
    let world = match part {
        Part::Reward => "puppet-reward",
        Part::GroupReward => "puppet-group-reward",
        Part::Environment => "puppet-environment",
        Part::Estimator => "puppet-estimator",
    };
    let functions = functions(world);
    let mut text = String::from("(module\n");
    for (number, function) in functions.iter().enumerate() {
        let _ = writeln!(text, "{}", function.import(number));
    }
    if part == Part::Environment {
        text += r#"(import "[export]molt:plugin/environment@0.2.0" "[resource-new]episode" (func $new (param i32) (result i32)))"#;
    }
    text += INTERPRETER;
    text +=
        &ALLOCATOR.replace("\n  (local.get $at))", "\n  (i32.add (local.get $at) (global.get $misplace)))");
    for (number, word) in WORDS.iter().enumerate() {
        let escaped: String = word.bytes().map(|byte| format!("\\{byte:02x}")).collect();
        let _ = writeln!(text, "(data (i32.const {}) \"{escaped}\")", 12288 + 32 * number);
        let _ = writeln!(text, "(data (i32.const {}) \"\\{:02x}\")", 12288 + 32 * number + 31, word.len());
    }
    for (number, function) in functions.iter().enumerate() {
        let _ = writeln!(text, "{}", function.operation(number));
    }
    text += &run(functions.len());
    text += match part {
        Part::Reward => REWARD,
        Part::GroupReward => GROUP_REWARD,
        Part::Environment => ENVIRONMENT,
        Part::Estimator => ESTIMATOR,
    };
    component(world, &(text + ")"))
}

/// A function of the host as the guest's core code imports it.
struct HostFunction {
    interface: String,
    name: String,
    signature: WasmSignature,
}

/// Every function that the world imports, in a fixed order.
fn functions(world: &str) -> Vec<HostFunction> {
    let (resolve, world) = resolve(world);
    let mut functions = Vec::new();
    for (key, item) in &resolve.worlds[world].imports {
        let WorldItem::Interface { id, .. } = item else { continue };
        let interface = resolve.name_world_key(key);
        for function in resolve.interfaces[*id].functions.values() {
            let signature = resolve.wasm_signature(AbiVariant::GuestImport, function);
            functions.push(HostFunction {
                interface: interface.clone(),
                name: function.name.clone(),
                signature,
            });
        }
        for name in resources(&resolve, *id) {
            let name = format!("[resource-drop]{name}");
            let signature = WasmSignature {
                params: vec![WasmType::I32],
                results: vec![],
                indirect_params: false,
                retptr: false,
            };
            functions.push(HostFunction { interface: interface.clone(), name, signature });
        }
    }
    functions
}

fn resources(resolve: &Resolve, interface: wit_parser::InterfaceId) -> Vec<String> {
    let types = resolve.interfaces[interface].types.iter();
    let resources = types.filter(|(_, id)| matches!(resolve.types[**id].kind, TypeDefKind::Resource));
    resources.map(|(name, _)| name.clone()).collect()
}

fn core_type(kind: WasmType) -> &'static str {
    match kind {
        WasmType::I64 | WasmType::PointerOrI64 => "i64",
        WasmType::F32 => "f32",
        WasmType::F64 => "f64",
        WasmType::I32 | WasmType::Pointer | WasmType::Length => "i32",
    }
}

impl HostFunction {
    fn import(&self, number: usize) -> String {
        let params: Vec<&str> = self.signature.params.iter().map(|kind| core_type(*kind)).collect();
        let results: Vec<&str> = self.signature.results.iter().map(|kind| core_type(*kind)).collect();
        format!(
            "(import {:?} {:?} (func $host{number} (param {}) (result {})))",
            self.interface,
            self.name,
            params.join(" "),
            results.join(" ")
        )
    }

    /// Takes the arguments from the script, calls, and keeps what may be a handle.
    fn operation(&self, number: usize) -> String {
        let mut params: Vec<String> =
            self.signature.params.iter().map(|kind| format!("(call ${})", core_type(*kind))).collect();
        if self.signature.retptr {
            params.pop();
            params.push("(i32.const 16384)".into());
        }
        let call = format!("(call $host{number} {})", params.join(" "));
        let kept = match self.signature.results.first().map(|kind| core_type(*kind)) {
            None if self.signature.retptr => {
                format!(
                    "{call} (call $keep (i32.load (i32.const 16392))) (call $keep (i32.load (i32.const 16388)))"
                )
            }
            None => call,
            Some("i32") => format!("(call $keep {call})"),
            Some(_) => format!("(drop {call})"),
        };
        format!("(func $operation{number} {kept})")
    }
}

/// Runs the script until it ends or says stop.
fn run(functions: usize) -> String {
    // What the script can do by itself: store, leave an answer, stop.
    let own = [
        "(i32.store (i32.and (call $i32) (i32.const 0x1ffff)) (call $i32))",
        "(i64.store (i32.and (call $i32) (i32.const 0x1ffff)) (call $i64))",
        "(i64.store (i32.add (i32.const 1024) (i32.and (call $byte) (i32.const 0xf8))) (call $i64))",
        "(global.set $result (call $i32))",
        "(global.set $misplace (call $i32))",
        "return",
    ];
    let total = functions + own.len();
    let labels: Vec<String> = (0..total).map(|number| format!("$case{number}")).collect();
    let mut body = format!("(br_table {} (i32.rem_u (call $byte) (i32.const {total})))", labels.join(" "));
    for number in 0..total {
        let action = match own.get(number.wrapping_sub(functions)) {
            Some(own) => (*own).to_owned(),
            None => format!("(call $operation{number})"),
        };
        body = format!("(block $case{number} {body}) {action} (br $next)");
    }
    format!("(func $run (loop $next (br_if 1 (i32.ge_u (global.get $at) (global.get $end))) {body}))")
}

/// Script at 4096, slots of handles at 8192, words at 12288, answers of the host at 16384.
const INTERPRETER: &str = r#"
(memory (export "memory") 3)
(global $at (mut i32) (i32.const 4096))
(global $end (mut i32) (i32.const 4096))
(global $result (mut i32) (i32.const 1024))
(global $misplace (mut i32) (i32.const 0))
(global $pending (mut i32) (i32.const -1))
(global $kept (mut i32) (i32.const 0))

(func $keep (param $handle i32)
  (i32.store (i32.add (i32.const 8192) (i32.shl (i32.and (global.get $kept) (i32.const 63)) (i32.const 2)))
    (local.get $handle))
  (global.set $kept (i32.add (global.get $kept) (i32.const 1))))

(func $byte (result i32)
  (if (i32.ge_u (global.get $at) (global.get $end)) (then (return (i32.const 0))))
  (i32.load8_u (global.get $at))
  (global.set $at (i32.add (global.get $at) (i32.const 1))))

(func $raw (result i32)
  (i32.or
    (i32.or (call $byte) (i32.shl (call $byte) (i32.const 8)))
    (i32.or (i32.shl (call $byte) (i32.const 16)) (i32.shl (call $byte) (i32.const 24)))))

(func $i32 (result i32) (local $n i32)
  (if (i32.ge_s (global.get $pending) (i32.const 0))
    (then (global.get $pending) (global.set $pending (i32.const -1)) (return)))
  (block $word (block $given (block $slot (block $script (block $raw (block $edge (block $small
    (br_table $small $slot $word $script $given $raw $edge $small (i32.and (call $byte) (i32.const 7))))
    (return (call $byte)))
    (return (i32.sub (i32.shl (call $byte) (i32.const 11)) (call $byte))))
    (return (call $raw)))
    (local.set $n (call $byte))
    (global.set $pending (call $byte))
    (return (i32.add (i32.const 4096) (i32.shl (local.get $n) (i32.const 2)))))
    (return (i32.load (i32.add (i32.const 8192)
      (i32.shl (i32.and (i32.sub (global.get $kept) (i32.add (call $byte) (i32.const 1))) (i32.const 63)) (i32.const 2))))))
    (return (i32.load (i32.and (i32.add (i32.load (i32.const 16384)) (i32.shl (call $byte) (i32.const 2))) (i32.const 0x1fffc)))))
  (local.set $n (i32.add (i32.const 12288) (i32.shl (i32.rem_u (call $byte) (i32.const 24)) (i32.const 5))))
  (global.set $pending (i32.load8_u offset=31 (local.get $n)))
  (local.get $n))

(func $i64 (result i64)
  (if (i32.and (call $byte) (i32.const 1))
    (then (return (i64.or (i64.extend_i32_u (call $raw)) (i64.shl (i64.extend_i32_u (call $raw)) (i64.const 32))))))
  (i64.extend_i32_s (call $i32)))

(func $f32 (result f32) (f32.reinterpret_i32 (call $raw)))
(func $f64 (result f64) (f64.reinterpret_i64 (call $i64)))

(func $write (param $byte i32)
  (if (i32.ge_u (global.get $end) (i32.const 8192)) (then (return)))
  (i32.store8 (global.get $end) (local.get $byte))
  (global.set $end (i32.add (global.get $end) (i32.const 1))))

(func $read_text (param $from i32) (param $length i32) (local $to i32) (local $byte i32)
  (global.set $at (i32.const 4096))
  (global.set $end (i32.const 4096))
  (local.set $to (i32.add (local.get $from) (local.get $length)))
  (block $done (loop $more
    (br_if $done (i32.ge_u (local.get $from) (local.get $to)))
    (local.set $byte (i32.load8_u (local.get $from)))
    (if (i32.ge_u (local.get $byte) (i32.const 0x80))
      (then
        (local.set $from (i32.add (local.get $from) (i32.const 1)))
        (local.set $byte (i32.or
          (i32.shl (i32.and (local.get $byte) (i32.const 3)) (i32.const 6))
          (i32.and (i32.load8_u (local.get $from)) (i32.const 0x3f))))))
    (call $write (local.get $byte))
    (local.set $from (i32.add (local.get $from) (i32.const 1)))
    (br $more))))

(func $read_numbers (param $from i32) (param $length i32)
  (global.set $at (i32.const 4096))
  (global.set $end (i32.const 4096))
  (block $done (loop $more
    (br_if $done (i32.eqz (local.get $length)))
    (call $write (i32.load (local.get $from)))
    (local.set $from (i32.add (local.get $from) (i32.const 4)))
    (local.set $length (i32.sub (local.get $length) (i32.const 1)))
    (br $more))))

(func $read_label (param $from i32) (param $length i32)
  (if (i32.gt_u (local.get $length) (i32.const 31)) (then (return)))
  (memory.copy (i32.const 12288) (local.get $from) (local.get $length))
  (i32.store8 (i32.const 12319) (local.get $length)))
"#;

const REWARD: &str = r#"
(func (export "molt:plugin/reward@0.2.0#score")
  (param i32 i32 i32 i32 i32) (param $label i32) (param $label_length i32) (param i32 i32 i64 i32 i32)
  (param $text i32) (param $length i32) (param i32) (result i32)
  (call $read_label (local.get $label) (local.get $label_length))
  (call $read_text (local.get $text) (local.get $length))
  (call $run)
  (global.get $result))
(func (export "cabi_post_molt:plugin/reward@0.2.0#score") (param i32) (call $run))
"#;

// The completion of a sample lies after its task, which has 48 bytes, and its messages, which have 8.
const GROUP_REWARD: &str = r#"
(func (export "molt:plugin/group-reward@0.2.0#score-group") (param $samples i32) (param i32) (result i32)
  (call $read_text (i32.load offset=56 (local.get $samples)) (i32.load offset=60 (local.get $samples)))
  (call $run)
  (global.get $result))
"#;

const ENVIRONMENT: &str = r#"
(func (export "molt:plugin/environment@0.2.0#[constructor]episode")
  (param $id i32) (param $length i32) (param i32 i32 i32) (param $label i32) (param $label_length i32)
  (param i32 i32 i64) (result i32)
  (call $read_label (local.get $label) (local.get $label_length))
  (call $read_text (local.get $id) (local.get $length))
  (call $run)
  (if (i32.ne (global.get $result) (i32.const 1024)) (then (return (global.get $result))))
  (call $new (i32.const 7)))
(func (export "molt:plugin/environment@0.2.0#[method]episode.reset") (param i32) (result i32)
  (call $run)
  (global.get $result))
(func (export "molt:plugin/environment@0.2.0#[method]episode.step")
  (param i32) (param $text i32) (param $length i32) (param i32 i32 i32) (result i32)
  (call $read_text (local.get $text) (local.get $length))
  (call $run)
  (global.get $result))
"#;

const ESTIMATOR: &str = r#"
(func (export "molt:plugin/estimator@0.2.0#describe") (result i32) (i32.const 2048))
(func (export "molt:plugin/estimator@0.2.0#estimate") (param $batch i32) (result i32)
  (call $read_numbers (i32.load offset=32 (local.get $batch)) (i32.load offset=36 (local.get $batch)))
  (call $run)
  (global.get $result))
"#;
