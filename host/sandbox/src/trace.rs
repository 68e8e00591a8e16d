//! Where in the plugin a failure happened, for its author.

use rustc_demangle::demangle;
use wasmtime::{FrameInfo, FrameSymbol, WasmBacktrace};

use crate::quote;

/// Frames that are told at most.
const FRAMES: usize = 8;

/// What a standard library and generated code put between the author's function and the failure.
const MACHINERY: [&str; 16] = [
    "std::",
    "core::",
    "alloc::",
    "<core::",
    "<alloc::",
    "<std::",
    "rust_panic",
    "__rust",
    "_rust",
    "abort",
    "dlmalloc",
    "wit_bindgen::",
    "cabi_realloc",
    "runtime.",
    "__wasi",
    "exit",
];

/// What generated code that calls an exported function is called.
const GLUE: [&str; 3] = ["_export_", "export_", "__export"];

/// The innermost functions of the plugin's own, the innermost first, each as `name at file:line`.
pub(crate) fn of(error: &wasmtime::Error) -> Box<[String]> {
    let Some(trace) = error.downcast_ref::<WasmBacktrace>() else { return Box::default() };
    let all: Vec<Place> = trace.frames().iter().flat_map(places).collect();
    let begin = all.iter().position(|place| !place.is_machinery()).unwrap_or(0);
    all.iter().skip(begin).take_while(|place| !place.is_glue()).take(FRAMES).map(Place::told).collect()
}

struct Place {
    name: String,
    /// The source file and the line.
    source: Option<String>,
}

impl Place {
    fn is_machinery(&self) -> bool {
        let in_library = |source: &String| {
            ["/rustc/", "wasisdk://"].iter().any(|root| source.starts_with(root))
                || source.contains("/library/std/")
        };
        self.source.as_ref().is_some_and(in_library)
            || MACHINERY.iter().any(|prefix| self.name.starts_with(prefix))
    }

    /// Whether this is generated code that calls the author's functions.
    fn is_glue(&self) -> bool {
        GLUE.iter().any(|prefix| self.name.starts_with(prefix)) || self.name.starts_with("molt:plugin/")
    }

    fn told(&self) -> String {
        match &self.source {
            Some(source) => format!("{} at {source}", self.name),
            None => self.name.clone(),
        }
    }
}

/// The functions of one frame: with debug information, those that were inlined into it too. Those without a name
/// say nothing to anybody.
fn places(frame: &FrameInfo) -> Vec<Place> {
    let function = || frame.func_name().map(plain);
    if frame.symbols().is_empty() {
        return function().map(|name| Place { name, source: None }).into_iter().collect();
    }
    let place = |symbol: &FrameSymbol| {
        let source = symbol.file().map(|file| {
            let file = quote::beginning(file);
            symbol.line().map_or_else(|| file.clone(), |line| format!("{file}:{line}"))
        });
        Some(Place { name: symbol.name().map(plain).or_else(function)?, source })
    };
    frame.symbols().iter().filter_map(place).collect()
}

/// A function's name as its author wrote it, as far as the language is known.
fn plain(name: &str) -> String {
    quote::beginning(&format!("{:#}", demangle(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_demangled_and_kept_on_one_line() {
        assert_eq!(plain("_ZN7hostile7recurse17h0123456789abcdefE"), "hostile::recurse");
        assert_eq!(plain("molt_reward\nforged"), "molt_reward forged");
    }

    #[test]
    fn the_library_and_generated_code_are_told_from_the_authors_functions() {
        let place = |name: &str| Place { name: plain(name), source: None };
        assert!(place("_ZN3std9panicking11begin_panic17h0123456789abcdefE").is_machinery());
        assert!(
            Place { source: Some("/rustc/59/library/core/src/str.rs:3".into()), ..place("get") }
                .is_machinery()
        );
        let in_c = Place { source: Some("wasisdk://v27/libc/open.c:3".into()), ..place("open") };
        assert!(in_c.is_machinery());
        assert!(!place("stdin_reader::read").is_machinery() && !place("hostile::recurse").is_machinery());
        assert!(place("molt:plugin/reward@0.2.0#score").is_glue() && place("_export_score_cabi").is_glue());
        assert!(!place("grade::score").is_glue());
    }
}
