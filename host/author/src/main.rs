//! `molt-plugin`: the commands of `molt plugin` in a binary of their own, without libtorch.

use std::process::ExitCode;

fn main() -> ExitCode {
    let command = molt_author::command().name("molt-plugin").version(env!("CARGO_PKG_VERSION"));
    match molt_author::run(&command.get_matches()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.code)
        }
    }
}
