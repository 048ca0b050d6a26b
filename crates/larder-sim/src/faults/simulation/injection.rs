//! Faults: crashes, pauses, partitions and wrong views.

use super::{FAULT_PHASE, Id, RequestStage, SimEvent, Simulation, TIMEOUT, World, WorldNode};
use crate::faults::outcome::Violation;

impl<W: World> Simulation<'_, W> {
    /// Schedules up to three faults of each kind.
    pub(super) fn schedule_faults(&mut self) {
        for make in [|| SimEvent::Crash, || SimEvent::Pause, || SimEvent::Partition] {
            for _ in 0..self.rng.draw_below(4) {
                let wait = self.rng.draw_micros(0, FAULT_PHASE.as_micros() as u64);
                self.schedule(wait, make());
            }
        }
    }

    pub(super) fn is_fault_free(&self) -> bool {
        self.partition.is_none() && self.nodes.iter().all(WorldNode::is_running)
    }

    pub(super) fn observe(&mut self, of: Id, by: Id, again: bool) -> Result<(), Violation> {
        if again {
            let wait = self.rng.draw_micros(500_000, 2_000_000);
            self.schedule(wait, SimEvent::Observe { of, by, again });
        }
        if !self.nodes[by].up {
            return Ok(());
        }
        // The view is wrong in a few cases.
        let there = self.can_communicate(by, of) && !(self.faults_enabled && self.rng.draw_permille(10));
        if there == self.nodes[by].sees[of] && (!there || again) {
            return Ok(());
        }
        self.nodes[by].sees[of] = there;
        self.log(|| format!("{by} believes that {of} is {}", if there { "present" } else { "gone" }));
        W::update_liveness(self, by, of, there)
    }

    /// Returns a random running node.
    pub(in crate::faults) fn pick_running_node(&mut self) -> Option<Id> {
        let running: Vec<Id> = (0..self.nodes.len()).filter(|node| self.nodes[*node].is_running()).collect();
        let at = self.rng.draw_below(running.len() as u64) as usize;
        running.get(at).copied()
    }

    pub(super) fn inject_crash(&mut self) {
        let Some(node) = self.pick_running_node() else { return };
        self.stats.crashes += 1;
        self.log(|| format!("{node} crashes"));
        self.crash_node(node);
    }

    /// Ends a node's process, and schedules its restart.
    pub(in crate::faults) fn crash_node(&mut self, node: Id) {
        let epoch = self.nodes[node].epoch + 1;
        let anew = WorldNode::new(self.world.create_machine(node, epoch), epoch, self.nodes.len());
        self.nodes[node] = WorldNode { up: false, ..anew };
        let wait = W::draw_downtime(self, node);
        self.schedule(wait, SimEvent::Start { node });
        W::handle_crash(self, node);
    }

    /// Cuts off the requests of a crashed node. Requests of other nodes that it was serving break.
    pub(in crate::faults) fn end_requests_of(&mut self, node: Id) {
        for request in 0..self.requests.len() {
            match self.requests[request].stage {
                RequestStage::Ended => {}
                _ if self.requests[request].initial == node => {
                    self.requests[request].stage = RequestStage::Ended;
                    self.stats.cut += 1;
                }
                RequestStage::Sent { to, .. } | RequestStage::Begun { to, .. } if to == node => {
                    // The node's kernel reports this, unless its host is gone too.
                    let told = self.rng.draw_permille(500);
                    let wait = if told { self.rng.draw_micros(10, 10_000) } else { TIMEOUT };
                    self.schedule(wait, SimEvent::ConnectionBroken { request });
                }
                _ => {}
            }
        }
    }

    pub(super) fn restart_node(&mut self, node: Id) {
        self.log(|| format!("{node} starts"));
        self.nodes[node].up = true;
        W::handle_restart(self, node);
        self.schedule_tick(node);
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            // Other nodes see the new process, whether or not they had noticed the crash.
            let waits = [self.rng.draw_micros(1_000, 1_500_000), self.rng.draw_micros(1_000, 1_500_000)];
            self.schedule(waits[0], SimEvent::Observe { of: node, by: other, again: false });
            self.schedule(waits[1], SimEvent::Observe { of: other, by: node, again: false });
        }
    }

    /// Pauses a node. It does not crash while it is paused.
    pub(super) fn inject_pause(&mut self) {
        let Some(node) = self.pick_running_node() else { return };
        self.stats.pauses += 1;
        self.log(|| format!("{node} pauses"));
        self.nodes[node].paused = true;
        let wait = self.rng.draw_micros(10_000, 4_000_000);
        self.schedule(wait, SimEvent::Resume { node });
    }

    pub(super) fn resume_node(&mut self, node: Id) -> Result<(), Violation> {
        self.nodes[node].paused = false;
        self.log(|| format!("{node} continues"));
        let backlog = core::mem::take(&mut self.nodes[node].backlog);
        backlog.into_iter().try_for_each(|sim_event| self.handle(sim_event))
    }

    pub(super) fn inject_partition(&mut self) {
        if self.partition.is_some() {
            return;
        }
        self.stats.partitions += 1;
        let partition: Vec<bool> = (0..self.nodes.len()).map(|_| self.rng.draw_permille(500)).collect();
        self.log(|| format!("network partition: {partition:?}"));
        self.partition = Some(partition);
        let wait = self.rng.draw_micros(100_000, 6_000_000);
        self.schedule(wait, SimEvent::Heal);
    }

    pub(super) fn heal_partition(&mut self) {
        self.log(|| "the network partition ends".to_owned());
        self.partition = None;
    }
}
