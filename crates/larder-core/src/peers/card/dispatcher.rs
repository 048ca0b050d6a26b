//! Dispatcher part of a node. It decides for the distributors that ask it.

use super::message::{Batch, CardMessage, NameKey, NodeInstance};
use crate::dispatch::{Admission, Arrival, Dispatcher, Request, RequestAffinity, Settings, SettingsError};
use crate::id::{NodeId, TargetId};
use crate::nodes::NodeSpec;
use crate::time::Time;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Account of a distributor.
#[derive(Debug)]
struct ClientAccount {
    epoch: u64,
    account: u64,
    /// Number of the last batch, and its answers.
    number: u64,
    instances: Vec<NodeInstance>,
    /// Number of the last applied group of ended requests.
    group: u64,
}

/// Dispatcher part of a node.
#[derive(Debug)]
pub(super) struct CardDispatcher {
    dispatcher: Dispatcher,
    /// Number of the last incarnation.
    last_incarnation: u64,
    /// Live nodes by name and by slot of the dispatcher, and the slot of each incarnation.
    by_name: BTreeMap<NameKey, NodeInstance>,
    by_slot: BTreeMap<NodeId, NodeInstance>,
    slots: BTreeMap<u64, NodeId>,
    /// Slot of each distributor in the dispatcher: the origin of its requests, which `ward` and `part` use.
    origins: BTreeMap<NodeId, NodeId>,
    /// Nodes beyond the limit of the dispatcher. They get no requests until another node leaves.
    nodes_over_limit: BTreeMap<NameKey, (NodeId, Box<str>)>,
    clients: BTreeMap<NodeId, ClientAccount>,
    /// Requests that were placed and have not ended, by distributor and incarnation. Their sum is the dispatcher's
    /// load of a node.
    placed: BTreeMap<NodeId, BTreeMap<u64, u32>>,
}

impl CardDispatcher {
    pub(super) fn new(settings: &Settings) -> Result<Self, SettingsError> {
        // To a dispatcher that takes over, all nodes are new, so none needs a warm-up.
        let settings = Settings { admission: Admission::Unlimited, join_warm_targets: 0, ..settings.clone() };
        Ok(Self {
            dispatcher: Dispatcher::new(settings, &[])?,
            last_incarnation: 0,
            by_name: BTreeMap::new(),
            by_slot: BTreeMap::new(),
            slots: BTreeMap::new(),
            origins: BTreeMap::new(),
            nodes_over_limit: BTreeMap::new(),
            clients: BTreeMap::new(),
            placed: BTreeMap::new(),
        })
    }

    /// Answers a batch. Returns `None` for an outdated batch or one of a former account.
    pub(super) fn receive(&mut self, now: Time, from: NodeId, batch: Batch) -> Option<CardMessage> {
        let Batch { epoch, account, number, acknowledged, group, ended, targets } = batch;
        let known = self.clients.get(&from).map(|client| (client.epoch, client.account, client.number));
        match known {
            Some((e, a, _)) if (epoch, account) < (e, a) => return None,
            Some((e, a, last)) if (epoch, account) == (e, a) => {
                if number < last {
                    return None;
                }
                if number == last {
                    let instances = self.clients.get(&from)?.instances.clone();
                    return Some(CardMessage::Answers { number, instances });
                }
            }
            _ if number != account => return Some(CardMessage::Unknown { number }),
            _ => {
                self.forget_distributor(now, from);
                let client = ClientAccount { epoch, account, number: 0, instances: Vec::new(), group: 0 };
                self.clients.insert(from, client);
            }
        }
        let client = self.clients.get_mut(&from)?;
        let unused =
            if acknowledged < client.number { core::mem::take(&mut client.instances) } else { Vec::new() };
        let is_new_group = group > client.group;
        client.group = client.group.max(group);
        unused.into_iter().for_each(|instance| self.end_requests(now, from, instance.incarnation, 1));
        if is_new_group {
            ended.into_iter().for_each(|ended| self.end_requests(now, from, ended.incarnation, ended.count));
        }
        let instances: Vec<NodeInstance> =
            targets.into_iter().map(|target| self.place(now, from, target)).collect();
        let client = self.clients.get_mut(&from)?;
        client.number = number;
        client.instances.clone_from(&instances);
        Some(CardMessage::Answers { number, instances })
    }

    /// Adds a node. Beyond the limit of the dispatcher the node gets no requests and serves its own, until another
    /// node leaves.
    pub(super) fn add_node(&mut self, now: Time, node: NodeId, name: &str) {
        let key = NameKey::of(name);
        match self.dispatcher.join(now, NodeSpec::named(name), &mut Vec::new()) {
            Ok(slot) => {
                self.last_incarnation += 1;
                let instance = NodeInstance { node: key, incarnation: self.last_incarnation };
                self.by_name.insert(key, instance);
                self.by_slot.insert(slot, instance);
                self.slots.insert(instance.incarnation, slot);
                self.origins.insert(node, slot);
            }
            Err(_) => drop(self.nodes_over_limit.insert(key, (node, name.into()))),
        }
    }

