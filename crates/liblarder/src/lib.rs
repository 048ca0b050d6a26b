//! The dispatcher as a shared library with a C interface; `include/larder.h` is its header.
//!
//! [`calls`] has the functions that a host calls. Each reads its arguments ([`arguments`]), converts them ([`convert`]), calls the
//! dispatcher of `larder_embed` behind its [`handle`], and turns errors and panics into codes ([`fault`]). [`types`] are the
//! structures of the header.
//!
//! A host is foreign code, so nothing that it passes may panic: a wrong argument is an error code with a message. Pointers must be
//! valid or null, because no library can check more.

mod arguments;
pub mod calls;
mod convert;
pub mod fault;
pub mod handle;
pub mod types;

#[cfg(test)]
mod tests;
