//! The dispatcher inside nginx, as a dynamic module: the directive `larder` of an upstream makes larder's policies choose its servers.
//!
//! All workers use one dispatcher in shared memory ([`zone`]). It is an ordinary dispatcher whose memory comes from a heap there
//! ([`arena`]), behind a lock that a dying worker cannot leave locked ([`lock`]). [`shared`] creates it, keeps its snapshot, and counts
//! the requests of each worker ([`ledger`]), so that a worker that dies leaves no load behind.
//!
//! nginx keeps the list of the servers, their connections and their failures, as for its own methods. [`state`] tells the dispatcher
//! which servers there are and which have failed.
//!
//! `nginx` has the functions that nginx calls, and its types as build.rs reads them from nginx's headers. Every function catches
//! panics: a bug fails a request and not the worker.

// The unit tests run without nginx, whose functions they cannot call. Without nginx's headers, there are no such functions.
#![cfg_attr(any(test, not(has_nginx)), allow(dead_code, reason = "used by the functions that nginx calls"))]

mod arena;
mod config;
mod ledger;
mod lock;
mod log;
#[cfg(all(has_nginx, not(test)))]
mod nginx;
mod plan;
mod record;
mod shared;
mod state;
mod status;
mod zone;

use larder_core::Time;

/// Returns the time of the monotonic clock, which all processes of a machine share.
fn now() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    Time::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}
