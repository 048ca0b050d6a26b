//! The calls as a host makes them.

#![expect(unsafe_code, reason = "the tests are a host")]

mod allocations;
mod arguments;
mod life;
mod random;

use crate::calls::*;
use crate::fault::*;
use crate::handle::Handle;
use crate::types::*;
use std::ffi::{c_char, c_void};
use std::ptr;

/// A dispatcher that is destroyed at the end of the test.
struct Host(*mut Handle);

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: the pointer comes from larder_create, and its owner ends here.
        unsafe { larder_destroy(self.0) }
    }
}

fn create(config: &str) -> Result<Host, i32> {
    let mut dispatcher = ptr::null_mut();
    // SAFETY: both pointers are valid.
    let code = unsafe { larder_create(config.as_ptr().cast(), config.len(), &raw mut dispatcher) };
    if code == LARDER_OK { Ok(Host(dispatcher)) } else { Err(code) }
}

fn host(config: &str) -> Host {
    create(config).unwrap_or_else(|code| panic!("{code}: {}", message()))
}

fn message() -> String {
    // SAFETY: the buffer is valid for its size.
    text(|buffer, size, needed| unsafe { larder_last_error(buffer, size, needed) })
}

/// Reads a text as a host does: its size first, and again if it has grown meanwhile.
fn text(call: impl Fn(*mut c_char, usize, *mut usize) -> i32) -> String {
    let mut needed = 0;
    assert_eq!(call(ptr::null_mut(), 0, &raw mut needed), LARDER_OK);
    loop {
        let mut buffer = vec![0_u8; needed];
        let code = call(buffer.as_mut_ptr().cast(), buffer.len(), &raw mut needed);
        if code == LARDER_ERROR_BUFFER {
            continue;
        }
        assert_eq!(code, LARDER_OK);
        buffer.truncate(needed);
        assert_eq!(buffer.pop(), Some(0), "a text ends with 0");
        return String::from_utf8(buffer).expect("UTF-8");
    }
}

/// A request for a target id.
fn target(id: u64) -> Request {
    Request {
        key: ptr::null(),
        key_len: 0,
        target: id,
        exclude: ptr::null(),
        exclude_len: 0,
        sticky: LARDER_NO_NODE,
        origin: LARDER_NO_NODE,
        service_class: LARDER_CLASS_N,
        lasting: 0,
    }
}

impl Host {
    fn decide(&self, now_ns: u64, request: &Request) -> Result<Decision, i32> {
        let mut decision = Decision::default();
        // SAFETY: all pointers are valid.
        let code = unsafe { larder_decide(self.0, now_ns, request, &raw mut decision) };
        if code == LARDER_OK { Ok(decision) } else { Err(code) }
    }

    fn done(&self, now_ns: u64, decision: &Decision, feedback: Option<&Feedback>) -> i32 {
        let feedback = feedback.map_or(ptr::null(), ptr::from_ref);
        // SAFETY: all pointers are valid or null.
        unsafe { larder_done(self.0, now_ns, decision, feedback) }
    }

    fn find(&self, name: &str) -> Result<NodeHandle, i32> {
        let mut node = LARDER_NO_NODE;
        // SAFETY: all pointers are valid.
        let code = unsafe { larder_node_find(self.0, name.as_ptr().cast(), name.len(), &raw mut node) };
        if code == LARDER_OK { Ok(node) } else { Err(code) }
    }

    fn add(&self, name: &str) -> Result<NodeHandle, i32> {
        let spec = NodeSpec {
            name: name.as_ptr().cast(),
            name_len: name.len(),
            cache_bytes: 0,
            weight_milli: 0,
            backup: 0,
        };
        let mut node = LARDER_NO_NODE;
        // SAFETY: all pointers are valid.
        let code = unsafe { larder_node_add(self.0, 0, &raw const spec, &raw mut node) };
        if code == LARDER_OK { Ok(node) } else { Err(code) }
    }

    fn set_state(&self, node: NodeHandle, state: u8) -> i32 {
        // SAFETY: the dispatcher is valid.
        unsafe { larder_node_set_state(self.0, 0, node, state) }
    }

    fn report(&self, now_ns: u64, node: NodeHandle, values: &[SignalValue]) -> i32 {
        // SAFETY: the values are valid for their number.
        unsafe { larder_report(self.0, now_ns, node, values.as_ptr(), values.len()) }
    }

    fn explain(&self, request: &Request) -> serde_json::Value {
        // SAFETY: all pointers are valid.
        let json =
            text(|buffer, size, needed| unsafe { larder_explain(self.0, 0, request, buffer, size, needed) });
        serde_json::from_str(&json).expect("JSON")
    }

    fn status(&self) -> serde_json::Value {
        // SAFETY: the buffer is valid for its size.
        let json = text(|buffer, size, needed| unsafe { larder_status(self.0, 0, buffer, size, needed) });
        serde_json::from_str(&json).expect("JSON")
    }

    fn save(&self) -> Vec<u8> {
        let mut needed = 0;
        // SAFETY: a buffer of size 0 may be null.
        let code = unsafe { larder_snapshot_save(self.0, ptr::null_mut(), 0, &raw mut needed) };
        assert_eq!(code, LARDER_OK);
        let mut bytes = vec![0_u8; needed];
        // SAFETY: the buffer is valid for its size.
        let code =
            unsafe { larder_snapshot_save(self.0, bytes.as_mut_ptr().cast(), needed, &raw mut needed) };
        assert_eq!(code, LARDER_OK);
        bytes
    }

    fn load(&self, bytes: &[u8]) -> Result<u64, i32> {
        let mut targets = 0;
        let from: *const c_void = bytes.as_ptr().cast();
        // SAFETY: all pointers are valid.
        let code = unsafe { larder_snapshot_load(self.0, from, bytes.len(), &raw mut targets) };
        if code == LARDER_OK { Ok(targets) } else { Err(code) }
    }
}
