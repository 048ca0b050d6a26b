//! What is known of another switch.

use super::ends::{End, Heard};
use super::message::Head;
use crate::dispatch::Dispatcher;
use crate::id::{NodeId, RouteId};
use crate::nodes::{Demand, GroupId};
use crate::time::Time;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// Another switch.
#[derive(Debug)]
pub(super) struct Other {
    /// Messages to it go.
    pub(super) up: bool,
    /// Which life of it speaks.
    life: Option<u64>,
    /// Nothing was heard since its messages began afresh.
    is_fresh: bool,
    /// How many ends it has told.
    ends: Option<u64>,
    /// The number of its last message to all; none since its messages began afresh.
    number: Option<u64>,
    /// What its numbers mean, once all parts of its hello have come.
    roster: Option<u64>,
    coming: Option<Coming>,
    /// When it was last asked for a hello.
    pub(super) puzzled: Option<Time>,
    pub(super) whole: bool,
    pub(super) joined: Time,
    /// The same in the common clock.
    pub(super) since: Time,
    /// When it last said how loaded it is.
    pub(super) heard: Option<Time>,
    /// Up to when, in the common clock, nothing of what it knew is missing here; `None` before it was asked for all it knows.
    pub(super) until: Option<Time>,
    /// Since when something of it may be missing.
    misses: Option<Time>,
    pub(super) asking: Option<Asking>,
    nodes: BTreeMap<u16, String>,
    routes: BTreeMap<u16, String>,
    /// Its slots in this dispatcher, and its routes.
    slots: BTreeMap<u16, NodeId>,
    places: BTreeMap<u16, RouteId>,
    loads: BTreeMap<u16, u32>,
    gates: BTreeMap<u16, Demand>,
}

/// A life of another switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// The one that speaks.
    Known,
    /// One that has begun since.
    New(Option<Heard>),
    /// One that has ended.
    Past,
}

/// A hello, in parts.
#[derive(Debug, Default)]
struct Coming {
    roster: u64,
    parts: BTreeSet<u16>,
    nodes: BTreeMap<u16, String>,
    routes: BTreeMap<u16, String>,
    last: Vec<End>,
}

/// Sets that are being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asking {
    /// The place in the own list of routes.
    pub(super) route: usize,
    pub(super) at: u64,
    /// The number of the last question.
    pub(super) question: u64,
    /// What was learned when is asked for, in the common clock; zero is everything.
    pub(super) since: Time,
    /// When that began.
    pub(super) begun: Time,
    /// When it was last asked; not yet for this part if `None`.
    pub(super) asked: Option<Time>,
}

impl Asking {
    /// Everything is asked for.
    pub(super) fn is_full(&self) -> bool {
        self.since == Time::ZERO
    }
}

impl Other {
    /// One that has come, with what is remembered of it.
    pub(super) fn new((now, since): (Time, Time), heard: Option<Heard>) -> Self {
        let until = heard.and_then(|heard| heard.until);
        Self {
            up: false,
            life: heard.map(|heard| heard.life),
            is_fresh: true,
            ends: heard.and_then(|heard| heard.ends),
            number: None,
            roster: None,
            coming: None,
            puzzled: None,
            whole: false,
            joined: now,
            since,
            heard: None,
            until,
            misses: Some(until.unwrap_or(Time::ZERO)),
            asking: None,
            nodes: BTreeMap::new(),
            routes: BTreeMap::new(),
            slots: BTreeMap::new(),
            places: BTreeMap::new(),
            loads: BTreeMap::new(),
            gates: BTreeMap::new(),
        }
    }

    /// What it says begins anew: its numbers may mean something else.
    pub(super) fn begin(&mut self) {
        (self.number, self.roster, self.coming) = (None, None, None);
        self.is_fresh = true;
        self.is_behind();
    }

    /// Messages to it go, or do not go any more; what it was asked may be lost.
    pub(super) fn link(&mut self, up: bool) {
        self.up = up;
        self.is_behind();
    }

