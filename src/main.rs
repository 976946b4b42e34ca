//! The `machinist` program: arguments in, exit code out. Everything else is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    machinist::cli::main(std::env::args_os()).into()
}
