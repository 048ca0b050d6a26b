//! Signals of nodes, and the routing table.

#![expect(unsafe_code, reason = "functions of a C interface")]

use crate::arguments::{Argument, input, output, several};
use crate::calls::at;
use crate::convert::{self, changed};
use crate::fault::{LARDER_OK, guard};
use crate::handle::Handle;
use crate::types::{NodeHandle, SignalValue, TableRow};
use larder_core::TargetId;
use std::ffi::c_void;

/// Stores a node's load report in place of its previous one. LARDER_IGNORED: the node does not take requests.
///
/// # Safety
/// `dispatcher` is valid, and `signals` for `count` values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_report(
    dispatcher: *const Handle,
    now_ns: u64,
    node: NodeHandle,
    signals: *const SignalValue,
    count: usize,
) -> i32 {
    guard(|| {
        let arguments = (input("dispatcher", dispatcher), several("signals", signals, count));
        // SAFETY: the host passes pointers as this function's documentation demands.
        let (handle, signals) = unsafe { arguments.read() }?;
        let node = convert::node(node)?;
        handle.0.state(node)?;
        Ok(changed(handle.0.report(at(now_ns), node, convert::load_report(signals)?)?))
    })
}

/// Passes a change of a node's cache, LARDER_EVENT_*, to a policy that mirrors caches (`lb-gc`). LARDER_IGNORED: the policy does not,
/// or the node does not take requests.
///
/// # Safety
/// `dispatcher` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_cache_event(
    dispatcher: *const Handle,
    now_ns: u64,
    node: NodeHandle,
    target: u64,
    event: u8,
) -> i32 {
    guard(|| {
        // SAFETY: the host passes pointers as this function's documentation demands.
        let handle = unsafe { input("dispatcher", dispatcher).read() }?;
        let event = convert::cache_event(event)?;
        Ok(changed(handle.0.cache_event(at(now_ns), convert::node(node)?, TargetId(target), event)?))
    })
}

/// Sets the routing table of `ward` and `part`. LARDER_IGNORED: the policy uses none.
///
/// # Safety
/// `dispatcher` is valid, and `rows` for `count` rows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_set_table(
    dispatcher: *const Handle,
    now_ns: u64,
    rows: *const TableRow,
    count: usize,
) -> i32 {
    guard(|| {
        let arguments = (input("dispatcher", dispatcher), several("rows", rows, count));
        // SAFETY: the host passes pointers as this function's documentation demands.
        let (handle, rows) = unsafe { arguments.read() }?;
        Ok(changed(handle.0.set_table(at(now_ns), rows.iter().map(convert::table_row))?))
    })
}

/// Computes the id of a target key: XXH3-64 with seed 0, as in all of larder.
///
/// # Safety
/// `key` is valid for `key_len` bytes, and `target` for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_target(key: *const c_void, key_len: usize, target: *mut u64) -> i32 {
    guard(|| {
        let arguments = (several("key", key.cast::<u8>(), key_len), output("target", target));
        // SAFETY: the host passes pointers as this function's documentation demands.
        let (key, mut place) = unsafe { arguments.read() }?;
        place.set(TargetId::of(key).0);
        Ok(LARDER_OK)
    })
}
