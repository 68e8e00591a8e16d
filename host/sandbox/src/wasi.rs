//! What every instance gets of WASI: its own output, virtual time, seeded randomness, and empty everything else.

use wasmtime::Engine;
use wasmtime::component::Linker;
use wasmtime_wasi::WasiView;
use wasmtime_wasi::cli::{WasiCli, WasiCliView};
use wasmtime_wasi::p2::bindings::{cli, random};
use wasmtime_wasi::random::WasiRandom;

use crate::plugin::Data;
use crate::{clock, refuse};

/// Whether any plugin may import this. Files and sockets among it refuse every request.
pub(crate) fn is_harmless(import: &str) -> bool {
    let Some((interface, version)) = import.split_once('@') else { return false };
    let packages = ["wasi:cli/", "wasi:clocks/", "wasi:io/", "wasi:random/"];
    version.starts_with("0.2.") && packages.iter().chain(&refuse::REFUSED).any(|p| interface.starts_with(p))
}

/// Links all of it but files and sockets, whose refusals are linked for each component.
pub(crate) fn basics(engine: &Engine) -> wasmtime::Result<Linker<Data>> {
    let mut linker = Linker::new(engine);
    let l = &mut linker;
    wasmtime_wasi::p2::add_to_linker_proxy_interfaces_async(l)?;
    random::insecure::add_to_linker::<Data, WasiRandom>(l, |data| data.ctx().ctx.random())?;
    random::insecure_seed::add_to_linker::<Data, WasiRandom>(l, |data| data.ctx().ctx.random())?;
    cli::environment::add_to_linker::<Data, WasiCli>(l, Data::cli)?;
    cli::exit::add_to_linker::<Data, WasiCli>(l, Data::cli)?;
    cli::terminal_input::add_to_linker::<Data, WasiCli>(l, Data::cli)?;
    cli::terminal_output::add_to_linker::<Data, WasiCli>(l, Data::cli)?;
    cli::terminal_stdin::add_to_linker::<Data, WasiCli>(l, Data::cli)?;
    cli::terminal_stdout::add_to_linker::<Data, WasiCli>(l, Data::cli)?;
    cli::terminal_stderr::add_to_linker::<Data, WasiCli>(l, Data::cli)?;
    l.allow_shadowing(true);
    clock::link(l)?;
    l.allow_shadowing(false);
    Ok(linker)
}
