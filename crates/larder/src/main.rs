//! The program `larder`. Its code is in the library.

use std::process::ExitCode;

/// Relaying allocates and frees per request, across threads; this allocator does that with a tenth less processor time
/// than the C library's, and gives memory back without a call to the kernel for every large reply.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    larder::run()
}
