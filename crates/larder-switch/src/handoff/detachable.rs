//! A datapath that this process can detach, so that another process takes it over while connections continue.

use super::config::Encapsulation;
use super::datapath::{Datapath, DatapathEvent, Destination, NoDatapath, NodeLink, ReusableDecision};
use crate::lock::lock;
use arc_swap::ArcSwap;
use larder_core::NodeId;
use larder_kernel::plane::SlotOwner;
use larder_kernel::{CookieKey, FlowKey, abi};
use std::io;
use std::ops::Deref;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time for calls in progress to end when the plane is detached.
const PATIENCE: Duration = Duration::from_secs(2);

/// The attached datapath; after [`Self::detach`], one that does nothing.
#[derive(Debug)]
pub(crate) struct DetachableDatapath {
    datapath: ArcSwap<AttachedDatapath>,
    /// Disconnected once the datapath is dropped in this process.
    closed: Mutex<Receiver<()>>,
    /// Whether events are left to another process. The lock is held while events are read.
    events_stopped: Mutex<bool>,
}

#[derive(Debug)]
struct AttachedDatapath {
    // The order of the fields is the order in which they are dropped.
    datapath: Box<dyn Datapath>,
    _open: Option<Sender<()>>,
}

impl Deref for AttachedDatapath {
    type Target = dyn Datapath;

    fn deref(&self) -> &Self::Target {
        &*self.datapath
    }
}

impl DetachableDatapath {
    pub(crate) fn new(datapath: Box<dyn Datapath>) -> Self {
        let (open, closed) = channel();
        Self {
            datapath: ArcSwap::from_pointee(AttachedDatapath { datapath, _open: Some(open) }),
            closed: Mutex::new(closed),
            events_stopped: Mutex::new(false),
        }
    }

    fn now(&self) -> arc_swap::Guard<Arc<AttachedDatapath>> {
        self.datapath.load()
    }

    /// Leaves further events to another process. Blocks briefly while a thread reads events.
    pub(crate) fn stop_events(&self) {
        *lock(&self.events_stopped) = true;
    }

    /// Detaches the plane; kernel objects stay. Blocks briefly until no call is in progress.
    pub(crate) fn detach(&self) {
        drop(self.datapath.swap(Arc::new(AttachedDatapath { datapath: Box::new(NoDatapath), _open: None })));
        // The last call in progress drops the datapath.
        if lock(&self.closed).recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            tracing::debug!("forwarding plane: call in progress, it is detached afterwards");
        }
    }
}

impl Datapath for DetachableDatapath {
    fn put_flow(&self, key: FlowKey, to: Destination) -> io::Result<()> {
        self.now().put_flow(key, to)
    }

    fn add_flow(&self, key: FlowKey, node: NodeId) -> io::Result<()> {
        self.now().add_flow(key, node)
    }

    fn remove_flow(&self, key: FlowKey) {
        self.now().remove_flow(key);
    }

    fn note_frozen(&self, key: FlowKey, seq: u32, ack: u32) {
        self.now().note_frozen(key, seq, ack);
    }

    fn flow(&self, key: FlowKey) -> Option<abi::Flow> {
        self.now().flow(key)
    }

    fn each_flow(&self, visit: &mut dyn FnMut(FlowKey, abi::Flow)) {
        self.now().each_flow(visit);
    }

    fn set_idle(&self, key: FlowKey) {
        self.now().set_idle(key);
    }

    fn set_ended(&self, key: FlowKey) {
        self.now().set_ended(key);
    }

    fn set_resumed(&self, key: FlowKey) {
        self.now().set_resumed(key);
    }

    fn forward(&self, node: NodeId, packet: &[u8]) -> io::Result<()> {
        self.now().forward(node, packet)
    }

    fn accept_here(&self, packet: &[u8]) -> io::Result<()> {
        self.now().accept_here(packet)
    }

    fn put_target(&self, head: u64, reusable: &ReusableDecision, lasts: Duration) {
        self.now().put_target(head, reusable, lasts);
    }

    fn set_gate(&self, node: Option<NodeId>, limit: u32, usable: bool) {
        self.now().set_gate(node, limit, usable);
    }

    fn set_base(&self, node: Option<NodeId>, base: u32, seen: u32) {
        self.now().set_base(node, base, seen);
    }

    fn set_link(&self, node: NodeId, link: &NodeLink, forward: Encapsulation) -> io::Result<()> {
        self.now().set_link(node, link, forward)
    }

    fn owner(&self, node: NodeId) -> Option<SlotOwner> {
        self.now().owner(node)
    }

    fn set_owner(&self, node: NodeId, key: [u8; 32], after_another: bool) {
        self.now().set_owner(node, key, after_another);
    }

    fn close_link(&self, node: NodeId) -> io::Result<()> {
        self.now().close_link(node)
    }

    fn set_keys(&self, keys: &[CookieKey; 2], current: usize) {
        self.now().set_keys(keys, current);
    }

    fn set_expired_keys(&self, keys: &[CookieKey]) {
        self.now().set_expired_keys(keys);
    }

    fn reset_client_at(&self, key: FlowKey, ack: Option<u32>) -> io::Result<()> {
        self.now().reset_client_at(key, ack)
    }

    fn now_ns(&self) -> u64 {
        self.now().now_ns()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.now().counters()
    }

    fn read_events(&self, visit: &mut dyn FnMut(DatapathEvent<'_>)) -> usize {
        let events_stopped = lock(&self.events_stopped);
        if *events_stopped { 0 } else { self.now().read_events(visit) }
    }

    fn opened(&self, node: Option<NodeId>) -> u32 {
        self.now().opened(node)
    }

    fn start(&self) -> io::Result<()> {
        self.now().start()
    }

    fn enable_resets(&self) {
        self.now().enable_resets();
    }

    fn close(&self) {
        self.now().close();
    }

    fn uninstall(&self) {
        self.now().uninstall();
    }
}
