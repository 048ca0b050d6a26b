//! The switches before the engines: each places prompts itself, and tells the others what it has placed.
//!
//! The switches use their protocol ([`larder_core::switches`]). Messages arrive at once, but are sent once per period, so a switch
//! knows the others as they were half a period ago on average. Requests come to the switches at random.

use std::sync::Arc;

use larder_core::cache::Block;
use larder_core::chain::{ChainDecision, ChainRequest, ChainSettings, SharedChains, Work};
use larder_core::nodes::GroupId;
use larder_core::switches::{Switches, SwitchesOutput, SwitchesSettings};
use larder_core::{Dispatcher, NodeSpec, RouteId, Settings, Time};

use super::PromptCluster;
use crate::SimError;

/// A switch.
struct Switch {
    name: Arc<str>,
    dispatcher: Dispatcher,
    chains: Arc<SharedChains>,
    /// `None` if it knows no other switch.
    machine: Option<Switches>,
}

/// The switches of a cluster.
pub(super) struct SwitchRow {
    switches: Vec<Switch>,
    /// The time of the next messages.
    next_tick: Time,
}

impl SwitchRow {
    pub(super) fn new(settings: &ChainSettings, cluster: &PromptCluster) -> Result<Self, SimError> {
        let specs: Vec<NodeSpec> =
            (0..cluster.nodes).map(|node| NodeSpec::named(format!("n{node}"))).collect();
        let create = |at| -> Result<Switch, SimError> {
            let settings_of_all = Settings { nodes_max: cluster.nodes, shards: 1, ..Settings::default() };
            let dispatcher = Dispatcher::new(settings_of_all, &specs)?;
            let chains = Arc::new(SharedChains::new(settings, cluster.engine.kv_tokens, GroupId::ALL)?);
            let name: Arc<str> = Arc::from(format!("s{at}"));
            let machine = (cluster.switches > 1 && !cluster.isolated).then(|| {
                let routes = vec![(RouteId::DEFAULT, "default".to_owned())];
                let (name, how) = (name.clone(), SwitchesSettings::default());
                let mut machine = Switches::new(Time::ZERO, (name, 1), how, routes, &dispatcher)?;
                machine.share_chains(RouteId::DEFAULT, chains.clone());
                Ok::<_, SimError>(machine)
            });
            let machine = machine.transpose()?;
            Ok(Switch { name, dispatcher, chains, machine })
        };
        let switches = (0..cluster.switches).map(create).collect::<Result<_, _>>()?;
        let mut row = Self { switches, next_tick: Time::ZERO };
        row.meet();
        Ok(row)
    }

    /// Connects all switches with each other.
    fn meet(&mut self) {
        let names: Vec<Arc<str>> = self.switches.iter().map(|switch| switch.name.clone()).collect();
        for joins in [true, false] {
            for at in 0..self.switches.len() {
                let Switch { name: own, dispatcher, machine, .. } = &mut self.switches[at];
                let Some(machine) = machine else { continue };
                let mut out = SwitchesOutput::default();
                for name in names.iter().filter(|name| *name != own) {
                    if joins {
                        machine.add_switch(Time::ZERO, name, dispatcher, &mut out);
                    } else {
                        machine.link_up(name, Time::ZERO, dispatcher, &mut out);
                    }
                }
                self.deliver(Time::ZERO, at, out);
            }
        }
    }

    /// Lets the switches exchange messages until `now`.
    pub(super) fn advance(&mut self, now: Time) {
        let period = SwitchesSettings::default().period;
        while self.switches.len() > 1 && self.next_tick <= now {
            let time = self.next_tick;
            for at in 0..self.switches.len() {
                let Switch { dispatcher, machine, .. } = &mut self.switches[at];
                let Some(machine) = machine else { return };
                let mut out = SwitchesOutput::default();
                machine.tick(time, dispatcher, &mut out);
                self.deliver(time, at, out);
            }
            self.next_tick += period;
        }
    }

    /// Delivers the messages of a switch, and those that answer them.
    fn deliver(&mut self, now: Time, from: usize, out: SwitchesOutput) {
        let mut waiting = vec![(from, out)];
        while let Some((from, out)) = waiting.pop() {
            let sender = self.switches[from].name.clone();
            for message in out.messages {
                for (at, Switch { name, dispatcher, machine, .. }) in self.switches.iter_mut().enumerate() {
                    let Some(machine) = machine.as_mut().filter(|_| at != from) else { continue };
                    if message.to.as_ref().is_some_and(|to| to != name) {
                        continue;
                    }
                    let mut answer = SwitchesOutput::default();
                    let received = machine.receive(now, &sender, &message.message, dispatcher, &mut answer);
                    debug_assert!(received.is_ok(), "a switch understands the others: {received:?}");
                    if !answer.messages.is_empty() {
                        waiting.push((at, answer));
                    }
                }
            }
        }
    }

    /// Returns the switch to which a request comes.
    fn of(&self, number: usize) -> &Switch {
        // The high bits of a product with the golden ratio are spread well.
        let hash = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
        &self.switches[hash as usize % self.switches.len()]
    }

    pub(super) fn arrive(&self, number: usize, blocks: &[Block]) -> Option<ChainDecision> {
        let Switch { dispatcher, chains, .. } = self.of(number);
        let decision = chains.arrive(dispatcher.nodes(), &ChainRequest::new(blocks));
        decision.inspect(|decision| chains.announce(blocks, &decision.work))
    }

    pub(super) fn first_token(&self, number: usize, work: &mut Work) {
        self.of(number).chains.first_token(work);
    }

    pub(super) fn finish(&self, number: usize, blocks: &[Block], work: Work) {
        self.of(number).chains.finish(blocks, work);
    }
}