    /// What it says and answers may be lost.
    fn is_behind(&mut self) {
        self.misses = Some(self.in_step().unwrap_or(Time::ZERO));
        self.asking = None;
    }

    /// Something that it has learned since then is missing, or since it was last in step.
    pub(super) fn lacks(&mut self, since: Time) {
        self.misses = self.misses.into_iter().chain(self.in_step()).chain([since]).min();
    }

    /// Something that it has just said was not heard.
    pub(super) fn lacks_news(&mut self) {
        self.lacks(Time::MAX);
    }

    /// Up to when nothing of it is missing, with what is being asked for.
    fn in_step(&self) -> Option<Time> {
        let asked = self.asking.map(|asking| asking.since);
        let missing = self.misses.into_iter().chain(asked).min();
        self.until.map(|until| missing.map_or(until, |missing| missing.min(until)))
    }

    /// How far it was heard, if it was.
    pub(super) fn heard_until(&self) -> Option<Heard> {
        self.life.map(|life| Heard { life, until: self.in_step(), ends: self.ends })
    }

    /// Which life of it says this. A newer one takes the older one's place; so does any other that is the first to speak where messages
    /// begin afresh, since its host's clock may have gone back.
    pub(super) fn speaks(&mut self, now: (Time, Time), head: &Head) -> Life {
        let is_fresh = core::mem::take(&mut self.is_fresh);
        match self.life {
            Some(life) if head.life < life && !is_fresh => return Life::Past,
            Some(life) if head.life != life => {
                let ended = self.heard_until();
                *self = Self { up: self.up, is_fresh: false, life: Some(head.life), ..Self::new(now, None) };
                return Life::New(ended);
            }
            _ => self.life = Some(head.life),
        }
        Life::Known
    }

    /// Notes the number of what it says. Whether it is no older than what has been heard. A gap says that something was missed.
    pub(super) fn note(&mut self, head: &Head) -> bool {
        let Some(last) = self.number else {
            self.number = Some(head.number);
            return true;
        };
        let expected = last + u64::from(head.to_all);
        if head.number > expected {
            self.lacks_news();
        }
        self.number = Some(last.max(head.number));
        head.number >= expected
    }

    /// Whether its slots and routes mean what it has said.
    pub(super) fn understands(&self, head: &Head) -> bool {
        self.roster == Some(head.roster)
    }

    /// Whether it has said what its numbers mean.
    pub(super) fn greeted(&self) -> bool {
        self.roster.is_some()
    }

    /// It says a part of what its numbers mean. Once all of it is there, the ends that it had not told before.
    pub(super) fn greet(
        &mut self,
        head: &Head,
        (part, parts): (u16, u16),
        nodes: Vec<(NodeId, String)>,
        routes: Vec<(u16, String)>,
        (ends, last): (u64, Vec<End>),
    ) -> Option<Vec<End>> {
        let newest = self.roster.max(self.coming.as_ref().map(|coming| coming.roster));
        if newest.is_some_and(|newest| head.roster < newest) {
            return None;
        }
        let fresh = || Coming { roster: head.roster, ..Coming::default() };
        let coming = match &mut self.coming {
            Some(coming) if coming.roster == head.roster => coming,
            coming => coming.insert(fresh()),
        };
        coming.parts.insert(part);
        coming.nodes.extend(nodes.into_iter().map(|(node, name)| (node.0, name)));
        coming.routes.extend(routes);
        coming.last.extend(last);
        if coming.parts.len() < usize::from(parts) {
            return None;
        }
        let Coming { roster, nodes, routes, mut last, .. } = self.coming.take()?;
        if self.roster != Some(roster) {
            // What its slots were is of no use.
            self.loads.clear();
            self.gates.clear();
        }
        (self.roster, self.nodes, self.routes) = (Some(roster), nodes, routes);
        // Of one that has said nothing yet all is asked for after this.
        let fresh = self.ends.replace(ends).map_or(0, |before| ends.saturating_sub(before));
        let fresh = usize::try_from(fresh).unwrap_or(usize::MAX);
        if fresh > last.len() {
            self.lacks(Time::ZERO);
        }
        Some(last.split_off(last.len().saturating_sub(fresh)))
    }

