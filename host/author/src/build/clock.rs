//! Go's start-up trap, and its remedy.
//!
//! Go's runtime asks for the time whenever its scheduler or its collector runs, so also while the host is inside
//! `cabi_realloc` or `cabi_post_…`, when a component must not call out: the host then ends the call with "cannot
//! leave component instance". The remedy is in the core module. A flag is set during those exports, and calls
//! of `clock_time_get` go to a function that reads the flag: the host's clock when the way out is open; one
//! microsecond after the last reading when it is closed.

use std::convert::Infallible;
use wasm_encoder::reencode::{Error, Reencode, utils};
use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, ExportKind, ExportSection, Function, FunctionSection, GlobalSection,
    GlobalType, Instruction, MemArg, Module, ValType,
};
use wasmparser_258::{
    CodeSectionReader, Export, ExternalKind, FunctionSectionReader, GlobalSectionReader, Operator, Parser,
    Payload, TypeRef,
};

/// Makes `clock_time_get` safe at any time. A module that does not import it comes back unchanged.
pub(super) fn guard(core: Vec<u8>) -> Result<Vec<u8>, Error<Infallible>> {
    let Some(mut patch) = Patch::of(&core)? else { return Ok(core) };
    let mut module = Module::new();
    patch.parse_core_module(&mut module, Parser::new(0), &core)?;
    Ok(module.finish())
}

/// What is added to the module: functions after its own, and three globals after its own.
struct Patch {
    /// The imported `clock_time_get`, and its type.
    import: u32,
    clock_type: u32,
    /// How many functions and globals the module has; imported ones count.
    functions: u32,
    globals: u32,
    /// The exports during which nothing can be called.
    closing: Vec<Closing>,
}

struct Closing {
    name: String,
    function: u32,
    ty: u32,
    params: u32,
}

impl Patch {
    fn of(core: &[u8]) -> Result<Option<Patch>, Error<Infallible>> {
        let (mut clock, mut globals, mut closing) = (None, 0, Vec::new());
        // The number of parameters of each type, and the type of each function.
        let (mut arities, mut types) = (Vec::new(), Vec::new());
        for payload in Parser::new(0).parse_all(core) {
            match payload? {
                Payload::TypeSection(section) => {
                    for ty in section.into_iter_err_on_gc_types() {
                        arities.push(ty?.params().len() as u32);
                    }
                }
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        let import = import?;
                        match import.ty {
                            TypeRef::Func(ty) => {
                                if import.name == "clock_time_get" {
                                    clock = Some((types.len() as u32, ty));
                                }
                                types.push(ty);
                            }
                            TypeRef::Global(_) => globals += 1,
                            _ => {}
                        }
                    }
                }
                Payload::FunctionSection(section) => {
                    for ty in section {
                        types.push(ty?);
                    }
                }
                Payload::GlobalSection(section) => globals += section.count(),
                Payload::ExportSection(section) => {
                    for export in section {
                        let export = export?;
                        if closes(&export)
                            && let Some(ty) = types.get(export.index as usize)
                            && let Some(params) = arities.get(*ty as usize)
                        {
                            let (name, function) = (export.name.to_owned(), export.index);
                            closing.push(Closing { name, function, ty: *ty, params: *params });
                        }
                    }
                }
                _ => {}
            }
        }
        let functions = types.len() as u32;
        let patch = |(import, clock_type)| Patch { import, clock_type, functions, globals, closing };
        Ok(clock.map(patch))
    }

    /// The global that is 1 while the way out is closed.
    fn closed(&self) -> u32 {
        self.globals
    }

    /// The global with the last reading of the realtime clock; the monotonic one's comes after it.
    fn last(&self) -> u32 {
        self.globals + 1
    }

    /// `clock_time_get(clock: i32, precision: i64, time: i32) -> errno: i32`.
    fn clock(&self) -> Function {
        let (clock, precision, time) = (0, 1, 2);
        let (errno, now) = (3, 4);
        let at = MemArg { offset: 0, align: 3, memory_index: 0 };
        let mut function = Function::new([(1, ValType::I32), (1, ValType::I64)]);
        let mut code = function.instructions();
        // The last reading of this clock.
        code.global_get(self.last() + 1).global_get(self.last()).local_get(clock).select().local_set(now);
        code.global_get(self.closed()).if_(BlockType::Empty);
        code.local_get(now).i64_const(1000).i64_add().local_set(now);
        code.else_();
        code.local_get(clock).local_get(precision).local_get(time).call(self.import).local_tee(errno);
        code.if_(BlockType::Empty).local_get(errno).return_().end();
        // Never before the last reading, which may have run ahead a little.
        code.local_get(time).i64_load(at).local_get(now);
        code.local_get(time).i64_load(at).local_get(now).i64_gt_u().select().local_set(now);
        code.end();
        code.local_get(time).local_get(now).i64_store(at);
        code.local_get(clock).if_(BlockType::Empty).local_get(now).global_set(self.last() + 1);
        code.else_().local_get(now).global_set(self.last()).end();
        code.i32_const(0).end();
        function
    }
}

impl Closing {
    /// The export with the way out marked as closed. A trap leaves it so, and the instance dead.
    fn wrapped(&self, closed: u32) -> Function {
        let mut function = Function::new([]);
        let mut code = function.instructions();
        code.i32_const(1).global_set(closed);
        for param in 0..self.params {
            code.local_get(param);
        }
        code.call(self.function).i32_const(0).global_set(closed).end();
        function
    }
}

impl Reencode for Patch {
    type Error = Infallible;

