//! The dispatcher of a node. It works where somebody asks it.

use super::message::{Batch, CardMessage, NameKey, Seat};
use crate::dispatch::{Admission, Affinity, Arrival, Dispatcher, Request, Settings, SettingsError};
use crate::id::{NodeId, TargetId};
use crate::nodes::NodeSpec;
use crate::time::Time;
use std::collections::BTreeMap;

/// A distributor's account.
#[derive(Debug)]
struct Client {
    epoch: u64,
    account: u64,
    /// Its last batch, and what it was answered.
    number: u64,
    seats: Vec<Seat>,
    /// The last lot of ends that was counted.
    lot: u64,
}

/// The dispatcher.
#[derive(Debug)]
pub(super) struct Desk {
    dispatcher: Dispatcher,
    /// Nodes that have come so far.
    lives: u64,
    /// The nodes that are there: by name, by the dispatcher's slot, and the slot by life.
    named: BTreeMap<NameKey, Seat>,
    seats: BTreeMap<NodeId, Seat>,
    slots: BTreeMap<u64, NodeId>,
    /// The dispatcher's slot of who asks: the request's origin, which `ward` and `part` look at.
    origins: BTreeMap<NodeId, NodeId>,
    /// Nodes beyond the most that the dispatcher takes: nothing is placed at them until another goes.
    unseated: BTreeMap<NameKey, (NodeId, Box<str>)>,
    clients: BTreeMap<NodeId, Client>,
    /// Requests placed and not ended: by who asked, and in which node's life. The dispatcher's load of a node is their sum.
    placed: BTreeMap<NodeId, BTreeMap<u64, u32>>,
}

impl Desk {
    pub(super) fn new(settings: &Settings) -> Result<Self, SettingsError> {
        // To a dispatcher that takes over, all nodes are new: there is none to be spared.
        let settings = Settings { admission: Admission::Unlimited, join_warm_targets: 0, ..settings.clone() };
        Ok(Self {
            dispatcher: Dispatcher::new(settings, &[])?,
            lives: 0,
            named: BTreeMap::new(),
            seats: BTreeMap::new(),
            slots: BTreeMap::new(),
            origins: BTreeMap::new(),
            unseated: BTreeMap::new(),
            clients: BTreeMap::new(),
            placed: BTreeMap::new(),
        })
    }

    /// Answers a batch; one that is older than another, or of a former account, not at all.
    pub(super) fn hear(&mut self, now: Time, from: NodeId, batch: Batch) -> Option<CardMessage> {
        let Batch { epoch, account, number, heard, lot, ends, asks } = batch;
        let known = self.clients.get(&from).map(|client| (client.epoch, client.account, client.number));
        match known {
            Some((e, a, _)) if (epoch, account) < (e, a) => return None,
            Some((e, a, last)) if (epoch, account) == (e, a) => {
                if number < last {
                    return None;
                }
                if number == last {
                    let seats = self.clients.get(&from)?.seats.clone();
                    return Some(CardMessage::Answers { number, seats });
                }
            }
            _ if number != account => return Some(CardMessage::Unknown { number }),
            _ => {
                self.forget(now, from);
                let client = Client { epoch, account, number: 0, seats: Vec::new(), lot: 0 };
                self.clients.insert(from, client);
            }
        }
        let client = self.clients.get_mut(&from)?;
        let unused = if heard < client.number { core::mem::take(&mut client.seats) } else { Vec::new() };
        let is_news = lot > client.lot;
        client.lot = client.lot.max(lot);
        unused.into_iter().for_each(|seat| self.end(now, from, seat.life, 1));
        if is_news {
            ends.into_iter().for_each(|ends| self.end(now, from, ends.life, ends.count));
        }
        let seats: Vec<Seat> = asks.into_iter().map(|target| self.place(now, from, target)).collect();
        let client = self.clients.get_mut(&from)?;
        client.number = number;
        client.seats.clone_from(&seats);
        Some(CardMessage::Answers { number, seats })
    }

    /// A node is there. Beyond the most that the dispatcher takes it is placed at by nobody and serves its own, until
    /// another goes.
    pub(super) fn join(&mut self, now: Time, node: NodeId, name: &str) {
        let key = NameKey::of(name);
        match self.dispatcher.join(now, NodeSpec::named(name), &mut Vec::new()) {
            Ok(slot) => {
                self.lives += 1;
                let seat = Seat { node: key, life: self.lives };
                self.named.insert(key, seat);
                self.seats.insert(slot, seat);
                self.slots.insert(seat.life, slot);
                self.origins.insert(node, slot);
            }
            Err(_) => drop(self.unseated.insert(key, (node, name.into()))),
        }
    }