    /// Begins to ask for what is missing; nothing if nothing is, or is being asked for. `may_full` says whether everything may be.
    pub(super) fn ask(&mut self, begun: Time, may_full: bool) -> Option<&mut Asking> {
        if self.asking.is_none() {
            let since = self.misses.filter(|since| may_full || *since > Time::ZERO)?;
            self.misses = None;
            self.asking = Some(Asking { route: 0, at: 0, question: 0, since, begun, asked: None });
        }
        self.asking.as_mut()
    }

    /// It has told all that it changed up to then.
    pub(super) fn has_told(&mut self, told: Time) {
        if self.misses.is_none() && self.asking.is_none() {
            self.until = self.until.max(Some(told));
        }
    }

    /// It has given a part of the sets asked for. Whether that was the last part of all its sets. An answer to an earlier question
    /// ends nothing.
    pub(super) fn answered(&mut self, question: u64, next: Option<u64>, routes: usize) -> bool {
        let Some(asking) = self.asking.filter(|asking| asking.question == question) else { return false };
        self.asking = match next {
            Some(at) => Some(Asking { at, asked: None, ..asking }),
            None if asking.route + 1 < routes => {
                Some(Asking { route: asking.route + 1, at: 0, asked: None, ..asking })
            }
            None => None,
        };
        if self.asking.is_some() {
            return false;
        }
        // It has shown all that it learned from then on until it was asked.
        self.until = self.until.max(Some(asking.begun));
        self.misses = self.misses.map(|missing| if missing < asking.since { missing } else { asking.begun });
        asking.is_full()
    }

    /// Finds its nodes and routes among the own ones.
    pub(super) fn place(&mut self, dispatcher: &Dispatcher, routes: &[(RouteId, String)]) {
        let node = |name: &str| dispatcher.nodes().id_of(name);
        self.slots = self.nodes.iter().filter_map(|(slot, name)| Some((*slot, node(name)?))).collect();
        let own = |name: &String| routes.iter().find(|(_, own)| own == name).map(|(route, _)| *route);
        self.places = self.routes.iter().filter_map(|(route, name)| Some((*route, own(name)?))).collect();
    }

    pub(super) fn take_loads(
        &mut self,
        now: Time,
        all: bool,
        loads: Vec<(NodeId, u32)>,
        gates: Vec<(u16, Demand)>,
    ) {
        if all {
            self.loads.clear();
            self.gates.clear();
        }
        self.loads.extend(loads.into_iter().map(|(node, requests)| (node.0, requests)));
        self.gates.extend(gates);
        self.heard = Some(now);
    }

    /// Its node, in this dispatcher.
    pub(super) fn node(&self, theirs: NodeId) -> Option<NodeId> {
        self.slots.get(&theirs.0).copied()
    }

    /// Its route, in this dispatcher.
    pub(super) fn route(&self, theirs: u16) -> Option<RouteId> {
        self.places.get(&theirs).copied()
    }

    /// Whether what it has is not known: it has said nothing for so long.
    pub(super) fn is_unknown(&self, now: Time, age_max: Duration) -> bool {
        now.since(self.heard.unwrap_or(self.joined)) > age_max
    }

    /// Its requests at this dispatcher's nodes.
    pub(super) fn requests(&self) -> impl Iterator<Item = (NodeId, u32)> + '_ {
        self.loads.iter().filter_map(|(slot, requests)| Some((self.node(NodeId(*slot))?, *requests)))
    }

    /// Its demand of a group; none if it has no such gate.
    pub(super) fn demand(&self, group: GroupId, dispatcher: &Dispatcher) -> Demand {
        let is_its = |route: &u16| self.route(*route).is_some_and(|own| dispatcher.group_of(own) == group);
        let found = self.gates.iter().find(|(route, _)| is_its(route));
        found.map(|(_, demand)| *demand).unwrap_or_default()
    }
}
