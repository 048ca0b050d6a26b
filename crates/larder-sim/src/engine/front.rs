//! The front-end of the cluster: one dispatcher, or a group of switches behind a balancer.
//!
//! Switches run the live protocol ([`larder_core::switches`]). The balancer distributes requests by hash, as
//! a balancer that hashes connections does. A message between two switches takes [`SwitchGroup::delay`] and
//! is never lost, because the links are TCP.

use std::collections::VecDeque;
use std::sync::Arc;

use larder_core::dispatch::{CacheEvent, Dispatcher, Settings, Started};
use larder_core::nodes::NodeSpec;
use larder_core::switches::{Out, Outgoing, Switches};
use larder_core::{NodeId, RouteId, TargetId, Time};

use super::Engine;
use super::alarms::Alarm;
use crate::SimError;
use crate::cost::CostModel;
use crate::scenario::{Scenario, SideBySide};

/// The dispatchers, and the network between them if there are several.
pub(super) struct Front {
    pub(super) dispatchers: Vec<Dispatcher>,
    several: Option<Several>,
}

/// A group of switches with the messages between them.
struct Several {
    side: SideBySide,
    machines: Vec<Switches>,
    names: Vec<Arc<str>>,
    /// Messages in flight, in the order of their arrival: sender, receiver and content.
    under_way: VecDeque<(u16, u16, Arc<[u8]>)>,
}

impl Front {
    pub(super) fn new(scenario: &Scenario, specs: &[NodeSpec]) -> Result<Self, SimError> {
        let count = scenario.switches.map_or(1, |side| side.count);
        let build = |at: u16| -> Result<Dispatcher, SimError> {
            // The simulation is single-threaded: one shard suffices, and keeps the whole map in order of use.
            let nodes_max = scenario.nodes.len() as u16;
            let seed = scenario.settings.seed.wrapping_add(u64::from(at) << 32);
            let settings = Settings { nodes_max, shards: 1, seed, ..scenario.settings.clone() };
            Ok(Dispatcher::with_routes(settings, scenario.routes.clone(), specs)?)
        };
        let dispatchers = (0..count).map(build).collect::<Result<Vec<_>, _>>()?;
        let several = scenario.switches.map(|side| Several::new(side, &dispatchers)).transpose()?;
        Ok(Self { dispatchers, several })
    }

    /// Returns the first dispatcher, for state that all dispatchers share.
    pub(super) fn first(&self) -> &Dispatcher {
        &self.dispatchers[0]
    }

    /// Reports a change of a node's memory to every dispatcher.
    pub(super) fn tell_kept(&self, now: Time, node: NodeId, target: TargetId, event: CacheEvent) {
        for dispatcher in &self.dispatchers {
            dispatcher.cache_event(now, node, target, event);
        }
    }

    /// Returns the admission limit S of the whole front-end.
    pub(super) fn limit(&self) -> u32 {
        self.first().admission_limit()
    }

    /// Returns the switch that receives the request with this number.
    pub(super) fn deal(&self, number: u64) -> u16 {
        let lot = TargetId::of(&number.to_le_bytes()).0;
        (lot % self.dispatchers.len() as u64) as u16
    }
}

impl Several {
    fn new(side: SideBySide, dispatchers: &[Dispatcher]) -> Result<Self, SimError> {
        let names: Vec<Arc<str>> = (0..side.count).map(|at| Arc::from(format!("switch{at}"))).collect();
        let machine = |dispatcher: &Dispatcher| {
            let routes =
                (0..dispatcher.routes() as u16).map(|route| (RouteId(route), format!("route{route}")));
            Switches::new(Time::ZERO, 1, side.settings, routes.collect(), dispatcher)
        };
        let machines = dispatchers.iter().map(machine).collect::<Result<_, _>>()?;
        Ok(Self { side, machines, names, under_way: VecDeque::new() })
    }
}

impl<M: CostModel> Engine<'_, M> {
    /// Connects every switch with its peers and schedules its periodic updates.
    pub(super) fn meet(&mut self) {
        let Some(several) = &self.front.several else { return };
        let (count, period) = (several.side.count, several.side.settings.period);
        for at in 0..count {
            let mut out = Out::default();
            let Some(several) = &mut self.front.several else { return };
            let (machine, dispatcher) =
                (&mut several.machines[usize::from(at)], &self.front.dispatchers[usize::from(at)]);
            for (_, name) in several.names.iter().enumerate().filter(|(other, _)| *other != usize::from(at)) {
                machine.joined(self.now, name, dispatcher, &mut out);
                machine.up(name, self.now, dispatcher, &mut out);
            }
            self.say(at, out);
            if count > 1 {
                self.set_alarm(self.now + period * u32::from(at) / u32::from(count), Alarm::Tick(at));
            }
        }
    }

    /// Sends the periodic update of a switch to its peers.
    pub(super) fn tick(&mut self, at: u16) {
        let Some(several) = &mut self.front.several else { return };
        let (period, mut out) = (several.side.settings.period, Out::default());
        let dispatcher = &self.front.dispatchers[usize::from(at)];
        several.machines[usize::from(at)].tick(self.now, dispatcher, &mut out);
        self.say(at, out);
        if self.goes_on() {
            self.set_alarm(self.now + period, Alarm::Tick(at));
        }
    }

    /// Delivers the next message between switches.
    pub(super) fn hear(&mut self) {
        let Some(several) = &mut self.front.several else { return };
        let Some((from, to, message)) = several.under_way.pop_front() else { return };
        let (name, mut out) = (several.names[usize::from(from)].clone(), Out::default());
        let dispatcher = &self.front.dispatchers[usize::from(to)];
        let heard =
            several.machines[usize::from(to)].message(self.now, &name, &message, dispatcher, &mut out);
        debug_assert!(heard.is_ok(), "what the machine says it understands: {heard:?}");
        self.say(to, out);
    }

    fn say(&mut self, from: u16, out: Out) {
        let Some(several) = &mut self.front.several else { return };
        let (delay, mut said) = (several.side.delay, 0);
        for Outgoing { to, message } in out.messages {
            let message: Arc<[u8]> = message.into();
            for (at, name) in (0..).zip(&several.names) {
                if at != from && to.as_ref().is_none_or(|to| to == name) {
                    several.under_way.push_back((from, at, message.clone()));
                    said += 1;
                }
            }
        }
        for _ in 0..said {
            self.set_alarm(self.now + delay, Alarm::Hear);
        }
        let mut started = out.started;
        self.started_at(from, &mut started);
    }

    /// Collects the requests that left the queue of a switch.
    pub(super) fn started_at(&mut self, switch: u16, started: &mut Vec<Started>) {
        for started in started.drain(..) {
            let Some(arrived) = self.waiting.remove(&(switch, started.ticket)) else { continue };
            match started.outcome {
                Ok(decision) => {
                    self.tally.note_reason(decision.reason, arrived.measured);
                    self.ready.push_back((arrived, decision.node));
                }
                Err(_) => self.refuse(arrived),
            }
        }
    }
}
