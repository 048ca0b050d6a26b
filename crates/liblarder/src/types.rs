//! The structures and numbers of the header.

use std::ffi::{c_char, c_void};

/// The version of this interface. It changes when a structure, a number or the meaning of a call changes.
pub const LARDER_ABI_VERSION: u32 = 1;

/// A node id. An id is never 0 and is not used again for another node. 0 means no node.
pub type NodeHandle = u32;

/// No node.
pub const LARDER_NO_NODE: NodeHandle = 0;

/// Service class: no notable costs. The class of unclassified requests.
pub const LARDER_CLASS_N: u8 = 0;
/// Service class: disk.
pub const LARDER_CLASS_DB: u8 = 1;
/// Service class: processor.
pub const LARDER_CLASS_CB: u8 = 2;
/// Service class: disk and processor.
pub const LARDER_CLASS_DCB: u8 = 3;

/// State of a node: it takes requests.
pub const LARDER_NODE_UP: u8 = 0;
/// State of a node: it finishes its requests and receives no new ones.
pub const LARDER_NODE_DRAINING: u8 = 1;
/// State of a node: it has failed.
pub const LARDER_NODE_DOWN: u8 = 2;
/// State of a node: it has left. Its id becomes invalid; its requests in flight still end with larder_done.
pub const LARDER_NODE_REMOVED: u8 = 3;

/// The node did not say whether it had the target in memory.
pub const LARDER_CACHE_UNKNOWN: u8 = 0;
/// The target was in the node's memory.
pub const LARDER_CACHE_HIT: u8 = 1;
/// The target was not in the node's memory.
pub const LARDER_CACHE_MISS: u8 = 2;

/// Cache event: the target is now in the node's cache.
pub const LARDER_EVENT_STORED: u8 = 0;
/// Cache event: the target was evicted to make room.
pub const LARDER_EVENT_EVICTED: u8 = 1;
/// Cache event: the target is no longer in the cache, and the time and the reason are unknown.
pub const LARDER_EVENT_GONE: u8 = 2;

/// Signal: busy share of the processor. 1/1000.
pub const LARDER_SIGNAL_CPU: u32 = 0;
/// Signal: busy share of the disk. 1/1000.
pub const LARDER_SIGNAL_DISK: u32 = 1;
/// Signal: share of the memory in use. 1/1000.
pub const LARDER_SIGNAL_MEMORY: u32 = 2;
/// Signal: requests in progress at the node.
pub const LARDER_SIGNAL_PROCESSES: u32 = 3;
/// Signal: mean service time since the last report. Microseconds.
pub const LARDER_SIGNAL_SERVICE_TIME: u32 = 4;
/// Signal: disk traffic since the last report. Bytes per second.
pub const LARDER_SIGNAL_DISK_BYTES: u32 = 5;
/// Signal: major page faults since the last report, per second.
pub const LARDER_SIGNAL_PAGING: u32 = 6;
/// Signal: requests that wait for the processor or a disk.
pub const LARDER_SIGNAL_QUEUE: u32 = 7;
/// Signal: the first of four counters of the application, in 1/1000 of their own unit. The others follow.
pub const LARDER_SIGNAL_APP1: u32 = 8;

/// The facts of a request that decisions use. Zero bytes are a valid request for the target 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The target key, such as host, path and query. The library hashes it. Null: `target` is used.
    pub key: *const c_void,
    /// The size of the key in bytes.
    pub key_len: usize,
    /// The target id if `key` is null: the hash that larder_target returns, or another 64-bit hash.
    pub target: u64,
    /// The nodes at which the request has failed, the latest last. They are not chosen. The last 8 count. May be null.
    pub exclude: *const NodeHandle,
    /// The number of these nodes, at most 64.
    pub exclude_len: usize,
    /// The node that keeps the client's session, or 0. It is used unless it is at T_high or takes no requests.
    pub sticky: NodeHandle,
    /// The node that accepted the client's connection, or 0. Only `ward` and `part` use it.
    pub origin: NodeHandle,
    /// The service class, LARDER_CLASS_*. Only `cap`, `cap-load` and `static` use it.
    pub service_class: u8,
    /// 1 if the request asks for a connection that is likely to last, such as a WebSocket; else 0.
    pub lasting: u8,
}

/// A decision. Keep it until the request ends, because larder_done takes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The target id of the request.
    pub target: u64,
    /// The chosen node.
    pub node: NodeHandle,
    /// The reason; larder_reason_name returns its name.
    pub reason: u8,
    /// The service class of the request.
    pub service_class: u8,
    /// 1 after larder_long_lived; else 0.
    pub long_lived: u8,
    /// 0.
    pub reserved: u8,
}

/// The result of a request. Zero bytes mean a reply of which nothing is known.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Feedback {
    /// The time from the decision to the last byte. Nanoseconds; 0: unknown, and no policy learns from the reply.
    pub elapsed_ns: u64,
    /// The time from the decision to the first byte of the reply. Nanoseconds; 0: unknown.
    pub first_byte_ns: u64,
    /// The size of the reply's body. Bytes. For larder_status only.
    pub bytes: u64,
    /// The HTTP status; 0: unknown. Whether the target was in memory counts for 200 to 299, 304 and 0.
    pub status: u16,
    /// Whether the node had the target in memory, LARDER_CACHE_*.
    pub cache: u8,
    /// 1 if the node did not send a whole reply: it failed, timed out or was cancelled; else 0.
    pub failed: u8,
}

/// The configuration of a node that joins. Zero bytes except the name are valid.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NodeSpec {
    /// The name, which identifies the node across restarts. UTF-8, 1 to 1,024 bytes, without a final 0.
    pub name: *const c_char,
    /// The size of the name in bytes.
    pub name_len: usize,
    /// The size of the node's cache, by which first placements are shared out. Bytes; 0: unknown.
    pub cache_bytes: u64,
    /// The relative capacity in 1/1000. 1 to 100,000; 0 means 1,000.
    pub weight_milli: u32,
    /// 1 if the node takes requests only while no ordinary node does; else 0.
    pub backup: u8,
}

/// A value of a load report. A signal that is not in the report is missing, which is not zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SignalValue {
    /// The signal, LARDER_SIGNAL_*.
    pub signal: u32,
    /// The value in the signal's unit. Shares above 1,000 count as 1,000.
    pub value: u64,
}

/// A row of the routing table of `ward` and `part`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TableRow {
    /// The target id.
    pub target: u64,
    /// The node that owns the target, or 0 if the target belongs to the core.
    pub node: NodeHandle,
}
