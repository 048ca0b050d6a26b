//! The front-end of the cluster: one dispatcher, or a group of switches behind a balancer.
//!
//! Switches run the live protocol ([`larder_core::switches`]). The balancer distributes requests by hash, as
//! a balancer that hashes connections does. A message between two switches takes [`SwitchGroup::delay`] and
//! is never lost, because the links are TCP.

use std::collections::VecDeque;
use std::sync::Arc;

use larder_core::dispatch::{CacheEvent, DequeuedRequest, Dispatcher, Settings};
use larder_core::nodes::NodeSpec;
use larder_core::switches::{OutgoingMessage, Switches, SwitchesOutput};
use larder_core::{NodeId, RouteId, TargetId, Time};

use super::Engine;
use super::timed_events::TimedEvent;
use crate::SimError;
use crate::cost::CostModel;
use crate::scenario::{Scenario, SwitchGroup};

/// The dispatchers, and the network between them if there are several.
pub(super) struct FrontEnd {
    pub(super) dispatchers: Vec<Dispatcher>,
    network: Option<SwitchNetwork>,
}

/// A group of switches with the messages between them.
struct SwitchNetwork {
    group: SwitchGroup,
    machines: Vec<Switches>,
    names: Vec<Arc<str>>,
    /// Messages in flight, in the order of their arrival: sender, receiver and content.
    in_flight: VecDeque<(u16, u16, Arc<[u8]>)>,
}

impl FrontEnd {
    pub(super) fn new(scenario: &Scenario, specs: &[NodeSpec]) -> Result<Self, SimError> {
        let count = scenario.switches.map_or(1, |group| group.count);
        let build = |at: u16| -> Result<Dispatcher, SimError> {
            // The simulation is single-threaded: one shard suffices, and keeps the whole map in order of use.
            let nodes_max = scenario.nodes.len() as u16;
            let seed = scenario.settings.seed.wrapping_add(u64::from(at) << 32);
            let settings = Settings { nodes_max, shards: 1, seed, ..scenario.settings.clone() };
            Ok(Dispatcher::with_routes(settings, scenario.routes.clone(), specs)?)
        };
        let dispatchers = (0..count).map(build).collect::<Result<Vec<_>, _>>()?;
        let network = scenario.switches.map(|group| SwitchNetwork::new(group, &dispatchers)).transpose()?;
        Ok(Self { dispatchers, network })
    }

    /// Returns the first dispatcher, for state that all dispatchers share.
    pub(super) fn first(&self) -> &Dispatcher {
        &self.dispatchers[0]
    }

    /// Reports a change of a node's memory to every dispatcher.
    pub(super) fn report_cache_event(&self, now: Time, node: NodeId, target: TargetId, event: CacheEvent) {
        for dispatcher in &self.dispatchers {
            dispatcher.cache_event(now, node, target, event);
        }
    }

    /// Returns the admission limit S of the whole front-end.
    pub(super) fn limit(&self) -> u32 {
        self.first().admission_limit()
    }

    /// Returns the switch that receives the request with this number.
    pub(super) fn pick_switch(&self, number: u64) -> u16 {
        let lot = TargetId::of(&number.to_le_bytes()).0;
        (lot % self.dispatchers.len() as u64) as u16
    }
}

impl SwitchNetwork {
    fn new(group: SwitchGroup, dispatchers: &[Dispatcher]) -> Result<Self, SimError> {
        let names: Vec<Arc<str>> = (0..group.count).map(|at| Arc::from(format!("switch{at}"))).collect();
        let machine = |(name, dispatcher): (&Arc<str>, &Dispatcher)| {
            let routes =
                (0..dispatcher.routes() as u16).map(|route| (RouteId(route), format!("route{route}")));
            Switches::new(Time::ZERO, (name.clone(), 1), group.settings, routes.collect(), dispatcher)
        };
        let machines = names.iter().zip(dispatchers).map(machine).collect::<Result<_, _>>()?;
        Ok(Self { group, machines, names, in_flight: VecDeque::new() })
    }
}

impl<M: CostModel> Engine<'_, M> {
    /// Connects every switch with its peers and schedules its periodic updates.
    pub(super) fn connect_switches(&mut self) {
        let Some(network) = &self.front.network else { return };
        let (count, period) = (network.group.count, network.group.settings.period);
        for at in 0..count {
            let mut out = SwitchesOutput::default();
            let Some(network) = &mut self.front.network else { return };
            let (machine, dispatcher) =
                (&mut network.machines[usize::from(at)], &self.front.dispatchers[usize::from(at)]);
            for (_, name) in network.names.iter().enumerate().filter(|(other, _)| *other != usize::from(at)) {
                machine.add_switch(self.now, name, dispatcher, &mut out);
                machine.link_up(name, self.now, dispatcher, &mut out);
            }
            self.send_messages(at, out);
            if count > 1 {
                self.schedule(self.now + period * u32::from(at) / u32::from(count), TimedEvent::Tick(at));
            }
        }
    }

    /// Sends the periodic update of a switch to its peers.
    pub(super) fn tick_switch(&mut self, at: u16) {
        let Some(network) = &mut self.front.network else { return };
        let (period, mut out) = (network.group.settings.period, SwitchesOutput::default());
        let dispatcher = &self.front.dispatchers[usize::from(at)];
        network.machines[usize::from(at)].tick(self.now, dispatcher, &mut out);
        self.send_messages(at, out);
        if self.is_active() {
            self.schedule(self.now + period, TimedEvent::Tick(at));
        }
    }

    /// Delivers the next message between switches.
    pub(super) fn deliver_message(&mut self) {
        let Some(network) = &mut self.front.network else { return };
        let Some((from, to, message)) = network.in_flight.pop_front() else { return };
        let (name, mut out) = (network.names[usize::from(from)].clone(), SwitchesOutput::default());
        let dispatcher = &self.front.dispatchers[usize::from(to)];
        let result =
            network.machines[usize::from(to)].receive(self.now, &name, &message, dispatcher, &mut out);
        debug_assert!(result.is_ok(), "what the machine says it understands: {result:?}");
        self.send_messages(to, out);
    }

    fn send_messages(&mut self, from: u16, out: SwitchesOutput) {
        let Some(network) = &mut self.front.network else { return };
        let (delay, mut sent) = (network.group.delay, 0);
        for OutgoingMessage { to, message } in out.messages {
            let message: Arc<[u8]> = message.into();
            for (at, name) in (0..).zip(&network.names) {
                if at != from && to.as_ref().is_none_or(|to| to == name) {
                    network.in_flight.push_back((from, at, message.clone()));
                    sent += 1;
                }
            }
        }
        for _ in 0..sent {
            self.schedule(self.now + delay, TimedEvent::Deliver);
        }
        let mut started = out.started;
        self.collect_started(from, &mut started);
    }

    /// Collects the requests that left the queue of a switch.
    pub(super) fn collect_started(&mut self, switch: u16, started: &mut Vec<DequeuedRequest>) {
        for started in started.drain(..) {
            let Some(pending) = self.waiting.remove(&(switch, started.ticket)) else { continue };
            match started.outcome {
                Ok(decision) => {
                    self.tally.note_reason(decision.reason, pending.measured);
                    self.ready.push_back((pending, decision.node));
                }
                Err(_) => self.refuse(pending),
            }
        }
    }
}
