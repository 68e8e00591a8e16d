//! Files and the network: what a component imports of them is linked to functions that end the call.
//!
//! A guest is told of one directory, `/`, so that its first step into it names the path that it wants. A
//! runtime that lists its directories at start, as several languages do, has asked for nothing yet.

use thiserror::Error;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker, LinkerInstance, Resource, ResourceType, Val};
use wasmtime::{Engine, StoreContextMut};
use wasmtime_wasi::p2::IoError;
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, DescriptorType, ErrorCode, OpenFlags, PathFlags,
};

use crate::plugin::Data;
use crate::quote;

/// The interfaces that exist for a guest but give it nothing.
pub(crate) const REFUSED: [&str; 2] = ["wasi:filesystem/", "wasi:sockets/"];

/// What an interpreter exports. Rust's imports it too, for the type of a session that it never gets.
pub(crate) const CODE: &str = "molt:plugin/code@";

/// What these interfaces use of `wasi:io`, which defines them: to define one for a component, where that imports it
/// first, is to say what dropping it does.
const OF_IO: [&str; 4] = ["error", "input-stream", "output-stream", "pollable"];

/// The guest asked for something that the run did not grant.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub(crate) struct Denied(pub(crate) String);

/// Stands for every file, directory and socket that no guest ever gets to use.
struct Nothing;

/// Links what `component` imports of files, unless it has some, and of the network to refusals.
pub(crate) fn link(
    linker: &mut Linker<Data>,
    engine: &Engine,
    component: &Component,
    has_files: bool,
) -> wasmtime::Result<()> {
    for (import, item) in component.component_type().imports(engine) {
        let ComponentItem::ComponentInstance(instance) = item.ty else { continue };
        let refused = REFUSED.iter().any(|prefix| import.starts_with(prefix));
        if import.starts_with(CODE) {
            for (name, export) in instance.exports(engine) {
                if matches!(export.ty, ComponentItem::Resource(_)) {
                    link_resource(&mut linker.instance(import)?, name)?;
                }
            }
        }
        if !refused || (has_files && import.starts_with("wasi:filesystem/")) {
            continue;
        }
        let mut linked = linker.instance(import)?;
        for (name, export) in instance.exports(engine) {
            match export.ty {
                ComponentItem::ComponentFunc(_) => link_function(&mut linked, import, name)?,
                ComponentItem::Resource(_) => link_resource(&mut linked, name)?,
                _ => {}
            }
        }
    }
    Ok(())
}

fn link_resource(linked: &mut LinkerInstance<'_, Data>, name: &str) -> wasmtime::Result<()> {
    if OF_IO.contains(&name) {
        return Ok(());
    }
    linked.resource(name, ResourceType::host::<Nothing>(), |mut store, _| {
        store.data_mut().counted();
        Ok(())
    })
}

fn link_function(linked: &mut LinkerInstance<'_, Data>, import: &str, name: &str) -> wasmtime::Result<()> {
    match name {
        "get-directories" => linked.func_new(name, |mut store, _, _, results| {
            store.data_mut().counted();
            let root = Val::Tuple(vec![nothing(store)?, Val::String("/".into())]);
            give(results, Val::List(vec![root]))
        }),
        // Typed functions: they give borrowed handles back, without which the guest's own call could not end.
        "[method]descriptor.get-type" => linked.func_wrap(name, |mut store, (_,): (Resource<Nothing>,)| {
            store.data_mut().counted();
            Ok((Ok::<_, ErrorCode>(DescriptorType::Directory),))
        }),
        // Python looks for a line of code that came from no file, to show it with an error, in `<string>` and the
        // like: there is no such file anywhere.
        "[method]descriptor.open-at" => linked.func_wrap(
            name,
            |mut store, (_, _, path, _, _): (Resource<Nothing>, PathFlags, String, OpenFlags, DescriptorFlags)| {
                store.data_mut().counted();
                if path.starts_with('<') && path.ends_with('>') {
                    return Ok((Err::<Resource<Nothing>, _>(ErrorCode::NoEntry),));
                }
                Err(refusal("a file", "open-at", &[Val::String(path)]).into())
            },
        ),
        // A standard library asks this of any failed write, to standard output too.
        "filesystem-error-code" => linked.func_wrap(name, |mut store, (_,): (Resource<IoError>,)| {
            store.data_mut().counted();
            Ok((None::<ErrorCode>,))
        }),
        "instance-network" => linked.func_new(name, |mut store, _, _, results| {
            store.data_mut().counted();
            give(results, nothing(store)?)
        }),
        _ => {
            let function = quote::beginning(name.rsplit('.').next().unwrap_or(name));
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
