//! PRESS at a running node: each node decides by the memory contents of its peers.

use super::side::{ME, PeersMemory, Say, Side, Told};
use larder_core::peers::{Message, Outgoing, Press, PressSettings, To, Verdict, Why};
use larder_core::{Bytes, NodeId, TargetId, Time, WireError};
use larder_peers::Name;

/// The protocol's state at this node.
#[derive(Debug)]
pub(super) struct PressSide {
    pub(super) press: Press,
    /// A buffer that is empty between two calls.
    out: Vec<Outgoing>,
}

impl PressSide {
    pub(super) fn new(epoch: u64, settings: PressSettings) -> Self {
        Self { press: Press::new(ME, epoch, settings), out: Vec::new() }
    }

    pub(super) fn reasons() -> Vec<&'static str> {
        Why::ALL.iter().map(|why| why.name()).collect()
    }

    /// Decides which node serves a client's request. If this node reads the target for it, the peers are told.
    pub(super) fn decide(&mut self, now: Time, target: TargetId, out: &mut Vec<Say>) -> Verdict {
        let verdict = self.press.decide(now, target, None);
        self.with(out, |press, out| press.reading(now, verdict, target, out));
        verdict
    }

    fn with(&mut self, out: &mut Vec<Say>, act: impl FnOnce(&mut Press, &mut Vec<Outgoing>)) {
        act(&mut self.press, &mut self.out);
        out.extend(self.out.drain(..).map(|Outgoing { to, message }| {
            let bytes = message.encode();
            match (to, message) {
                (To::One(node), _) => Say::To(node, bytes),
                (To::All, Message::Load { .. }) => Say::All(bytes, Told::Load),
                (To::All, _) => Say::All(bytes, Told::Changes),
            }
        }));
    }
}

impl Side for PressSide {
    fn resized(&mut self, PeersMemory { memory, large_min }: PeersMemory) -> bool {
        large_min.is_none_or(|large_min| self.press.resize(memory, large_min))
    }

    fn due(&self) -> Time {
        self.press.due()
    }

    fn tick(&mut self, now: Time, out: &mut Vec<Say>) {
        self.with(out, |press, out| press.tick(now, out));
    }

    fn joined(&mut self, now: Time, node: NodeId, _name: &Name, out: &mut Vec<Say>) {
        self.with(out, |press, out| press.joined(now, node, out));
    }

    fn left(&mut self, _now: Time, node: NodeId, _out: &mut Vec<Say>) {
        self.press.left(node);
    }

    fn linked(&mut self, now: Time, node: NodeId, out: &mut Vec<Say>) {
        self.with(out, |press, out| press.greet(now, node, out));
    }

    fn hear(&mut self, now: Time, from: NodeId, bytes: &[u8], out: &mut Vec<Say>) -> Result<(), WireError> {
        let message = Message::decode(bytes)?;
        self.with(out, |press, out| press.hear(now, from, message, out));
        Ok(())
    }

    fn begun(&mut self, now: Time, out: &mut Vec<Say>) {
        self.with(out, |press, out| press.begun(now, out));
    }

    fn ended(&mut self, now: Time, out: &mut Vec<Say>) {
        self.with(out, |press, out| press.ended(now, out));
    }

    fn noted(&mut self, now: Time, target: TargetId, cached: bool, out: &mut Vec<Say>) {
        self.with(out, |press, out| press.noted(now, target, cached, out));
    }

    fn served(&mut self, now: Time, target: TargetId, size: Bytes, missed: bool, out: &mut Vec<Say>) {
        self.with(out, |press, out| press.served(now, target, size, missed, out));
    }

    fn came_to_nothing(&mut self, now: Time, target: TargetId, out: &mut Vec<Say>) {
        self.with(out, |press, out| press.came_to_nothing(now, target, out));
    }

    fn returned(&mut self, node: NodeId) {
        self.press.returned(node);
    }

    fn answered(&mut self, node: NodeId) {
        self.press.answered(node);
    }

    fn unanswered(&mut self, now: Time, node: NodeId, target: TargetId, to_blame: bool) {
        self.press.unanswered(now, node, target, to_blame);
    }
}
