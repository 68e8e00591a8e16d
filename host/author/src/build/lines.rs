//! Which source line an instruction is of, for the plugin's own source only. The C library brings 0.9 MB of debug
//! information, with the paths of the machine that compiled it.

use gimli::write::{Address, EndianVec, Sections};
use gimli::{EndianSlice, LittleEndian, SectionId};
use std::collections::BTreeMap;
use wasm_encoder::{CustomSection, Module, RawSection};
use wasmparser::{Parser, Payload};

/// The directory that the plugin's own source was compiled in, as the compiler was told.
pub(super) const HERE: &str = ".";

/// Drops the debug information of all units but those compiled in [`HERE`].
pub(super) fn own(core: &[u8]) -> Result<Vec<u8>, Error> {
    let mut module = Module::new();
    let mut debug = BTreeMap::new();
    for payload in Parser::new(0).parse_all(core) {
        let payload = payload?;
        match &payload {
            Payload::CustomSection(section) if section.name().starts_with(".debug_") => {
                debug.insert(section.name(), section.data());
            }
            _ => {
                if let Some((id, range)) = payload.as_section() {
                    let data = core.get(range).unwrap_or_default();
                    module.section(&RawSection { id, data });
                }
            }
        }
    }

    let all = dwarf(&debug)?;
    let mut units = Vec::new();
    let mut headers = all.units();
    while let Some(header) = headers.next()? {
        let (start, length) =
            (header.debug_info_offset().map_or(0, |at| at.0), header.length_including_self());
        let unit = all.unit(header)?;
        if unit.comp_dir.is_some_and(|dir| dir.slice() == HERE.as_bytes()) {
            let bytes =
                debug.get(SectionId::DebugInfo.name()).and_then(|info| info.get(start..start + length));
            units.extend_from_slice(bytes.unwrap_or_default());
        }
    }
    debug.insert(SectionId::DebugInfo.name(), &units);

    let mut kept = gimli::write::Dwarf::from(&dwarf(&debug)?, &|address| Some(Address::Constant(address)))?;
    let mut sections = Sections::new(EndianVec::new(LittleEndian));
    kept.write(&mut sections)?;
    sections.for_each(|id, data| {
        if !data.slice().is_empty() {
            module.section(&CustomSection { name: id.name().into(), data: data.slice().into() });
        }
        Ok::<(), Error>(())
    })?;
    Ok(module.finish())
}

fn dwarf<'a>(
    sections: &BTreeMap<&str, &'a [u8]>,
) -> Result<gimli::Dwarf<EndianSlice<'a, LittleEndian>>, gimli::Error> {
    gimli::Dwarf::load(|id| {
        Ok(EndianSlice::new(sections.get(id.name()).copied().unwrap_or_default(), LittleEndian))
    })
}

/// The module, or its debug information, is not what a compiler makes.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("the compiler's module cannot be read")]
    Module(#[from] wasmparser::BinaryReaderError),
    #[error("the compiler's debug information cannot be read")]
    Read(#[from] gimli::Error),
    #[error("the compiler's debug information cannot be rewritten")]
    Convert(#[from] gimli::write::ConvertError),
    #[error("the compiler's debug information cannot be written")]
    Write(#[from] gimli::write::Error),
}
