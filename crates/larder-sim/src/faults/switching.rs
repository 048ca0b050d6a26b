//! The world of several switches: each has a dispatcher over the same nodes, and tells the others its loads
//! and server sets ([`larder_core::switches`]).
//!
//! Only the switches are simulated. The serving nodes are numbers in their dispatchers and never fail.
//! Thresholds are so low that targets move all the time. A request ends at the switch that accepted it.

use super::chance::Chance;
use super::ground::{Ground, Happening, Id, Stage, World};
use super::outcome::Violation;
use super::protocol::{Broken, Protocol};
use core::time::Duration;
use larder_core::dispatch::{Admission, Arrival, Dispatcher, Request, Settings};
use larder_core::switches::{Out, Outgoing, Switches, SwitchesSettings};
use larder_core::{NodeId, NodeSpec, PolicyKind, RouteId, TargetId, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The period of a switch's updates: longer than live, so that more happens between them.
const PERIOD: Duration = Duration::from_millis(50);
/// The number of serving nodes.
const SERVERS: u64 = 5;

/// An event of this world.
#[derive(Debug)]
pub(super) enum Event {
    /// A node has served a request.
    Served { request: Id, epoch: u64, at: NodeId },
}

/// The process of a switch.
pub(super) struct Machine {
    dispatcher: Dispatcher,
    switches: Switches,
    /// The start time of the process, where its own clock begins.
    begun: Option<Time>,
    due: Time,
}

/// The world of several switches.
#[derive(Debug)]
pub(super) struct Switching {
    policy: PolicyKind,
    targets: u64,
    names: Vec<Arc<str>>,
}

impl Switching {
    pub(super) fn draw(chance: &mut Chance, switches: usize) -> Self {
        let policies = [PolicyKind::Lard, PolicyKind::LardR, PolicyKind::LardR, PolicyKind::LardCost];
        Self {
            policy: policies[chance.below(4) as usize],
            targets: 20 + chance.below(300),
            names: (0..switches).map(|at| Arc::from(format!("s{at}"))).collect(),
        }
    }
}

impl Machine {
    /// Returns the time on the switch's own clock.
    fn own(&self, now: Time) -> Time {
        Time::from_nanos(now.since(self.begun.unwrap_or(now)).as_nanos() as u64)
    }

    /// Returns the switch's server sets, by the names of nodes.
    fn sets(&self) -> BTreeMap<TargetId, Vec<String>> {
        let name = |node: &NodeId| self.dispatcher.nodes().name(*node).to_string();
        let memory = self.dispatcher.memory(RouteId::DEFAULT);
        memory.sets().map(|set| (set.target, set.servers.iter().map(name).collect())).collect()
    }
}

impl World for Switching {
    type Machine = Machine;
    type Message = Vec<u8>;
    type Event = Event;

    fn converges_within(&self) -> Duration {
        Protocol::Switches.converges_within()
    }

    fn machine(&self, me: Id, epoch: u64) -> Machine {
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
        let switches = Switches::new(Time::ZERO, epoch, how, routes, &dispatcher);
        let switches = switches.unwrap_or_else(|error| unreachable!("the settings are fixed: {error}"));
        Machine { dispatcher, switches, begun: None, due: Time::ZERO }
    }

    /// Returns a target; some targets are requested far more often than others.
    fn target(&self, chance: &mut Chance) -> u64 {
        chance.below(self.targets).min(chance.below(self.targets))
    }

    fn place(ground: &Ground<'_, Self>, event: &Event) -> Option<Id> {
        let Event::Served { request, .. } = event;
        Some(ground.requests[*request].initial)
    }

    fn happen(ground: &mut Ground<'_, Self>, event: Event) -> Result<(), Violation> {
        let Event::Served { request, epoch, at } = event;
        ground.served(request, epoch, at)
    }

    fn asked(ground: &mut Ground<'_, Self>, request: Id) -> Result<(), Violation> {
        let (switch, target) = (ground.requests[request].initial, ground.requests[request].target);
        let (now, epoch) = (ground.now, ground.nodes[switch].epoch);
        let machine = &ground.nodes[switch].machine;
        let target = TargetId::of(&target.to_le_bytes());
        let at = match machine.dispatcher.arrive(machine.own(now), Request::new(target)) {
            Arrival::Start(decision) => decision.node,
            other => return Err(ground.violation(format!("request {request} is not placed: {other:?}"))),
        };
        ground.requests[request].stage = Stage::Here;
        let wait = ground.chance.micros(1_000, 300_000);
        ground.after(wait, Happening::Own(Event::Served { request, epoch, at }));
        Ok(())
    }

    fn forwarded(_: &mut Ground<'_, Self>, _: Id, _: Id, _: bool) -> Result<(), Violation> {
        Ok(())
    }

    fn broken(_: &mut Ground<'_, Self>, _: Id) -> Result<(), Violation> {
        Ok(())
    }

    fn takes(ground: &mut Ground<'_, Self>, by: Id, of: Id, there: bool) -> Result<(), Violation> {
        let name = ground.own.names[of].clone();
        ground.act(by, |machine, now, out| {
            let Machine { dispatcher, switches, .. } = machine;
            if there {
                switches.joined(now, &name, dispatcher, out);
                switches.afresh(&name);
                switches.up(&name, now, dispatcher, out);
            } else {
                switches.left(now, &name, dispatcher, out);
            }
        })
    }

    fn hear(ground: &mut Ground<'_, Self>, to: Id, from: Id, message: Vec<u8>) -> Result<(), Violation> {
        let name = ground.own.names[from].clone();
        let mut strange = None;
        ground.act(to, |machine, now, out| {
            let Machine { dispatcher, switches, .. } = machine;
            strange = switches.message(now, &name, &message, dispatcher, out).err();
        })?;
        match strange {
            None => Ok(()),
            Some(error) => Err(ground.violation(format!("{to} does not understand {from}: {error}"))),
        }
    }

    fn due(ground: &Ground<'_, Self>, node: Id) -> Time {
        ground.nodes[node].machine.due
    }

    fn tick(ground: &mut Ground<'_, Self>, node: Id) -> Result<(), Violation> {
        let next = ground.now + PERIOD;
        ground.act(node, |machine, now, out| {
            machine.due = next;
            machine.switches.tick(now, &machine.dispatcher, out);
        })
    }

    fn doubt(ground: &mut Ground<'_, Self>) -> Option<String> {
        ground.loads().or_else(|| ground.sets())
    }
}

impl Ground<'_, Switching> {
    fn act(&mut self, switch: Id, act: impl FnOnce(&mut Machine, Time, &mut Out)) -> Result<(), Violation> {
        let (now, mut out) = (self.now, Out::default());
        let machine = &mut self.nodes[switch].machine;
        machine.begun.get_or_insert(now);
        let own = machine.own(now);
        act(machine, own, &mut out);
        for Outgoing { to, message } in out.messages {
            // If a switch never asks, its questions are lost.
            if self.broken == Some(Broken::NeverAsks) && Switches::is_question(&message) {
                continue;
            }
            match to.and_then(|to| self.own.names.iter().position(|name| *name == to)) {
                Some(to) => self.post(switch, to, &message),
                None => self.post_all(switch, &message),
            }
        }
        self.plan_tick(switch);
        Ok(())
    }

    fn served(&mut self, request: Id, epoch: u64, at: NodeId) -> Result<(), Violation> {
        let switch = self.requests[request].initial;
        if !self.lives(switch, epoch) {
            return Ok(());
        }
        self.ended(request)?;
        match self.broken {
            Some(Broken::ForgetsEnds) => return Ok(()),
            Some(Broken::EndsTwice) => self.ended(request)?,
            _ => {}
        }
        let machine = &self.nodes[switch].machine;
        machine.dispatcher.finish(machine.own(self.now), at, &mut Vec::new());
        Ok(())
    }

    // -- the conditions

    /// Returns a switch that counts load without a cause, its own or that of other switches.
    fn loads(&self) -> Option<String> {
        for (at, switch) in self.nodes.iter().enumerate() {
            let nodes = switch.machine.dispatcher.nodes();
            for row in nodes.rows() {
                let elsewhere = nodes.elsewhere(row.id);
                if row.load + elsewhere > 0 {
                    let name = &row.name;
                    return Some(format!(
                        "switch {at} counts {} of its own and {elsewhere} of others at {name}, and none are under way",
                        row.load
                    ));
                }
            }
        }
        None
    }

    /// Returns two switches with different server sets for a target.
    fn sets(&self) -> Option<String> {
        let all: Vec<_> = self.nodes.iter().map(|switch| switch.machine.sets()).collect();
        let first = all.first()?;
        for (at, sets) in all.iter().enumerate() {
            let differs = |target: &&TargetId| sets.get(target) != first.get(target);
            if let Some(target) = sets.keys().chain(first.keys()).find(differs) {
                return Some(format!(
                    "switch {at} has {target} at {:?}, switch 0 at {:?}",
                    sets.get(target),
                    first.get(target)
                ));
            }
        }
        None
    }
}
