//! Membership: nodes join, change and leave.

#![expect(unsafe_code, reason = "functions of a C interface")]

use crate::arguments::{Argument, input, output, text};
use crate::calls::at;
use crate::convert::{self, changed};
use crate::fault::{LARDER_OK, guard};
use crate::handle::Handle;
use crate::types::{NodeHandle, NodeSpec};
use std::ffi::c_char;

/// Adds a node, which is up. It receives new targets at the pace of `join`, unless `join.warm_targets` is 0. Nodes that are there
/// from the start belong in the config instead.
///
/// # Safety
/// `dispatcher` and `spec` are valid, with the name in `spec`, and `node` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_node_add(
    dispatcher: *const Handle,
    now_ns: u64,
    spec: *const NodeSpec,
    node: *mut NodeHandle,
) -> i32 {
    guard(|| {
        let arguments = (input("dispatcher", dispatcher), input("spec", spec), output("node", node));
        // SAFETY: the host passes pointers as this function's documentation demands.
        let (handle, spec, mut place) = unsafe { arguments.read() }?;
        // SAFETY: as above.
        let name = unsafe { text("spec.name", spec.name, spec.name_len).read() }?;
        place.set(handle.0.add(at(now_ns), convert::node_spec(name, spec)?)?.get());
        Ok(LARDER_OK)
    })
}

/// Finds the node with this name.
///
/// # Safety
/// `dispatcher` is valid, `name` for `name_len` bytes, and `node` for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_node_find(
    dispatcher: *const Handle,
    name: *const c_char,
    name_len: usize,
    node: *mut NodeHandle,
) -> i32 {
    guard(|| {
        let arguments = (input("dispatcher", dispatcher), text("name", name, name_len), output("node", node));
        // SAFETY: the host passes pointers as this function's documentation demands.
        let (handle, name, mut place) = unsafe { arguments.read() }?;
        place.set(handle.0.find(name)?.get());
        Ok(LARDER_OK)
    })
}

/// Changes the state of a node to LARDER_NODE_UP, LARDER_NODE_DRAINING, LARDER_NODE_DOWN or LARDER_NODE_REMOVED. A node that stops
/// taking requests loses its targets. Its requests in flight continue, and end with larder_done. LARDER_IGNORED: the node has this
/// state already.
///
/// # Safety
/// `dispatcher` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_node_set_state(
    dispatcher: *const Handle,
    now_ns: u64,
    node: NodeHandle,
    state: u8,
) -> i32 {
    guard(|| {
        // SAFETY: the host passes pointers as this function's documentation demands.
        let handle = unsafe { input("dispatcher", dispatcher).read() }?;
        let state = convert::node_state(state)?;
        Ok(changed(handle.0.set_state(at(now_ns), convert::node(node)?, state)?))
    })
}

/// Changes the weight of a node: its relative capacity in 1/1000, from 1 to 100,000.
///
/// # Safety
/// `dispatcher` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_node_set_weight(
    dispatcher: *const Handle,
    now_ns: u64,
    node: NodeHandle,
    weight_milli: u32,
) -> i32 {
    guard(|| {
        // SAFETY: the host passes pointers as this function's documentation demands.
        let handle = unsafe { input("dispatcher", dispatcher).read() }?;
        let node = convert::node(node)?;
        handle.0.state(node)?;
        Ok(changed(handle.0.set_weight(at(now_ns), node, convert::weight(weight_milli)?)?))
    })
}

/// Makes a node a backup (1) or an ordinary node (0).
///
/// # Safety
/// `dispatcher` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_node_set_backup(
    dispatcher: *const Handle,
    now_ns: u64,
    node: NodeHandle,
    backup: u8,
) -> i32 {
    guard(|| {
        // SAFETY: the host passes pointers as this function's documentation demands.
        let handle = unsafe { input("dispatcher", dispatcher).read() }?;
        let node = convert::node(node)?;
        handle.0.state(node)?;
        Ok(changed(handle.0.set_backup(at(now_ns), node, convert::flag("backup", backup)?)?))
    })
}
