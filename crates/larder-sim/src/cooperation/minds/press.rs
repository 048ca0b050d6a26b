//! PRESS: one state machine of the live node per node.

use larder_core::peers::{Outgoing, Press, PressSettings, Why};
use larder_core::{Bytes, NodeId, Time};

use super::mind::{Asked, Decision, Minds, Place, State, Wish, Words};
use crate::cooperation::cluster::Cooperation;

/// The state machines of the nodes.
#[derive(Debug)]
pub(super) struct Presses {
    presses: Vec<Press>,
    large_min: Bytes,
    /// An empty buffer between two calls.
    out: Vec<Outgoing>,
}

impl Presses {
    pub(super) fn new(cluster: &Cooperation) -> Self {
        let settings = PressSettings { memory: cluster.memory, ..cluster.protocol };
        let press = |node| Press::new(NodeId(node), 1, settings);
        let presses = (0..cluster.nodes).map(press).collect();
        Self { presses, large_min: settings.large_min, out: Vec::new() }
    }

    fn with<R>(
        &mut self,
        node: u16,
        out: &mut Vec<Wish>,
        act: impl FnOnce(&mut Press, &mut Vec<Outgoing>) -> R,
    ) -> R {
        let result = act(&mut self.presses[usize::from(node)], &mut self.out);
        let wish = |Outgoing { to, message }| Wish::Say { to, words: Words::Press(message) };
        out.extend(self.out.drain(..).map(wish));
        result
    }
}

impl Minds for Presses {
    fn reasons(&self) -> Vec<&'static str> {
        Why::ALL.map(Why::name).to_vec()
    }

    fn speakers(&self) -> u16 {
        self.presses.len() as u16
    }

    fn joined(&mut self, now: Time, node: u16, peer: u16, out: &mut Vec<Wish>) {
        self.with(node, out, |press, out| press.joined(now, NodeId(peer), out));
    }

    fn decide(&mut self, now: Time, _task: u32, asked: &Asked, out: &mut Vec<Wish>) -> Decision {
        let verdict = self.with(asked.node, out, |press, out| {
            let verdict = press.decide(now, asked.target, Some(asked.size));
            press.reading(now, verdict, asked.target, out);
            verdict
        });
        let keep = asked.size < self.large_min;
        Decision::Place(Place { node: verdict.node.0, why: verdict.why as usize, keep })
    }

    fn begun(&mut self, now: Time, node: u16, out: &mut Vec<Wish>) {
        self.with(node, out, |press, out| press.begun(now, out));
    }

    fn ended(&mut self, now: Time, node: u16, out: &mut Vec<Wish>) {
        self.with(node, out, |press, out| press.ended(now, out));
    }

    fn served(&mut self, now: Time, asked: &Asked, missed: bool, out: &mut Vec<Wish>) -> bool {
        self.with(asked.node, out, |press, out| {
            let shared = press.shares();
            press.served(now, asked.target, asked.size, missed, out);
            press.shares() != shared
        })
    }

    fn returned(&mut self, node: u16, from: u16) {
        self.presses[usize::from(node)].returned(NodeId(from));
    }

    fn noted(&mut self, now: Time, change: &Asked, cached: bool, out: &mut Vec<Wish>) -> bool {
        self.with(change.node, out, |press, out| {
            let shares = press.shares();
            press.noted(now, change.target, cached, out);
            shares
        })
    }

    fn hear(&mut self, now: Time, node: u16, from: u16, words: Words, out: &mut Vec<Wish>) {
        let Words::Press(message) = words else { return };
        self.with(node, out, |press, out| press.hear(now, NodeId(from), message, out));
    }

    fn tick(&mut self, now: Time, node: u16, out: &mut Vec<Wish>) {
        self.with(node, out, |press, out| press.tick(now, out));
    }

    fn due(&self, node: u16) -> Time {
        self.presses[usize::from(node)].due()
    }

    fn sharing(&self) -> u64 {
        self.presses.iter().filter(|press| press.shares()).count() as u64
    }

    /// Counts 34 bytes per known target, 17 per cached target and 240 per peer.
    fn states(&self) -> Vec<State> {
        let peers = self.presses.len() - 1;
        let state = |press: &Press| {
            let (targets, own) = press.sizes();
            State { bytes: 34 * targets + 17 * own + 240 * peers, targets }
        };
        self.presses.iter().map(state).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_as_listed() {
        for (at, why) in Why::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, at, "{}", why.name());
        }
    }
}
