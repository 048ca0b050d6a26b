//! The functions of the header.
//!
//! Every function returns a code. All of them may be called from several threads at once, except that no other call may be running
//! on a dispatcher that larder_destroy destroys.

pub mod dispatcher;
pub mod members;
pub mod requests;
pub mod signals;
pub mod state;

use larder_core::Time;

/// Returns a time of the host's clock.
const fn at(now_ns: u64) -> Time {
    Time::from_nanos(now_ns)
}

#[cfg(test)]
pub(crate) use {dispatcher::*, members::*, requests::*, signals::*, state::*};
