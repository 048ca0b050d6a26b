//! The forwarding plane while this process has it. It may be let go of, for another process to take, while connections go on here.

use super::config::Forward;
use super::fabric::{Fabric, Nothing, Reusable, To, Told, Way};
use super::lock::lock;
use arc_swap::ArcSwap;
use larder_core::NodeId;
use larder_kernel::plane::Owner;
use larder_kernel::{CookieKey, FlowKey, abi};
use std::io;
use std::ops::Deref;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Calls that are under way when the plane is let go of end within this time.
const PATIENCE: Duration = Duration::from_secs(2);

/// A plane until it is let go of; from then on one that moves nothing.
#[derive(Debug)]
pub(crate) struct Lent {
    fabric: ArcSwap<Owned>,
    /// Closed once the plane is closed in this process.
    closed: Mutex<Receiver<()>>,
    /// What the plane tells is for another process. Held while it is listened to.
    deaf: Mutex<bool>,
}

#[derive(Debug)]
struct Owned {
    // In this order, which is the order in which they are dropped.
    fabric: Box<dyn Fabric>,
    _open: Option<Sender<()>>,
}

impl Deref for Owned {
    type Target = dyn Fabric;

    fn deref(&self) -> &Self::Target {
        &*self.fabric
    }
}

impl Lent {
    pub(crate) fn new(fabric: Box<dyn Fabric>) -> Self {
        let (open, closed) = channel();
        Self {
            fabric: ArcSwap::from_pointee(Owned { fabric, _open: Some(open) }),
            closed: Mutex::new(closed),
            deaf: Mutex::new(false),
        }
    }

    fn now(&self) -> arc_swap::Guard<Arc<Owned>> {
        self.fabric.load()
    }

    /// What the plane tells from here on is left to another process. Blocks while somebody listens, a moment.
    pub(crate) fn deafen(&self) {
        *lock(&self.deaf) = true;
    }

    /// Lets go of the plane; what is in the kernel stays there. Blocks until no call is under way any more, a moment.
    pub(crate) fn let_go(&self) {
        drop(self.fabric.swap(Arc::new(Owned { fabric: Box::new(Nothing), _open: None })));
        // Whoever is in a call drops it last.
        if lock(&self.closed).recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!(
                "forwarding plane: a call is still under way, the plane is let go of when it ends"
            );
        }
    }
}

impl Fabric for Lent {
    fn put_flow(&self, key: FlowKey, to: To) -> io::Result<()> {
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

    fn put_target(&self, head: u64, reusable: &Reusable, lasts: Duration) {
        self.now().put_target(head, reusable, lasts);
    }

    fn set_gate(&self, node: Option<NodeId>, limit: u32, usable: bool) {
        self.now().set_gate(node, limit, usable);
    }

    fn set_base(&self, node: Option<NodeId>, base: u32, seen: u32) {
        self.now().set_base(node, base, seen);
    }

    fn set_link(&self, node: NodeId, way: &Way, forward: Forward) -> io::Result<()> {
        self.now().set_link(node, way, forward)
    }

    fn owner(&self, node: NodeId) -> Option<Owner> {
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

    fn set_former_keys(&self, keys: &[CookieKey]) {
        self.now().set_former_keys(keys);
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

    fn told(&self, visit: &mut dyn FnMut(Told<'_>)) -> usize {
        let deaf = lock(&self.deaf);
        if *deaf { 0 } else { self.now().told(visit) }
    }

    fn opened(&self, node: Option<NodeId>) -> u32 {
        self.now().opened(node)
    }

    fn begin(&self) -> io::Result<()> {
        self.now().begin()
    }

    fn settle(&self) {
        self.now().settle();
    }

    fn close(&self) {
        self.now().close();
    }

    fn remove(&self) {
        self.now().remove();
    }
}
