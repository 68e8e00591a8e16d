//! Custom sections of a component.

use std::borrow::Cow;
use wasm_encoder::{Component, CustomSection};

/// Appends a custom section with `text` to the bytes of a component. Nothing for an empty text.
pub(super) fn append(component: &mut Vec<u8>, name: &str, text: &str) {
    if text.is_empty() {
        return;
    }
    let mut tail = Component::new();
    tail.section(&CustomSection { name: name.into(), data: Cow::Borrowed(text.as_bytes()) });
    // What an empty component has before its sections: eight bytes of magic number and version.
    component.extend_from_slice(tail.as_slice().get(8..).unwrap_or_default());
}
