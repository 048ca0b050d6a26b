//! The world of several switches: each has a dispatcher over the same nodes, and tells the others its loads
//! and server sets ([`larder_core::switches`]). Each request also has a prompt, which the switch places and tells the others of.
//!
//! Only the switches are simulated. The serving nodes are numbers in their dispatchers and never fail.
//! Thresholds are so low that targets move all the time. A request ends at the switch that accepted it.

use super::outcome::Violation;
use super::protocol::{BrokenRule, Protocol};
use super::rng::FaultRng;
use super::simulation::{Id, RequestStage, SimEvent, Simulation, World};
use core::time::Duration;
use larder_core::cache::Block;
use larder_core::chain::{ChainRequest, ChainSettings, NodeWork, SharedChains, Work};
use larder_core::dispatch::{Admission, Arrival, Dispatcher, Request, Settings};
use larder_core::nodes::GroupId;
use larder_core::switches::{OutgoingMessage, Switches, SwitchesOutput, SwitchesSettings};
use larder_core::{NodeId, NodeSpec, PolicyKind, RouteId, TargetId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The period of a switch's updates: longer than live, so that more happens between them.
const PERIOD: Duration = Duration::from_millis(50);
/// The number of serving nodes.
const SERVERS: u64 = 5;

/// The tokens that the cache of a serving node has.
const NODE_TOKENS: u64 = 4_000;
/// The largest number of turns of a conversation. Each adds two blocks.
const TURNS: u64 = 8;

/// Returns the prompt of a conversation after some turns.
fn prompt(conversation: u64, turns: u64) -> Vec<Block> {
    let block = |at: u64| Block { id: TargetId::of(&(conversation << 8 | at).to_le_bytes()), tokens: 64 };
    (0..2 * turns).map(block).collect()
}

/// An event of this world.
#[derive(Debug)]
pub(super) enum Event {
    /// A node has served a request.
    Served { request: Id, epoch: u64, at: NodeId },
}

/// The process of a switch.
pub(super) struct SwitchProcess {
    dispatcher: Dispatcher,
    chains: Arc<SharedChains>,
    /// The work of the prompts that are served.
    works: BTreeMap<Id, (Vec<Block>, Work)>,
    switches: Switches,
    /// The start time of the process, where its own clock begins.
    started_at: Option<Time>,
    due: Time,
}

/// The world of several switches.
#[derive(Debug)]
pub(super) struct SwitchesWorld {
    policy: PolicyKind,
    targets: u64,
    names: Vec<Arc<str>>,
    /// The nodes at which each prompt was placed, by its last block.
    placed: BTreeSet<(String, TargetId)>,
}

impl SwitchesWorld {
    pub(super) fn draw(rng: &mut FaultRng, switches: usize) -> Self {
        let policies = [PolicyKind::Lard, PolicyKind::LardR, PolicyKind::LardR, PolicyKind::LardCost];
        Self {
            policy: policies[rng.draw_below(4) as usize],
            targets: 20 + rng.draw_below(300),
            names: (0..switches).map(|at| Arc::from(format!("s{at}"))).collect(),
            placed: BTreeSet::new(),
        }
    }
}

impl SwitchProcess {
    /// Returns the time on the switch's own clock.
    fn local_time(&self, now: Time) -> Time {
        Time::from_nanos(now.since(self.started_at.unwrap_or(now)).as_nanos() as u64)
    }

    /// Returns the switch's server sets, by the names of nodes.
    fn replica_sets(&self) -> BTreeMap<TargetId, Vec<String>> {
        let name = |node: &NodeId| self.dispatcher.nodes().name(*node).to_string();
        let memory = self.dispatcher.learned_state(RouteId::DEFAULT);
        memory.sets().map(|set| (set.target, set.servers.iter().map(name).collect())).collect()
    }
}

impl World for SwitchesWorld {
    type Machine = SwitchProcess;
    type Message = Vec<u8>;
    type Event = Event;

    fn convergence_time(&self) -> Duration {
        Protocol::Switches.convergence_time()
    }

    fn create_machine(&self, me: Id, epoch: u64) -> SwitchProcess {
        // Thresholds are low, so that targets move. Each switch has the nodes in another order.
        let settings = Settings {
            policy: self.policy,
            admission: Admission::Unlimited,
            t_low: 1,
            t_high: 3,
            replication_decay: Duration::from_secs(2),
            nodes_max: SERVERS as u16,
            shards: 2,
            ..Settings::default()
        };
        let servers = (0..SERVERS).map(|at| NodeSpec::named(format!("n{}", (at + me as u64) % SERVERS)));
        let dispatcher = Dispatcher::new(settings, &servers.collect::<Vec<_>>());
        let dispatcher = dispatcher.unwrap_or_else(|error| unreachable!("the settings are fixed: {error}"));
        let how = SwitchesSettings { period: PERIOD, sets_max: 40, ..SwitchesSettings::default() };
        let routes = vec![(RouteId::DEFAULT, "default".to_owned())];
        let name = self.names[me].clone();
        let switches = Switches::new(Time::ZERO, (name, epoch), how, routes, &dispatcher);
        let mut switches = switches.unwrap_or_else(|error| unreachable!("the settings are fixed: {error}"));
        // Caches are small, so that blocks are evicted.
        let chains = SharedChains::new(&ChainSettings::default(), NODE_TOKENS, GroupId::ALL);
        let chains = chains.unwrap_or_else(|error| unreachable!("the settings are fixed: {error}"));
        let chains = Arc::new(chains);
        switches.share_chains(RouteId::DEFAULT, chains.clone());
        let works = BTreeMap::new();
        SwitchProcess { dispatcher, chains, works, switches, started_at: None, due: Time::ZERO }
    }

    /// Returns a target; some targets are requested far more often than others.
    fn draw_target(&self, rng: &mut FaultRng) -> u64 {
        rng.draw_below(self.targets).min(rng.draw_below(self.targets))
    }

    fn node_of_event(sim: &Simulation<'_, Self>, event: &Event) -> Option<Id> {
        let Event::Served { request, .. } = event;
        Some(sim.requests[*request].initial)
    }

    fn handle_event(sim: &mut Simulation<'_, Self>, event: Event) -> Result<(), Violation> {
        let Event::Served { request, epoch, at } = event;
        sim.finish_service(request, epoch, at)
    }

    fn accept_request(sim: &mut Simulation<'_, Self>, request: Id) -> Result<(), Violation> {
        let (switch, target) = (sim.requests[request].initial, sim.requests[request].target);
        let (now, epoch) = (sim.now, sim.nodes[switch].epoch);
        let blocks = prompt(target, 1 + sim.rng.draw_below(TURNS));
        let machine = &mut sim.nodes[switch].machine;
        if let Some(decision) = machine.chains.arrive(machine.dispatcher.nodes(), &ChainRequest::new(&blocks))
        {
            machine.chains.announce(&blocks, &decision.work);
            let name = machine.dispatcher.nodes().name(decision.node);
            sim.world.placed.extend(blocks.iter().map(|block| (name.to_string(), block.id)));
            machine.works.insert(request, (blocks, decision.work));
        }
        let target = TargetId::of(&target.to_le_bytes());
        let at = match machine.dispatcher.arrive(machine.local_time(now), Request::new(target)) {
            Arrival::Start(decision) => decision.node,
            other => return Err(sim.violation(format!("request {request} is not placed: {other:?}"))),
        };
        sim.requests[request].stage = RequestStage::Here;
        let wait = sim.rng.draw_micros(1_000, 300_000);
        sim.schedule(wait, SimEvent::World(Event::Served { request, epoch, at }));
        Ok(())
    }

    fn receive_forwarded(_: &mut Simulation<'_, Self>, _: Id, _: Id, _: bool) -> Result<(), Violation> {
        Ok(())
    }

    fn handle_broken_connection(_: &mut Simulation<'_, Self>, _: Id) -> Result<(), Violation> {
        Ok(())
    }

    fn update_liveness(sim: &mut Simulation<'_, Self>, by: Id, of: Id, there: bool) -> Result<(), Violation> {
        let name = sim.world.names[of].clone();
        sim.act_on_switch(by, |machine, now, out| {
            let SwitchProcess { dispatcher, switches, .. } = machine;
            if there {
                switches.add_switch(now, &name, dispatcher, out);
                switches.interrupt_link(&name);
                switches.link_up(&name, now, dispatcher, out);
            } else {
                switches.remove_switch(now, &name, dispatcher, out);
            }
        })
    }

    fn receive(sim: &mut Simulation<'_, Self>, to: Id, from: Id, message: Vec<u8>) -> Result<(), Violation> {
        let name = sim.world.names[from].clone();
        let mut strange = None;
        sim.act_on_switch(to, |machine, now, out| {
            let SwitchProcess { dispatcher, switches, .. } = machine;
            strange = switches.receive(now, &name, &message, dispatcher, out).err();
        })?;
        match strange {
            None => Ok(()),
            Some(error) => Err(sim.violation(format!("{to} cannot decode a message of {from}: {error}"))),
        }
    }

    fn next_tick(sim: &Simulation<'_, Self>, node: Id) -> Time {
        sim.nodes[node].machine.due
    }

    fn tick(sim: &mut Simulation<'_, Self>, node: Id) -> Result<(), Violation> {
        let next = sim.now + PERIOD;
        sim.act_on_switch(node, |machine, now, out| {
            machine.due = next;
            machine.switches.tick(now, &machine.dispatcher, out);
        })
    }

    fn unmet_condition(sim: &mut Simulation<'_, Self>) -> Option<String> {
        sim.find_load_mismatch().or_else(|| sim.find_set_mismatch()).or_else(|| sim.find_chain_mismatch())
    }
}

impl Simulation<'_, SwitchesWorld> {
    fn act_on_switch(
        &mut self,
        switch: Id,
        act: impl FnOnce(&mut SwitchProcess, Time, &mut SwitchesOutput),
    ) -> Result<(), Violation> {
        let (now, mut out) = (self.now, SwitchesOutput::default());
        let machine = &mut self.nodes[switch].machine;
        machine.started_at.get_or_insert(now);
        let local = machine.local_time(now);
        act(machine, local, &mut out);
        for OutgoingMessage { to, message } in out.messages {
            // If a switch never asks, its questions are lost.
            if self.broken_rule == Some(BrokenRule::NeverAsks) && Switches::is_question(&message) {
                continue;
            }
            match to.and_then(|to| self.world.names.iter().position(|name| *name == to)) {
                Some(to) => self.post_message(switch, to, &message),
                None => self.broadcast(switch, &message),
            }
        }
        self.schedule_tick(switch);
        Ok(())
    }

    fn finish_service(&mut self, request: Id, epoch: u64, at: NodeId) -> Result<(), Violation> {
        let switch = self.requests[request].initial;
        if !self.is_alive(switch, epoch) {
            return Ok(());
        }
        self.mark_ended(request)?;
        match self.broken_rule {
            Some(BrokenRule::ForgetsEnds) => return Ok(()),
            Some(BrokenRule::EndsTwice) => self.mark_ended(request)?,
            _ => {}
        }
        let machine = &mut self.nodes[switch].machine;
        if self.broken_rule != Some(BrokenRule::ForgetsPrompts)
            && let Some((blocks, mut work)) = machine.works.remove(&request)
        {
            machine.chains.first_token(&mut work);
            machine.chains.finish(&blocks, work);
        }
        machine.dispatcher.finish(machine.local_time(self.now), at, &mut Vec::new());
        Ok(())
    }

    // -- the conditions

    /// Returns a switch that counts load without a cause, its own or that of other switches.
    fn find_load_mismatch(&self) -> Option<String> {
        for (at, switch) in self.nodes.iter().enumerate() {
            let nodes = switch.machine.dispatcher.nodes();
            for row in nodes.rows() {
                let elsewhere = nodes.peer_requests(row.id);
                if row.load + elsewhere > 0 {
                    let name = &row.name;
                    return Some(format!(
                        "switch {at} counts {} own requests and {elsewhere} of others at {name}, but none are in flight",
                        row.load
                    ));
                }
            }
        }
        None
    }

    /// Returns a switch that counts work of prompts without a cause, that expects a block where it was never placed, or that has
    /// not read the credits of another.
    fn find_chain_mismatch(&self) -> Option<String> {
        let blocks = prompt(0, 1);
        for (at, switch) in self.nodes.iter().enumerate() {
            let SwitchProcess { dispatcher, chains, switches, .. } = &switch.machine;
            if !switches.has_credits() && self.nodes.len() > 1 {
                return Some(format!("switch {at} has not read the credits of another"));
            }
            for candidate in chains.candidates(dispatcher.nodes(), &ChainRequest::new(&blocks)) {
                let name = dispatcher.nodes().name(candidate.node).to_string();
                if candidate.work != NodeWork::NONE {
                    return Some(format!("switch {at} counts {:?} at {name}", candidate.work));
                }
                let runs = chains.runs(candidate.node);
                let mut ids = runs.iter().flat_map(|run| &run.blocks).map(|block| block.id);
                if let Some(id) = ids.find(|id| !self.world.placed.contains(&(name.clone(), *id))) {
                    return Some(format!("switch {at} expects block {id} at {name}, where it never was"));
                }
            }
        }
        None
    }

    /// Returns two switches with different server sets for a target.
    fn find_set_mismatch(&self) -> Option<String> {
        let all: Vec<_> = self.nodes.iter().map(|switch| switch.machine.replica_sets()).collect();
        let first = all.first()?;
        for (at, sets) in all.iter().enumerate() {
            let differs = |target: &&TargetId| sets.get(target) != first.get(target);
            if let Some(target) = sets.keys().chain(first.keys()).find(differs) {
                return Some(format!(
                    "switch {at} has {target} at {:?}, but switch 0 at {:?}",
                    sets.get(target),
                    first.get(target)
                ));
            }
        }
        None
    }
}