    fn parse_function_section(
        &mut self,
        functions: &mut FunctionSection,
        section: FunctionSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_function_section(self, functions, section)?;
        functions.function(self.clock_type);
        for export in &self.closing {
            functions.function(export.ty);
        }
        Ok(())
    }

    fn parse_global_section(
        &mut self,
        globals: &mut GlobalSection,
        section: GlobalSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_global_section(self, globals, section)?;
        let variable = |val_type| GlobalType { val_type, mutable: true, shared: false };
        globals.global(variable(ValType::I32), &ConstExpr::i32_const(0));
        globals.global(variable(ValType::I64), &ConstExpr::i64_const(0));
        globals.global(variable(ValType::I64), &ConstExpr::i64_const(0));
        Ok(())
    }

    fn parse_export(
        &mut self,
        exports: &mut ExportSection,
        export: Export<'_>,
    ) -> Result<(), Error<Infallible>> {
        match self.closing.iter().position(|closing| closing.name == export.name) {
            Some(at) => exports.export(export.name, ExportKind::Func, self.functions + 1 + at as u32),
            None => return utils::parse_export(self, exports, export),
        };
        Ok(())
    }

    fn parse_code_section(
        &mut self,
        code: &mut CodeSection,
        section: CodeSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_code_section(self, code, section)?;
        code.function(&self.clock());
        for export in &self.closing {
            code.function(&export.wrapped(self.closed()));
        }
        Ok(())
    }

    fn instruction<'a>(&mut self, operator: Operator<'a>) -> Result<Instruction<'a>, Error<Infallible>> {
        match operator {
            Operator::Call { function_index } if function_index == self.import => {
                Ok(Instruction::Call(self.functions))
            }
            other => utils::instruction(self, other),
        }
    }
}

/// The host calls these with the way out closed.
fn closes(export: &Export<'_>) -> bool {
    let named = export.name == "cabi_realloc" || export.name.starts_with("cabi_post_");
    named && export.kind == ExternalKind::Func
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::build::component::{World, component};
    use molt_sandbox::{Call, Failure, Library, Limits, Sample, Sandbox, Verdict};

    /// A reward in the manner of Go: it reads the monotonic clock whenever it is called. The reward is how many
    /// readings were later than the one before. None may be earlier.
    const CORE: &str = r#"(module
        (import "wasi_snapshot_preview1" "clock_time_get" (func $get (param i32 i64 i32) (result i32)))
        (memory (export "memory") 2)
        (global $last (mut i64) (i64.const 0))
        (global $later (mut f64) (f64.const 0))
        (global $free (mut i32) (i32.const 4096))
        (func $read
            (call $get (i32.const 1) (i64.const 0) (i32.const 8))
            (if (then unreachable))
            (if (i64.lt_u (i64.load (i32.const 8)) (global.get $last)) (then unreachable))
            (if (i64.gt_u (i64.load (i32.const 8)) (global.get $last))
                (then (global.set $later (f64.add (global.get $later) (f64.const 1)))))
            (global.set $last (i64.load (i32.const 8))))
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
            ;; The adapter's own memory, before any reading.
            (if (i32.lt_u (local.get 3) (i32.const 65536)) (then (call $read)))
            (global.set $free (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
            (global.get $free)
            (global.set $free (i32.add (global.get $free) (local.get 3)))
            (if (i32.gt_u (global.get $free) (i32.mul (memory.size) (i32.const 65536)))
                (then (drop (memory.grow (i32.const 4))))))
        (func (export "molt:plugin/reward@0.2.0#score")
            (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32 i32 i32 i32 i32) (result i32)
            (call $read) (call $read)
            (f64.store (i32.const 1032) (global.get $later))
            (i32.const 1024))
        (func (export "cabi_post_molt:plugin/reward@0.2.0#score") (param i32) (call $read)))"#;

    async fn score(core: Vec<u8>) -> Result<Verdict, Failure> {
        let mut resolve = wit_parser::Resolve::default();
        let wit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../wit/0.2.0");
        let (package, _) = resolve.push_path(wit).unwrap();
        let id = resolve.select_world(&[package], Some("reward-plugin")).unwrap();
        let mut core = core;
        World { resolve, id }.embed(&mut core).unwrap();
        let file = tempfile::Builder::new().suffix(".wasm").tempfile().unwrap();
        std::fs::write(file.path(), component(&core, "").unwrap()).unwrap();
        let sandbox = Sandbox::new(None).unwrap();
        let reward =
            sandbox.reward(&Library::new(&[]), file.path().to_str().unwrap(), Limits::default()).unwrap();
        let task = molt_core::chat::Task { id: "1".into(), messages: vec![], label: None, fields: vec![] };
        let sample = Sample { task, seed: 0, messages: vec![], completion: "42".into(), truncated: false };
        reward.score(Call { rollout: None, seed: 0 }, &sample).await
    }

    #[tokio::test]
    async fn the_clock_is_read_at_any_time_and_only_goes_forward() {
        let core = wat::parse_str(CORE).unwrap();
        let trap = score(core.clone()).await.unwrap_err();
        assert!(trap.to_string().contains("cannot leave component instance"), "{trap}");
        let Verdict::Scored { reward, .. } = score(guard(core).unwrap()).await.unwrap() else {
            panic!("it is scored")
        };
        // At least those while the two texts of the sample were handed over.
        assert!(reward >= 2.0, "{reward}");
    }

    #[test]
    fn a_module_without_a_clock_stays_as_it_is() {
        let core = wat::parse_str("(module (func (export \"cabi_realloc\")))").unwrap();
        assert_eq!(guard(core.clone()).unwrap(), core);
    }
}
