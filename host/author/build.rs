//! New files of the SDKs and of the contract are embedded without `touch`ing anything.

fn main() {
    for path in ["build.rs", "../../sdk", "../../wit/0.2.0"] {
        println!("cargo::rerun-if-changed={path}");
    }
}
