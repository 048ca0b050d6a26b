//! The dispatcher inside Envoy, as a dynamic module: a load-balancing policy and the HTTP filter that it needs.
//!
//! A worker asks the policy for a host ([`balancer`]). The decision is handed to the upstream HTTP filter of the same attempt, which
//! Envoy creates next on the same thread ([`attempt`]). The filter sees the reply and the end of the attempt, and tells the
//! dispatcher. Envoy's interface for policies has no hook for the end of a request, so the policy does not work without the filter.
//!
//! A second filter, in the listener, reads the prompts of completions before the policy is asked ([`prompt`]).
//!
//! All workers share the dispatcher of a cluster ([`cluster`]). Each worker has its own view of the hosts, and the views differ for a
//! moment after a change ([`membership`]).
//!
//! Envoy's interface is declared in [`abi`]. [`host`] wraps its callbacks in safe methods, and [`hooks`] are the functions that Envoy
//! calls. Only these three contain unsafe code. Every hook catches panics: a bug fails a request and not the proxy.

mod abi;
mod admin;
mod attempt;
mod balancer;
mod cluster;
mod config;
mod filter_check;
mod hooks;
mod host;
mod log;
mod membership;
mod pending;
mod prompt;
mod state_file;

#[cfg(test)]
mod tests;

use larder_core::Time;

/// Returns the time of the monotonic clock, which all processes of a machine share.
fn now() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    Time::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}