    /// A node is gone, and with it what is counted for it and at it. O(nodes log nodes).
    pub(super) fn leave(&mut self, now: Time, node: NodeId, name: NameKey) {
        self.forget(now, node);
        self.origins.remove(&node);
        self.unseated.remove(&name);
        let Some(life) = self.named.remove(&name).map(|seat| seat.life) else { return };
        let Some(slot) = self.slots.remove(&life) else { return };
        self.seats.remove(&slot);
        self.dispatcher.fail(now, slot, &mut Vec::new());
        // A slot with load is given to nobody else.
        let ended: u32 = self.placed.values_mut().filter_map(|at| at.remove(&life)).sum();
        self.placed.retain(|_, at| !at.is_empty());
        self.finish(now, slot, ended);
        self.dispatcher.leave(now, slot, &mut Vec::new());
        if let Some((_, (node, name))) = self.unseated.pop_first() {
            self.join(now, node, &name);
        }
    }

    pub(super) fn place(&mut self, now: Time, asker: NodeId, target: TargetId) -> Seat {
        let affinity = self.origins.get(&asker).map_or(Affinity::None, |node| Affinity::Origin(*node));
        let request = Request::new(target).with_affinity(affinity);
        let Arrival::Start(decision) = self.dispatcher.arrive(now, request) else {
            return Seat::ASKER;
        };
        let Some(seat) = self.seats.get(&decision.node).copied() else {
            self.finish(now, decision.node, 1);
            return Seat::ASKER;
        };
        *self.placed.entry(asker).or_default().entry(seat.life).or_default() += 1;
        seat
    }

    /// Requests have ended; never more than were placed, and none of a former life of their node.
    pub(super) fn end(&mut self, now: Time, asker: NodeId, life: u64, count: u32) {
        let Some(at) = self.placed.get_mut(&asker) else { return };
        let Some(placed) = at.get_mut(&life) else { return };
        let count = count.min(*placed);
        *placed -= count;
        if *placed == 0 {
            at.remove(&life);
        }
        if at.is_empty() {
            self.placed.remove(&asker);
        }
        if let Some(slot) = self.slots.get(&life).copied() {
            self.finish(now, slot, count);
        }
    }

    /// What the dispatcher counts at a node. O(log nodes).
    pub(super) fn load(&self, name: NameKey) -> u32 {
        let slot = self.named.get(&name).and_then(|seat| self.slots.get(&seat.life));
        slot.map_or(0, |slot| self.dispatcher.nodes().load(*slot))
    }

    /// Nodes that the dispatcher has no place for.
    pub(super) fn unseated(&self) -> usize {
        self.unseated.len()
    }

    pub(super) fn targets_known(&self) -> usize {
        self.dispatcher.targets_known()
    }

    /// The lives of the nodes that have a place.
    pub(super) fn lives(&self) -> impl Iterator<Item = u64> + '_ {
        self.slots.keys().copied()
    }

    /// What is counted for a distributor in one life of a node.
    pub(super) fn counted(&self, asker: NodeId, life: u64) -> u32 {
        self.placed.get(&asker).and_then(|at| at.get(&life)).copied().unwrap_or(0)
    }

    /// Of a distributor: its epoch, its account, and the last batch that was answered.
    pub(super) fn heard(&self, asker: NodeId) -> Option<(u64, u64, u64)> {
        self.clients.get(&asker).map(|client| (client.epoch, client.account, client.number))
    }

    fn finish(&self, now: Time, slot: NodeId, count: u32) {
        // Admission is unlimited: none waits for another to end.
        (0..count).for_each(|_| self.dispatcher.finish(now, slot, &mut Vec::new()));
    }

    /// Ends all that is counted for a distributor.
    fn forget(&mut self, now: Time, node: NodeId) {
        self.clients.remove(&node);
        for (life, count) in self.placed.remove(&node).unwrap_or_default() {
            if let Some(slot) = self.slots.get(&life).copied() {
                self.finish(now, slot, count);
            }
        }
    }
}

#[cfg(test)]
impl Desk {
    /// The dispatcher counts what was placed and has not ended, at each node and in all.
    pub(super) fn assert_exact(&self) {
        let nodes = self.dispatcher.nodes();
        let mut loads = vec![0; nodes.slots()];
        for (life, count) in self.placed.values().flatten() {
            loads[self.slots[life].index()] += count;
        }
        let counted: Vec<u32> = (0..nodes.slots()).map(|slot| nodes.load(NodeId(slot as u16))).collect();
        assert_eq!(counted, loads);
        assert_eq!(self.dispatcher.outstanding(), loads.iter().sum::<u32>());
    }
}
