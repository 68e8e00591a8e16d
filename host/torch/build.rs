//! Compiles the shim against the headers of libtorch, which `torch-sys` links.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    for file in ["src/shim.h", "src/shim.cc", "src/attention.h", "src/attention.cc", "shim"] {
        println!("cargo:rerun-if-changed={file}");
    }
    let Some(libtorch) = std::env::var_os("LIBTORCH").map(PathBuf::from) else {
        panic!("LIBTORCH is not set: run `cargo xtask setup` first");
    };
    let include = libtorch.join("include");
    cxx_build::bridge("src/ffi.rs")
        .file("src/shim.cc")
        .file("src/attention.cc")
        .std("c++20")
        .define("USE_C10D_GLOO", None)
        // What `shim` declares of gloo comes first; the headers of libtorch are not ours to warn about.
        .include("shim")
        .flag(format!("-isystem{}", include.display()))
        .flag(format!("-isystem{}", include.join("torch/csrc/api/include").display()))
        .compile("molt_torch_shim");
}
