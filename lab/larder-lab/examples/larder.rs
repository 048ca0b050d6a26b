//! The program `larder` for the tests of this crate, because cargo builds no binaries of other crates for tests.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    larder::run()
}