    /// Removes a node, and ends the requests at it and those of its clients. O(nodes log nodes).
    pub(super) fn remove_node(&mut self, now: Time, node: NodeId, name: NameKey) {
        self.forget_distributor(now, node);
        self.origins.remove(&node);
        self.nodes_over_limit.remove(&name);
        let Some(incarnation) = self.by_name.remove(&name).map(|instance| instance.incarnation) else {
            return;
        };
        let Some(slot) = self.slots.remove(&incarnation) else { return };
        self.by_slot.remove(&slot);
        self.dispatcher.fail(now, slot, &mut Vec::new());
        // The dispatcher does not reuse a slot with load.
        let ended: u32 = self.placed.values_mut().filter_map(|at| at.remove(&incarnation)).sum();
        self.placed.retain(|_, at| !at.is_empty());
        self.finish_requests(now, slot, ended);
        self.dispatcher.leave(now, slot, &mut Vec::new());
        if let Some((_, (node, name))) = self.nodes_over_limit.pop_first() {
            self.add_node(now, node, &name);
        }
    }

    pub(super) fn place(&mut self, now: Time, distributor: NodeId, target: TargetId) -> NodeInstance {
        let affinity = self
            .origins
            .get(&distributor)
            .map_or(RequestAffinity::None, |node| RequestAffinity::Origin(*node));
        let request = Request::new(target).with_affinity(affinity);
        let Arrival::Start(decision) = self.dispatcher.arrive(now, request) else {
            return NodeInstance::REQUESTER;
        };
        let Some(instance) = self.by_slot.get(&decision.node).copied() else {
            self.finish_requests(now, decision.node, 1);
            return NodeInstance::REQUESTER;
        };
        *self.placed.entry(distributor).or_default().entry(instance.incarnation).or_default() += 1;
        instance
    }

    /// Ends requests: at most as many as were placed, and none of an earlier incarnation.
    pub(super) fn end_requests(&mut self, now: Time, distributor: NodeId, incarnation: u64, count: u32) {
        let Some(at) = self.placed.get_mut(&distributor) else { return };
        let Some(placed) = at.get_mut(&incarnation) else { return };
        let count = count.min(*placed);
        *placed -= count;
        if *placed == 0 {
            at.remove(&incarnation);
        }
        if at.is_empty() {
            self.placed.remove(&distributor);
        }
        if let Some(slot) = self.slots.get(&incarnation).copied() {
            self.finish_requests(now, slot, count);
        }
    }

    /// Returns the dispatcher's load of a node. O(log nodes).
    pub(super) fn load(&self, name: NameKey) -> u32 {
        let slot = self.by_name.get(&name).and_then(|instance| self.slots.get(&instance.incarnation));
        slot.map_or(0, |slot| self.dispatcher.nodes().load(*slot))
    }

    /// Returns the number of nodes beyond the limit of the dispatcher.
    pub(super) fn nodes_over_limit(&self) -> usize {
        self.nodes_over_limit.len()
    }

    pub(super) fn targets_known(&self) -> usize {
        self.dispatcher.targets_known()
    }

    /// Returns the incarnations of the nodes within the limit.
    pub(super) fn incarnations(&self) -> impl Iterator<Item = u64> + '_ {
        self.slots.keys().copied()
    }

    /// Returns the requests that are counted for a distributor and one incarnation.
    pub(super) fn counted_requests(&self, distributor: NodeId, incarnation: u64) -> u32 {
        self.placed.get(&distributor).and_then(|at| at.get(&incarnation)).copied().unwrap_or(0)
    }

    /// Returns the epoch, the account and the last answered batch of a distributor.
    pub(super) fn last_answered(&self, distributor: NodeId) -> Option<(u64, u64, u64)> {
        self.clients.get(&distributor).map(|client| (client.epoch, client.account, client.number))
    }

    fn finish_requests(&self, now: Time, slot: NodeId, count: u32) {
        // Admission is unlimited, so no request waits for the end of another.
        (0..count).for_each(|_| self.dispatcher.finish(now, slot, &mut Vec::new()));
    }

    /// Ends all requests of a distributor.
    fn forget_distributor(&mut self, now: Time, node: NodeId) {
        self.clients.remove(&node);
        for (incarnation, count) in self.placed.remove(&node).unwrap_or_default() {
            if let Some(slot) = self.slots.get(&incarnation).copied() {
                self.finish_requests(now, slot, count);
            }
        }
    }
}

#[cfg(test)]
impl CardDispatcher {
    /// Asserts that the dispatcher's loads equal the placed requests, for each node and in total.
    pub(super) fn assert_loads_match(&self) {
        let nodes = self.dispatcher.nodes();
        let mut loads = vec![0; nodes.slots()];
        for (incarnation, count) in self.placed.values().flatten() {
            loads[self.slots[incarnation].index()] += count;
        }
        let counted: Vec<u32> = (0..nodes.slots()).map(|slot| nodes.load(NodeId(slot as u16))).collect();
        assert_eq!(counted, loads);
        assert_eq!(self.dispatcher.outstanding(), loads.iter().sum::<u32>());
    }
}
