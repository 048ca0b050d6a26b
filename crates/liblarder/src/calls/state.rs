//! Explanations, the status, and snapshots.

#![expect(unsafe_code, reason = "functions of a C interface")]

use crate::arguments::{Argument, buffer, input, optional_output, several};
use crate::calls::at;
use crate::calls::requests::keys;
use crate::convert;
use crate::fault::{LARDER_OK, guard};
use crate::handle::Handle;
use crate::types::Request;
use std::ffi::{c_char, c_void};

/// Writes the decision that larder_decide would make now, with the servers that the policy has stored for the target, as a JSON
/// object with a final 0. Changes nothing. `needed` receives the size with the final 0, and may be null. A buffer of size 0 asks for
/// this size alone.
///
/// # Safety
/// `dispatcher` and `request` are valid, with the pointers in `request`, `json` for `size` bytes, and `needed` for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_explain(
    dispatcher: *const Handle,
    now_ns: u64,
    request: *const Request,
    json: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> i32 {
    guard(|| {
        let arguments =
            (input("dispatcher", dispatcher), input("request", request), buffer(json, size, needed));
        // SAFETY: the host passes pointers as this function's documentation demands.
        let (handle, request, mut room) = unsafe { arguments.read() }?;
        // SAFETY: as above.
        let keys = unsafe { keys(request) }?;
        let mut excluded = None;
        let facts = convert::facts(request, keys, &mut excluded)?;
        room.fill_text(&handle.0.explain(at(now_ns), &facts)?.to_string())?;
        Ok(LARDER_OK)
    })
}

/// Writes the state of the dispatcher and its nodes as a JSON object with a final 0; `needed` as for larder_explain. The state may
/// grow between two calls.
///
/// # Safety
/// `dispatcher` is valid, `json` for `size` bytes, and `needed` for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_status(
    dispatcher: *const Handle,
    now_ns: u64,
    json: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> i32 {
    guard(|| {
        let arguments = (input("dispatcher", dispatcher), buffer(json, size, needed));
        // SAFETY: the host passes pointers as this function's documentation demands.
        let (handle, mut room) = unsafe { arguments.read() }?;
        room.fill_text(&handle.0.status(at(now_ns)).to_string())?;
        Ok(LARDER_OK)
    })
}

/// Writes a snapshot: the learned state, for larder_snapshot_load in another process. `needed` receives the size, and may be null. A
/// buffer of size 0 asks for this size alone. The state may grow between two calls.
///
/// # Safety
/// `dispatcher` is valid, `snapshot` for `size` bytes, and `needed` for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_snapshot_save(
    dispatcher: *const Handle,
    snapshot: *mut c_void,
    size: usize,
    needed: *mut usize,
) -> i32 {
    guard(|| {
        let arguments = (input("dispatcher", dispatcher), buffer(snapshot, size, needed));
        // SAFETY: the host passes pointers as this function's documentation demands.
        let (handle, mut room) = unsafe { arguments.read() }?;
        room.fill(&handle.0.save())?;
        Ok(LARDER_OK)
    })
}

/// Restores a snapshot before the first decision. Nodes are found by name, and nodes that are missing here are left out. `targets`
/// receives the number of restored targets, and may be null. The clocks of both processes must agree.
///
/// # Safety
/// `dispatcher` is valid, `snapshot` for `size` bytes, and `targets` for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_snapshot_load(
    dispatcher: *const Handle,
    snapshot: *const c_void,
    size: usize,
    targets: *mut u64,
) -> i32 {
    guard(|| {
        let count = optional_output("targets", targets);
        let arguments =
            (input("dispatcher", dispatcher), several("snapshot", snapshot.cast::<u8>(), size), count);
        // SAFETY: the host passes pointers as this function's documentation demands.
        let (handle, snapshot, place) = unsafe { arguments.read() }?;
        let restored = handle.0.load(snapshot)?;
        if let Some(mut place) = place {
            place.set(restored);
        }
        Ok(LARDER_OK)
    })
}
