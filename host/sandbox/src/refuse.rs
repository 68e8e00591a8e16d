//! Files and the network: what a component imports of them is linked to functions that end the call.
//!
//! A guest is told of one directory, `/`, so that its first step into it names the path that it wants. A
//! runtime that lists its directories at start, as several languages do, has asked for nothing yet.

use thiserror::Error;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker, LinkerInstance, Resource, ResourceType, Val};
use wasmtime::{Engine, StoreContextMut};
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, DynPollable, IoError};

use crate::plugin::Data;
use crate::quote;

/// The interfaces that exist for a guest but give it nothing.
pub(crate) const REFUSED: [&str; 2] = ["wasi:filesystem/", "wasi:sockets/"];

/// The guest asked for something that the run did not grant.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub(crate) struct Denied(pub(crate) String);

/// Stands for every file, directory and socket that no guest ever gets to use.
struct Nothing;

/// Links what `component` imports of files and network to refusals.
pub(crate) fn link(
    linker: &mut Linker<Data>,
    engine: &Engine,
    component: &Component,
) -> wasmtime::Result<()> {
    for (import, item) in component.component_type().imports(engine) {
        let ComponentItem::ComponentInstance(instance) = item.ty else { continue };
        if !REFUSED.iter().any(|prefix| import.starts_with(prefix)) {
            continue;
        }
        let mut linked = linker.instance(import)?;
        for (name, export) in instance.exports(engine) {
            match export.ty {
                ComponentItem::ComponentFunc(_) => link_function(&mut linked, import, name)?,
                ComponentItem::Resource(_) => linked.resource(name, resource(name), |_, _| Ok(()))?,
                _ => {}
            }
        }
    }
    Ok(())
}

/// The streams of `wasi:io` that these interfaces speak of are the real ones.
fn resource(name: &str) -> ResourceType {
    match name {
        "input-stream" => ResourceType::host::<DynInputStream>(),
        "output-stream" => ResourceType::host::<DynOutputStream>(),
        "pollable" => ResourceType::host::<DynPollable>(),
        "error" => ResourceType::host::<IoError>(),
        _ => ResourceType::host::<Nothing>(),
    }
}

fn link_function(linked: &mut LinkerInstance<'_, Data>, import: &str, name: &str) -> wasmtime::Result<()> {
    match name {
        "get-directories" => linked.func_new(name, |store, _, _, results| {
            let root = Val::Tuple(vec![nothing(store)?, Val::String("/".into())]);
            give(results, Val::List(vec![root]))
        }),
        "[method]descriptor.get-type" => linked.func_new(name, |_, _, _, results| {
            give(results, Val::Result(Ok(Some(Box::new(Val::Enum("directory".into()))))))
        }),
        // A standard library asks this of any failed write, to standard output too.
        "filesystem-error-code" => linked.func_new(name, |_, _, _, results| give(results, Val::Option(None))),
        "instance-network" => linked.func_new(name, |store, _, _, results| give(results, nothing(store)?)),
        _ => {
            let function = name.rsplit('.').next().unwrap_or(name).to_owned();
            let what = if import.starts_with("wasi:filesystem/") { "a file" } else { "the network" };
            linked.func_new(name, move |_, _, arguments, _| Err(refusal(what, &function, arguments).into()))
        }
    }
}

fn nothing(mut store: StoreContextMut<'_, Data>) -> wasmtime::Result<Val> {
    Ok(Val::Resource(Resource::<Nothing>::new_own(0).try_into_resource_any(&mut store)?))
}

fn give(results: &mut [Val], value: Val) -> wasmtime::Result<()> {
    if let Some(result) = results.first_mut() {
        *result = value;
    }
    Ok(())
}

fn refusal(what: &str, function: &str, arguments: &[Val]) -> Denied {
    let name = arguments.iter().find_map(|argument| match argument {
        Val::String(text) => Some(quote::beginning(text)),
        _ => None,
    });
    Denied(match name {
        Some(name) => format!("{what}, {name:?} ({function})"),
        None => format!("{what} ({function})"),
    })
}
