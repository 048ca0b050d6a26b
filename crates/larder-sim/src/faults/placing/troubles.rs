//! What goes wrong, and what must hold when it does no more.

use super::machine::Machine;
use super::{Event, Id, PATIENCE, Request, Stage, World};
use crate::faults::Violation;
use larder_core::peers::WardStatus;
use larder_core::{NodeId, Time};

impl World<'_> {
    /// Whether packets pass between two nodes.
    pub(super) fn connected(&self, a: Id, b: Id) -> bool {
        self.nodes[a].up && self.nodes[b].up && self.part.as_ref().is_none_or(|part| part[a] == part[b])
    }

    /// Whether one answers the other.
    pub(super) fn reach(&self, a: Id, b: Id) -> bool {
        self.connected(a, b) && !self.nodes[a].paused && !self.nodes[b].paused
    }

    pub(super) fn sight(&mut self, of: Id, by: Id, again: bool) -> Result<(), Violation> {
        if again {
            let wait = self.chance.micros(500_000, 2_000_000);
            self.after(wait, Event::Sight { of, by, again });
        }
        if !self.nodes[by].up {
            return Ok(());
        }
        // Wrong in a few cases.
        let there = self.reach(by, of) && !(self.trouble && self.chance.permille(10));
        if there == self.nodes[by].sees[of] && (!there || again) {
            return Ok(());
        }
        self.nodes[by].sees[of] = there;
        let (peer, name) = (NodeId(of as u16), self.names[of].clone());
        self.say(|| format!("{by} takes {of} for {}", if there { "present" } else { "gone" }));
        self.act(by, |machine, now, done| {
            if there { machine.joined(now, peer, &name, done) } else { machine.left(now, peer, done) }
        })
    }

    /// One of the nodes that run.
    fn some_node(&mut self) -> Option<Id> {
        let running: Vec<Id> =
            (0..self.nodes.len()).filter(|node| self.nodes[*node].up && !self.nodes[*node].paused).collect();
        let at = self.chance.below(running.len() as u64) as usize;
        running.get(at).copied()
    }

    pub(super) fn crash(&mut self) {
        let Some(node) = self.some_node() else { return };
        self.survived.crashes += 1;
        self.say(|| format!("{node} crashes"));
        let (count, epoch) = (self.nodes.len(), self.nodes[node].epoch + 1);
        let crashed = &mut self.nodes[node];
        crashed.machine = Machine::new(self.protocol, node, &self.names[node], epoch);
        crashed.epoch = epoch;
        crashed.up = false;
        crashed.sees = vec![false; count];
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
            } else if matches!(stage, Stage::Sent(to, _) if to == node) {
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

    /// What is not as it must be once all has settled; None if nothing.
    pub(super) fn doubt(&self) -> Option<String> {
        if let Some(request) = self.requests.iter().position(|request| request.stage != Stage::Ended) {
            return Some(format!("request {request} has not ended: {:?}", self.requests[request]));
        }
        let count = self.nodes.len();
        let first = (0..count).min_by_key(|node| &self.names[*node])?;
        for (at, node) in self.nodes.iter().enumerate() {
            if let Some(unseen) = (0..count).find(|of| *of != at && !node.sees[*of]) {
                return Some(format!("node {at} does not see {unseen}"));
            }
            if node.machine.leader().index() != first {
                return Some(format!(
                    "node {at} takes {:?} for the first, not {first}",
                    node.machine.leader()
                ));
            }
        }
        self.loads().or_else(|| self.tables())
    }

    /// Whether a dispatcher counts what nothing accounts for.
    fn loads(&self) -> Option<String> {
        for (at, node) in self.nodes.iter().enumerate() {
            let Machine::Card(card) = &node.machine else { continue };
            if card.waiting() > 0 {
                return Some(format!("{} requests wait at node {at}", card.waiting()));
            }
            for of in 0..self.nodes.len() {
                let load = card.load_at_desk(NodeId(of as u16));
                if load > 0 {
                    return Some(format!(
                        "the desk of node {at} counts {load} at {of}, and none are under way"
                    ));
                }
            }
        }
        None
    }

    /// Whether nodes go by no table, or by different ones. There is none where nodes that had one crashed, and too little was asked
    /// for since: its maker has tried.
    fn tables(&self) -> Option<String> {
        let mut tables = self.nodes.iter().enumerate().filter_map(|(at, node)| match &node.machine {
            Machine::Ward(ward, _) => Some((at, ward.status())),
            Machine::Card(_) => None,
        });
        let tried = |status: &WardStatus| status.unmade > 0;
        let (_, first) = tables.next()?;
        let all = core::iter::once((0, first.clone())).chain(tables).collect::<Vec<_>>();
        if first.id.is_none() && !all.iter().any(|(_, status)| tried(status)) {
            return Some("node 0 has no table".to_owned());
        }
        let mut tables = all.into_iter();
        tables
            .find(|(_, status)| status.id != first.id)
            .map(|(at, status)| format!("node {at} goes by {:?}, node 0 by {:?}", status.id, first.id))
    }
}
