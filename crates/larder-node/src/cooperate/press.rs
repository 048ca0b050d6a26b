//! PRESS at a running node: each node decides by the memory contents of its peers.

use super::adapter::{BroadcastKind, LOCAL, PeersMemory, PolicyAdapter, PolicyOutput};
use larder_core::peers::{
    Press, PressDecision, PressMessage, PressOutput, PressReason, PressSettings, Recipient,
};
use larder_core::{Bytes, NodeId, TargetId, Time, WireError};
use larder_peers::Name;

/// The protocol's state at this node.
#[derive(Debug)]
pub(super) struct PressAdapter {
    pub(super) press: Press,
    /// A buffer that is empty between two calls.
    out: Vec<PressOutput>,
}

impl PressAdapter {
    pub(super) fn new(epoch: u64, settings: PressSettings) -> Self {
        Self { press: Press::new(LOCAL, epoch, settings), out: Vec::new() }
    }

    pub(super) fn reasons() -> Vec<&'static str> {
        PressReason::ALL.iter().map(|why| why.name()).collect()
    }

    /// Decides which node serves a client's request. If this node reads the target for it, the peers are told.
    pub(super) fn decide(
        &mut self,
        now: Time,
        target: TargetId,
        out: &mut Vec<PolicyOutput>,
    ) -> PressDecision {
        let verdict = self.press.decide(now, target, None);
        self.with(out, |press, out| press.begin_read(now, verdict, target, out));
        verdict
    }

    fn with(&mut self, out: &mut Vec<PolicyOutput>, act: impl FnOnce(&mut Press, &mut Vec<PressOutput>)) {
        act(&mut self.press, &mut self.out);
        out.extend(self.out.drain(..).map(|PressOutput { to, message }| {
            let bytes = message.encode();
            match (to, message) {
                (Recipient::One(node), _) => PolicyOutput::Send(node, bytes),
                (Recipient::All, PressMessage::Load { .. }) => {
                    PolicyOutput::Broadcast(bytes, BroadcastKind::Load)
                }
                (Recipient::All, _) => PolicyOutput::Broadcast(bytes, BroadcastKind::Changes),
            }
        }));
    }
}

impl PolicyAdapter for PressAdapter {
    fn resize_memory(&mut self, PeersMemory { memory, large_min }: PeersMemory) -> bool {
        large_min.is_none_or(|large_min| self.press.resize(memory, large_min))
    }

    fn next_deadline(&self) -> Time {
        self.press.due()
    }

    fn tick(&mut self, now: Time, out: &mut Vec<PolicyOutput>) {
        self.with(out, |press, out| press.tick(now, out));
    }

    fn add_member(&mut self, now: Time, node: NodeId, _name: &Name, out: &mut Vec<PolicyOutput>) {
        self.with(out, |press, out| press.add_peer(now, node, out));
    }

    fn remove_member(&mut self, _now: Time, node: NodeId, _out: &mut Vec<PolicyOutput>) {
        self.press.remove_peer(node);
    }

    fn greet_member(&mut self, now: Time, node: NodeId, out: &mut Vec<PolicyOutput>) {
        self.with(out, |press, out| press.resume_link(now, node, out));
    }

    fn handle_message(
        &mut self,
        now: Time,
        from: NodeId,
        bytes: &[u8],
        out: &mut Vec<PolicyOutput>,
    ) -> Result<(), WireError> {
        let message = PressMessage::decode(bytes)?;
        self.with(out, |press, out| press.receive(now, from, message, out));
        Ok(())
    }

    fn begin_request(&mut self, now: Time, out: &mut Vec<PolicyOutput>) {
        self.with(out, |press, out| press.begin_connection(now, out));
    }

    fn end_request(&mut self, now: Time, out: &mut Vec<PolicyOutput>) {
        self.with(out, |press, out| press.end_connection(now, out));
    }

    fn record_cached(&mut self, now: Time, target: TargetId, cached: bool, out: &mut Vec<PolicyOutput>) {
        self.with(out, |press, out| press.set_cached(now, target, cached, out));
    }

    fn record_served(
        &mut self,
        now: Time,
        target: TargetId,
        size: Bytes,
        missed: bool,
        out: &mut Vec<PolicyOutput>,
    ) {
        self.with(out, |press, out| press.record_served(now, target, size, missed, out));
    }

    fn record_missing(&mut self, now: Time, target: TargetId, out: &mut Vec<PolicyOutput>) {
        self.with(out, |press, out| press.record_missing(now, target, out));
    }

    fn record_end(&mut self, node: NodeId) {
        self.press.record_return(node);
    }

    fn record_answer(&mut self, node: NodeId) {
        self.press.record_reply(node);
    }

    fn record_no_answer(&mut self, now: Time, node: NodeId, target: TargetId, is_fault: bool) {
        self.press.record_failure(now, node, target, is_fault);
    }
}
