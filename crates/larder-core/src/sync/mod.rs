//! The primitives with which threads share a dispatcher, for both builds of the crate.
//!
//! With the feature `std` they are the locks of the standard library and the snapshots of arc-swap. Without it they
//! need only `alloc`: locks spin, and a snapshot is an `Arc` behind a lock. Decisions are the same in both.
//!
//! A panic while a lock is held does not poison it: the data is valid between any two statements that can panic.

#[cfg(not(feature = "std"))]
mod bare;
#[cfg(feature = "std")]
mod hosted;

#[cfg(not(feature = "std"))]
pub(crate) use bare::{Guard, Mutex, MutexGuard, RwLock, Swap, SwapOption, thread_number};
#[cfg(feature = "std")]
pub(crate) use hosted::{Guard, Mutex, MutexGuard, RwLock, Swap, SwapOption, thread_number};
