//! PRESS at a running node: each node decides by the memory contents of its peers.

use super::adapter::{BroadcastKind, LOCAL, PeersMemory, PolicyAdapter, PolicyOutput};
use larder_core::peers::{Message, Outgoing, Press, PressSettings, To, Verdict, Why};
use larder_core::{Bytes, NodeId, TargetId, Time, WireError};
use larder_peers::Name;

/// The protocol's state at this node.
#[derive(Debug)]
pub(super) struct PressAdapter {
    pub(super) press: Press,
    /// A buffer that is empty between two calls.
    out: Vec<Outgoing>,
}

impl PressAdapter {
    pub(super) fn new(epoch: u64, settings: PressSettings) -> Self {
        Self { press: Press::new(LOCAL, epoch, settings), out: Vec::new() }
    }

    pub(super) fn reasons() -> Vec<&'static str> {
        Why::ALL.iter().map(|why| why.name()).collect()
    }

    /// Decides which node serves a client's request. If this node reads the target for it, the peers are told.
    pub(super) fn decide(&mut self, now: Time, target: TargetId, out: &mut Vec<PolicyOutput>) -> Verdict {
        let verdict = self.press.decide(now, target, None);
        self.with(out, |press, out| press.reading(now, verdict, target, out));
        verdict
    }

    fn with(&mut self, out: &mut Vec<PolicyOutput>, act: impl FnOnce(&mut Press, &mut Vec<Outgoing>)) {
        act(&mut self.press, &mut self.out);
        out.extend(self.out.drain(..).map(|Outgoing { to, message }| {
            let bytes = message.encode();
            match (to, message) {
                (To::One(node), _) => PolicyOutput::Send(node, bytes),
                (To::All, Message::Load { .. }) => PolicyOutput::Broadcast(bytes, BroadcastKind::Load),
                (To::All, _) => PolicyOutput::Broadcast(bytes, BroadcastKind::Changes),
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
        self.with(out, |press, out| press.joined(now, node, out));
    }

    fn remove_member(&mut self, _now: Time, node: NodeId, _out: &mut Vec<PolicyOutput>) {
        self.press.left(node);
    }

    fn greet_member(&mut self, now: Time, node: NodeId, out: &mut Vec<PolicyOutput>) {
        self.with(out, |press, out| press.greet(now, node, out));
    }

    fn handle_message(
        &mut self,
        now: Time,
        from: NodeId,
        bytes: &[u8],
        out: &mut Vec<PolicyOutput>,
    ) -> Result<(), WireError> {
        let message = Message::decode(bytes)?;
        self.with(out, |press, out| press.hear(now, from, message, out));
        Ok(())
    }

    fn begin_request(&mut self, now: Time, out: &mut Vec<PolicyOutput>) {
        self.with(out, |press, out| press.begun(now, out));
    }

    fn end_request(&mut self, now: Time, out: &mut Vec<PolicyOutput>) {
        self.with(out, |press, out| press.ended(now, out));
    }

    fn record_cached(&mut self, now: Time, target: TargetId, cached: bool, out: &mut Vec<PolicyOutput>) {
        self.with(out, |press, out| press.noted(now, target, cached, out));
    }

    fn record_served(
        &mut self,
        now: Time,
        target: TargetId,
        size: Bytes,
        missed: bool,
        out: &mut Vec<PolicyOutput>,
    ) {
        self.with(out, |press, out| press.served(now, target, size, missed, out));
    }

    fn record_missing(&mut self, now: Time, target: TargetId, out: &mut Vec<PolicyOutput>) {
        self.with(out, |press, out| press.came_to_nothing(now, target, out));
    }

    fn record_end(&mut self, node: NodeId) {
        self.press.returned(node);
    }

    fn record_answer(&mut self, node: NodeId) {
        self.press.answered(node);
    }

    fn record_no_answer(&mut self, now: Time, node: NodeId, target: TargetId, is_fault: bool) {
        self.press.unanswered(now, node, target, is_fault);
    }
}
