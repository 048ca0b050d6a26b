//! What goes wrong, and what must hold when it does no more.

use super::{Event, Id, Node, OBJECT_MAX, PATIENCE, Request, Stage, World};
use crate::faults::Violation;
use larder_core::cache::{ByteCache, CacheKind};
use larder_core::peers::Press;
use larder_core::{Bytes, NodeId, TargetId, Time};

impl World<'_> {
    /// Whether packets pass between two nodes.
    pub(super) fn connected(&self, a: Id, b: Id) -> bool {
        self.nodes[a].up && self.nodes[b].up && self.part.as_ref().is_none_or(|part| part[a] == part[b])
    }

    /// Whether one answers the other.
    pub(super) fn reach(&self, a: Id, b: Id) -> bool {
        self.connected(a, b) && !self.nodes[a].paused && !self.nodes[b].paused
    }

    pub(super) fn sight(&mut self, of: Id, by: Id, again: bool) {
        if again {
            let wait = self.chance.micros(500_000, 2_000_000);
            self.after(wait, Event::Sight { of, by, again });
        }
        if !self.nodes[by].up {
            return;
        }
        // Wrong in a few cases.
        let there = self.reach(by, of) && !(self.trouble && self.chance.permille(10));
        if there != self.nodes[by].sees[of] || (there && !again) {
            self.nodes[by].sees[of] = there;
            let peer = NodeId(of as u16);
            self.say(|| format!("{by} takes {of} for {}", if there { "present" } else { "gone" }));
            self.nodes_out(
                by,
                |press, now, out| if there { press.joined(now, peer, out) } else { press.left(peer) },
            );
        }
    }

    /// One of the nodes that run.
    pub(super) fn some_node(&mut self) -> Option<Id> {
        let running: Vec<Id> =
            (0..self.nodes.len()).filter(|node| self.nodes[*node].up && !self.nodes[*node].paused).collect();
        let at = self.chance.below(running.len() as u64) as usize;
        running.get(at).copied()
    }

    pub(super) fn crash(&mut self) {
        let Some(node) = self.some_node() else { return };
        self.survived.crashes += 1;
        self.say(|| format!("{node} crashes"));
        let count = self.nodes.len();
        let (settings, epoch) = (self.settings, self.nodes[node].epoch + 1);
        let crashed = &mut self.nodes[node];
        crashed.press = Press::new(NodeId(node as u16), epoch, settings);
        crashed.epoch = epoch;
        crashed.memory = ByteCache::new(CacheKind::Lru, settings.memory, Bytes(OBJECT_MAX - 1));
        crashed.up = false;
        crashed.sees = vec![false; count];
        crashed.under_way = 0;
        crashed.tick_at = Time::MAX;
        let wait = self.chance.micros(10_000, 5_000_000);
        self.after(wait, Event::Start { node });
        for request in 0..self.requests.len() {
            let Request { initial, stage, .. } = self.requests[request];
            if stage == Stage::Ended {
                continue;
            }
            if initial == node {
                self.requests[request].stage = Stage::Ended;
                self.survived.cut += 1;
            } else if matches!(stage, Stage::Sent { to, .. } | Stage::Begun { to, .. } if to == node) {
                // Its kernel says so, unless its host is gone too.
                let wait = if self.chance.permille(500) { self.chance.micros(10, 10_000) } else { PATIENCE };
                self.after(wait, Event::Broken { request });
            }
        }
    }

    pub(super) fn start(&mut self, node: Id) {
        self.say(|| format!("{node} starts"));
        self.nodes[node].up = true;
        self.plan_tick(node);
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            // Others hear that it is there anew, whether or not they had missed it.
            let waits = [self.chance.micros(1_000, 1_500_000), self.chance.micros(1_000, 1_500_000)];
            self.after(waits[0], Event::Sight { of: node, by: other, again: false });
            self.after(waits[1], Event::Sight { of: other, by: node, again: false });
        }
    }

    pub(super) fn pause(&mut self) {
        let Some(node) = self.some_node() else { return };
        self.survived.pauses += 1;
        self.say(|| format!("{node} stands still"));
        self.nodes[node].paused = true;
        let (wait, epoch) = (self.chance.micros(10_000, 4_000_000), self.nodes[node].epoch);
        self.after(wait, Event::Resume { node, epoch });
    }

    pub(super) fn resume(&mut self, node: Id, epoch: u64) -> Result<(), Violation> {
        if self.nodes[node].epoch != epoch {
            return Ok(());
        }
        self.nodes[node].paused = false;
        self.say(|| format!("{node} goes on"));
        let backlog = core::mem::take(&mut self.nodes[node].backlog);
        backlog.into_iter().try_for_each(|event| self.happen(event))
    }

    pub(super) fn fall_apart(&mut self) {
        if self.part.is_some() {
            return;
        }
        self.survived.partitions += 1;
        let part: Vec<bool> = (0..self.nodes.len()).map(|_| self.chance.permille(500)).collect();
        self.say(|| format!("the network falls apart: {part:?}"));
        self.part = Some(part);
        let wait = self.chance.micros(100_000, 6_000_000);
        self.after(wait, Event::Heal);
    }

    pub(super) fn heal(&mut self) {
        self.say(|| "the network is whole".to_owned());
        self.part = None;
    }

    /// What is not as it must be once all has settled; None if nothing.
    pub(super) fn doubt(&mut self) -> Option<String> {
        if let Some(request) = self.requests.iter().position(|request| request.stage != Stage::Ended) {
            return Some(format!("request {request} has not ended: {:?}", self.requests[request]));
        }
        let count = self.nodes.len();
        for a in 0..count {
            let Node { press, under_way, sees, .. } = &self.nodes[a];
            if *under_way != 0 || press.load() != 0 {
                return Some(format!("node {a} counts {}, and {under_way} are under way", press.load()));
            }
            for b in (0..count).filter(|b| *b != a) {
                let (peer, shares) = (NodeId(b as u16), self.nodes[b].press.shares());
                if !sees[b] {
                    return Some(format!("node {a} does not see {b}"));
                }
                if shares && (!press.knows(peer) || press.load_of(self.now, peer) != Some(0)) {
                    return Some(format!("node {a} does not know {b}"));
                }
            }
        }
        let forgets = self.settings.targets_max < self.sizes.len();
        for target in 0..self.sizes.len() as u64 {
            for a in 0..count {
                let holds = |b: usize| {
                    let node = &self.nodes[b];
                    (b == a || node.press.shares()) && node.memory.contains(&target)
                };
                let truth: Vec<NodeId> = (0..count).filter(|b| holds(*b)).map(|b| NodeId(b as u16)).collect();
                let believed = self.nodes[a].press.servers(TargetId(target));
                let right =
                    if forgets { believed.iter().all(|b| truth.contains(b)) } else { believed == truth };
                if !right {
                    return Some(format!(
                        "node {a} takes {believed:?} for servers of {target}: they are {truth:?}"
                    ));
                }
            }
        }
        None
    }
}
