//! Faults: crashes, pauses, partitions and wrong views.

use super::{Ground, Happening, Id, PATIENCE, Stage, Standing, TROUBLE, World};
use crate::faults::outcome::Violation;

impl<W: World> Ground<'_, W> {
    /// Schedules up to three faults of each kind.
    pub(super) fn plan_troubles(&mut self) {
        for make in [|| Happening::Crash, || Happening::Pause, || Happening::Part] {
            for _ in 0..self.chance.below(4) {
                let wait = self.chance.micros(0, TROUBLE.as_micros() as u64);
                self.after(wait, make());
            }
        }
    }

    pub(super) fn all_is_well(&self) -> bool {
        self.part.is_none() && self.nodes.iter().all(Standing::runs)
    }

    pub(super) fn sight(&mut self, of: Id, by: Id, again: bool) -> Result<(), Violation> {
        if again {
            let wait = self.chance.micros(500_000, 2_000_000);
            self.after(wait, Happening::Sight { of, by, again });
        }
        if !self.nodes[by].up {
            return Ok(());
        }
        // The view is wrong in a few cases.
        let there = self.reach(by, of) && !(self.trouble && self.chance.permille(10));
        if there == self.nodes[by].sees[of] && (!there || again) {
            return Ok(());
        }
        self.nodes[by].sees[of] = there;
        self.say(|| format!("{by} takes {of} for {}", if there { "present" } else { "gone" }));
        W::takes(self, by, of, there)
    }

    /// Returns a random running node.
    pub(in crate::faults) fn some_node(&mut self) -> Option<Id> {
        let running: Vec<Id> = (0..self.nodes.len()).filter(|node| self.nodes[*node].runs()).collect();
        let at = self.chance.below(running.len() as u64) as usize;
        running.get(at).copied()
    }

    pub(super) fn crash(&mut self) {
        let Some(node) = self.some_node() else { return };
        self.survived.crashes += 1;
        self.say(|| format!("{node} crashes"));
        self.die(node);
    }

    /// Ends a node's process, and schedules its restart.
    pub(in crate::faults) fn die(&mut self, node: Id) {
        let epoch = self.nodes[node].epoch + 1;
        let anew = Standing::new(self.own.machine(node, epoch), epoch, self.nodes.len());
        self.nodes[node] = Standing { up: false, ..anew };
        let wait = W::away(self, node);
        self.after(wait, Happening::Start { node });
        W::dies(self, node);
    }

    /// Cuts off the requests of a crashed node. Requests of other nodes that it was serving break.
    pub(in crate::faults) fn cut(&mut self, node: Id) {
        for request in 0..self.requests.len() {
            match self.requests[request].stage {
                Stage::Ended => {}
                _ if self.requests[request].initial == node => {
                    self.requests[request].stage = Stage::Ended;
                    self.survived.cut += 1;
                }
                Stage::Sent { to, .. } | Stage::Begun { to, .. } if to == node => {
                    // The node's kernel reports this, unless its host is gone too.
                    let told = self.chance.permille(500);
                    let wait = if told { self.chance.micros(10, 10_000) } else { PATIENCE };
                    self.after(wait, Happening::Broken { request });
                }
                _ => {}
            }
        }
    }

    pub(super) fn start(&mut self, node: Id) {
        self.say(|| format!("{node} starts"));
        self.nodes[node].up = true;
        W::starts(self, node);
        self.plan_tick(node);
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            // Other nodes see the new process, whether or not they had noticed the crash.
            let waits = [self.chance.micros(1_000, 1_500_000), self.chance.micros(1_000, 1_500_000)];
            self.after(waits[0], Happening::Sight { of: node, by: other, again: false });
            self.after(waits[1], Happening::Sight { of: other, by: node, again: false });
        }
    }

    /// Pauses a node. It does not crash while it is paused.
    pub(super) fn pause(&mut self) {
        let Some(node) = self.some_node() else { return };
        self.survived.pauses += 1;
        self.say(|| format!("{node} stands still"));
        self.nodes[node].paused = true;
        let wait = self.chance.micros(10_000, 4_000_000);
        self.after(wait, Happening::Resume { node });
    }

    pub(super) fn resume(&mut self, node: Id) -> Result<(), Violation> {
        self.nodes[node].paused = false;
        self.say(|| format!("{node} goes on"));
        let backlog = core::mem::take(&mut self.nodes[node].backlog);
        backlog.into_iter().try_for_each(|happening| self.happen(happening))
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
        self.after(wait, Happening::Heal);
    }

    pub(super) fn heal(&mut self) {
        self.say(|| "the network is whole".to_owned());
        self.part = None;
    }
}
