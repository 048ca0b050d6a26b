//! Regular work: idle and forgotten connections, dead nodes.

use super::edge::Edge;
use super::fabric::Fabric as _;
use super::lock::lock;
use super::parts;
use larder_core::handoff::{Flow, Input, To};
use larder_core::{NodeState, Time};
use larder_handoff::channel::message::ToNode;
use larder_kernel::FlowKey;
use std::sync::Arc;
use std::time::Duration;

/// A client that has said nothing for so long has gone without a word.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3_600);

impl Edge {
    /// Lets the machine know the time.
    pub(super) fn tick(&self, now: Time) {
        self.act_at(now, Input::Tick);
    }

    /// Looks at the connections that count at their nodes: those that rest, and those that the plane has forgotten.
    pub(super) fn review(&self) {
        let active = lock(&self.machine).active();
        for key in active {
            self.act(Input::Review { key });
        }
        let now = self.decider.clock.now();
        self.tick(now);
        self.counts.unaccepted(self.expire_placed(now));
        self.bury(false);
        self.release_draining();
    }

    /// Looks at every connection that the plane knows: those that are over, and those that came from before a restart; and at
    /// those that it no longer knows.
    pub(super) fn sweep(self: &Arc<Self>) {
        self.act(Input::SweepBegins);
        let now = Time::from_nanos(self.fabric.now_ns());
        let mut odd: Vec<(FlowKey, Flow)> = Vec::new();
        self.fabric.each_flow(&mut |key, flow| {
            let flow = parts::flow(&flow);
            if lock(&self.machine).note_seen(key, &flow, now) {
                odd.push((key, flow));
            }
        });
        self.act(Input::SweepEnds);
        for (key, flow) in odd {
            self.act(Input::Seen { key, flow });
        }
        self.sweep_left(self.decider.clock.now());
        self.wake_tags();
    }

    /// The connections that the plane forwards: also those that rest and count for nobody, as a predecessor's do, but not
    /// those whose clients have said nothing for very long.
    pub(super) fn forwarded(&self) -> usize {
        let now = Time::from_nanos(self.fabric.now_ns());
        let mut count = 0;
        self.fabric.each_flow(&mut |_, flow| {
            let flow = parts::flow(&flow);
            let goes_on = matches!(flow.to, To::Node(_)) && !flow.has_ended();
            count += usize::from(goes_on && flow.silence(now) < FORGOTTEN_AFTER);
        });
        count
    }

    /// The connections of dead nodes, or with `newly` of those that have died just now: their clients are told at once.
    pub(super) fn bury(&self, newly: bool) {
        for row in self.decider.dispatcher.nodes().rows() {
            let node = row.id;
            let dead = self.is_dead(node);
            let died = self.peers.note_dead(node, dead);
            if dead && (died || !newly) {
                self.act(Input::Dead { node });
            } else if dead {
                self.act(Input::GiveUp { node });
            }
        }
    }

    /// Asks nodes that drain to give their connections up.
    fn release_draining(&self) {
        for row in self.decider.dispatcher.nodes().rows() {
            let node = row.id;
            let drains = self.decider.dispatcher.nodes().state(node) == NodeState::Draining;
            if drains
                && self.peers.capability(node).up
                && lock(&self.machine).has_any(node)
                && let Err(error) = self.peers.send(node, &ToNode::Release)
            {
                // It is asked again with the next review.
                tracing::debug!(%error, %node, "a node could not be asked to give its connections up");
            }
        }
    }
}
