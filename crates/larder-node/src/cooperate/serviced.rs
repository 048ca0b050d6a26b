//! Connections that are serviced here, as the policy counts them.

use super::Cooperation;
use crate::config::Limits;
use crate::handover::{Bound, Hold, Standing};
use http::request::Parts;
use larder_core::peers::Claim;
use larder_core::{NodeId, TargetId};
use larder_kernel::FlowKey;
use larder_peers::Name;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

/// A connection serviced here counts as load until this goes.
#[derive(Debug)]
pub(crate) struct Serviced {
    cooperation: Arc<Cooperation>,
    /// The node that serves it, if not this one.
    pub(crate) at: Option<NodeId>,
    /// By what a dispatcher counts it.
    pub(crate) claim: Option<Claim>,
    /// What counts once all of the body was sent, its length being unknown before.
    pub(crate) counted: Option<Counted>,
}

/// A reply to a client's request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    pub(crate) target: TargetId,
    /// This node served it and had it not in memory.
    pub(crate) missed: bool,
    pub(crate) bytes: u64,
}

impl Serviced {
    /// Its service node has answered, or will not.
    pub(crate) fn returned(&mut self) {
        if let Some(node) = self.at.take() {
            self.cooperation.with(|policy, _, _| policy.side().returned(node));
        }
    }

    /// It has left with its connection: it counts here no more, but at a dispatcher until that ends.
    pub(crate) fn hold(mut self) -> Option<Box<dyn Hold>> {
        let claim = self.claim.take()?;
        Some(Box::new(Held { cooperation: Arc::downgrade(&self.cooperation), claim: Some(claim) }))
    }

    /// It is served by another node than the dispatcher counts it for.
    pub(crate) fn release(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.cooperation.release(claim);
        }
    }

    /// So many bytes of the body are sent.
    pub(crate) fn sent(&mut self, bytes: usize) {
        if let Some(counted) = &mut self.counted {
            counted.bytes += bytes as u64;
        }
    }

    /// The request was answered.
    pub(crate) fn served(&self, counted: Counted) {
        self.cooperation.served(counted);
    }

    /// The body, whose length was not known, is sent whole.
    pub(crate) fn whole(&mut self) {
        if let Some(counted) = self.counted.take() {
            self.cooperation.served(counted);
        }
    }
}

impl Drop for Serviced {
    fn drop(&mut self) {
        self.returned();
        self.release();
        self.cooperation.load.fetch_sub(1, Relaxed);
        self.cooperation.with(|policy, now, out| policy.side().ended(now, out));
    }
}

/// A connection that has been handed over counts at the dispatcher until this goes.
#[derive(Debug)]
struct Held {
    /// Kept with the connection, which the cooperation's own side keeps.
    cooperation: Weak<Cooperation>,
    claim: Option<Claim>,
}

impl Hold for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        if let (Some(claim), Some(cooperation)) = (self.claim.take(), self.cooperation.upgrade()) {
            cooperation.release(claim);
        }
    }
}

/// A connection that is to be handed over, as its request's handler leaves it.
#[derive(Debug)]
pub(crate) struct Departure {
    pub(crate) to: Name,
    /// The same, by its number among the peers.
    pub(crate) node: NodeId,
    pub(crate) flow: FlowKey,
    /// The request's head.
    pub(crate) head: Vec<u8>,
    pub(crate) target: TargetId,
    /// It counts here until it has been sent; at a dispatcher until it ends.
    pub(crate) serviced: Serviced,
}

impl Cooperation {
    pub(crate) fn begin(self: &Arc<Self>) -> Serviced {
        self.load.fetch_add(1, Relaxed);
        self.with(|policy, now, out| policy.side().begun(now, out));
        Serviced { cooperation: Arc::clone(self), at: None, claim: None, counted: None }
    }

    pub(crate) fn served(&self, Counted { target, missed, bytes }: Counted) {
        let size = larder_core::Bytes(bytes);
        if let Some(handover) = &self.handover {
            handover.note_size(target, size);
        }
        self.note_served(target, size, missed);
    }

    /// A node has begun to answer what it was given.
    pub(crate) fn answered(&self, node: NodeId) {
        self.with(|policy, _, _| policy.side().answered(node));
    }

    /// A client's request, served here, was answered with an error that says that there is nothing.
    pub(crate) fn came_to_nothing(&self, target: TargetId) {
        self.with(|policy, now, out| policy.side().came_to_nothing(now, target, out));
    }

    /// A client's request was answered with a whole of this size.
    fn note_served(&self, target: TargetId, size: larder_core::Bytes, missed: bool) {
        self.with(|policy, now, out| policy.side().served(now, target, size, missed, out));
    }

    /// The connection and the bytes of its request, if it is handed over to the peer that serves the request.
    pub(crate) fn departs(
        &self,
        to: &Name,
        parts: &Parts,
        target: TargetId,
        (standing, bound): (impl FnOnce() -> Standing, Bound),
        limits: &Limits,
    ) -> Option<(FlowKey, Vec<u8>)> {
        let handover = self.handover.as_ref().filter(|_| bound == Bound::Free)?;
        handover.choose(to, parts, target, standing(), limits).ok()
    }

    /// A request has left with its connection: its reply does not pass here.
    pub(crate) fn count_departed(&self, target: TargetId) {
        if let Some(size) = self.handover.as_ref().and_then(|handover| handover.size_of(target)) {
            self.note_served(target, size, false);
        }
    }
}
