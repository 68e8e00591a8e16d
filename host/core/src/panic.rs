//! Panics of a library below, told as errors.

use std::any::Any;

/// What a panic said, without libtorch's list of addresses.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it failed without a reason");
    text.split("\\nframe #").next().unwrap_or_default().to_owned()
}
