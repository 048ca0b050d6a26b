//! Switches side by side: several dispatchers in front of the same nodes, without a shared database.
//!
//! ```text
//! load(n)  = own requests at n, exact + what each other switch last told
//!            + unknown * (own + told) / (1 + switches that have told)      for those not heard for 3 s
//! place(t) = rendezvous(t) among the nodes below T_low, or within (k - 1) step of the least loaded   (crate::nodes)
//! S here   = max-min fair part of S among the demands of all k switches, S / k at least
//! ```
//! *Loads.* A switch counts its own requests exactly. It tells the others how many it has at a node when that differs by
//! [`SwitchesSettings::step`] from what it told last, at most once a [`SwitchesSettings::period`], and all of it each second.
//! T_low and T_high are compared with the sum. A switch that others hold for alive but has said nothing for 3 s is taken to
//! have as much as the mean of those that are known: so where nothing is known of k - 1 others, a threshold T works as T / k.
//! One that is known to be gone has nothing: its connections ended with it.
//!
//! *Herding.* Switches with the same old picture would all send to the node that seemed least loaded. Loads that old
//! pictures cannot tell apart count as equal, and among equals each target goes where its own hash says. The policies that
//! draw lots ([`p2c`](crate::policy)) draw others at each switch, by a seed of its own.
//!
//! *Server sets.* Who changes a set tells all others, in batches. The later change wins, by a [clock](common) that all
//! share; of two at the same moment the one whose servers' names hash higher. Messages are numbered; when one was missed, a
//! link was down, or a journal ran over, the sets changed since are asked for. A switch that joins asks those
//! that are there for all sets, one after the other, in parts, and serves meanwhile: what it places by itself goes where the
//! others would place it. What it heard is not told on: every switch has a link to every other. Only of one that
//! [ended](ends) some may know more than others: these are asked for it.
//!
//! *When a switch dies*, membership says so after 2 to 4 s; until then its requests are counted where they were and it has
//! its part of S. *When the view splits*, each side takes the other for dead: for so long each uses all of S and the whole
//! of T, as two switches that know nothing of each other would. When they meet again each asks for what has changed since.
//!
//! It is a state machine without a clock, sockets or chance: events and the time go in, messages come out. What it reads
//! and changes is the [`Dispatcher`].

mod common;
mod ends;
#[doc(hidden)]
pub mod fuzzing;
mod message;
mod other;
mod settings;
mod told;

#[cfg(test)]
mod tests;

pub use settings::SwitchesSettings;

use crate::dispatch::{DequeuedRequest, Dispatcher, SettingsError};
use crate::id::{NodeId, RouteId};
use crate::nodes::{Demand, PeerSwitchState};
use crate::policy::{AdoptionCounts, LearnedState};
use crate::time::Time;
use crate::wire::WireError;
use common::Common;
use core::time::Duration;
use ends::{End, Ends};
use message::{Head, Message, packed};
use other::{Life, Other};
use std::collections::BTreeMap;
use std::sync::Arc;
use told::Told;

/// Longest message. Bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// What was asked for is asked for again after this time.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// Between two requests for a hello.
const PUZZLED: Duration = Duration::from_millis(500);
/// How far before a gap sets are asked for: decisions that were on their way when it began, and clocks that are not quite the same.
const MARGIN: Duration = Duration::from_secs(2);

/// A message to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// To whom; `None` is all whose links are up.
    pub to: Option<Arc<str>>,
    /// What. At most [`MESSAGE_BYTES_MAX`].
    pub message: Vec<u8>,
}

/// What comes of an event.
#[derive(Debug, Default)]
pub struct Out {
    /// Messages, in order.
    pub messages: Vec<Outgoing>,
    /// Requests that had waited for admission.
    pub started: Vec<DequeuedRequest>,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchesCounts {
    /// Messages that made no sense, or were of another version.
    pub strange: u64,
    /// Sets told.
    pub sets_told: u64,
    /// Sets heard that were later than what was known.
    pub sets_taken: u64,
    /// Sets heard that were known already.
    pub sets_same: u64,
    /// Sets heard that were earlier than what was known.
    pub sets_older: u64,
    /// Sets of more servers than a message has room for, which were not told.
    pub sets_too_large: u64,
    /// Times that more had changed than a journal holds.
    pub missed: u64,
    /// Parts of sets asked for.
    pub parts_asked: u64,
}

/// Another switch, to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherView {
    /// Its name.
    pub name: Arc<str>,
    /// Messages to it go.
    pub up: bool,
    /// Since when it has said nothing of its load.
    pub silent: Duration,
    /// What it has is not known any more.
    pub unknown: bool,
    /// Sets are being asked of it.
    pub asking: bool,
    /// Its requests at nodes known here.
    pub requests: u64,
}

/// A switch among others.
#[derive(Debug)]
pub struct Switches {
    settings: SwitchesSettings,
    life: u64,
    /// Messages to all so far.
    number: u64,
    /// Times that slots have changed their meaning.
    roster: u64,
    /// The dispatcher's routes, by name.
    routes: Vec<(RouteId, String)>,
    clock: Common,
    others: BTreeMap<Arc<str>, Other>,
    ends: Ends,
    told: Told,
    /// It has asked others for all they knew.
    whole: bool,
    members_epoch: u64,
    /// When, in the common clock, journals were last empty.
    told_until: Time,
    elsewhere: Arc<PeerSwitchState>,
    counts: SwitchesCounts,
}

impl Switches {
    /// A switch that knows of no others yet. Its dispatcher keeps journals and places as all switches do from now on. `life` is
    /// higher than that of any earlier start under its name.
    ///
    /// # Errors
    /// A setting that is out of range.
    pub fn new(
        now: Time,
        life: u64,
        settings: SwitchesSettings,
        routes: Vec<(RouteId, String)>,
        dispatcher: &Dispatcher,
    ) -> Result<Self, SettingsError> {
        settings.validate()?;
        dispatcher.keep_journals();
        let elsewhere = Arc::<PeerSwitchState>::default();
        dispatcher.set_peer_switches(now, &elsewhere, &mut Vec::new());
        Ok(Self {
            settings,
            life,
            number: 0,
            roster: 1,
            routes,
            clock: Common::default(),
            others: BTreeMap::new(),
            ends: Ends::default(),
            told: Told::default(),
            whole: false,
            members_epoch: dispatcher.nodes().members_epoch(),
            told_until: Common::default().of(now),
            elsewhere,
            counts: SwitchesCounts::default(),
        })
    }

    /// Another switch has come.
    pub fn joined(&mut self, now: Time, name: &Arc<str>, dispatcher: &Dispatcher, out: &mut Out) {
        let times = (now, self.clock.of(now));
        let before = self.others.remove(name);
        let heard = before.as_ref().and_then(Other::heard_until).or_else(|| self.ends.heard(name));
        if let Some(before) = before {
            self.ended(name, &before);
        }
        self.others.insert(name.clone(), Other::new(times, heard));
        self.weigh(now, dispatcher, out);
    }

    /// Another switch has gone: what it had has ended with it.
    pub fn left(&mut self, now: Time, name: &str, dispatcher: &Dispatcher, out: &mut Out) {
        let Some((name, other)) = self.others.remove_entry(name) else { return };
        self.ended(&name, &other);
        self.weigh(now, dispatcher, out);
    }

    /// Messages to it go from now on; it has heard none of the earlier ones.
    pub fn up(&mut self, name: &Arc<str>, now: Time, dispatcher: &Dispatcher, out: &mut Out) {
        let Some(other) = self.others.get_mut(name) else { return };
        other.link(true);
        self.introduce(now, name, dispatcher, out);
        self.ask(now, out);
    }

    /// Messages to it do not go any more.
    pub fn down(&mut self, name: &str) {
        if let Some(other) = self.others.get_mut(name) {
            other.link(false);
        }
    }

    /// Its messages begin afresh: some of the earlier ones may be lost.
    pub fn afresh(&mut self, name: &str) {
        if let Some(other) = self.others.get_mut(name) {
            other.begin();
        }
    }

    /// It says something.
    ///
    /// # Errors
    /// It makes no sense, or is of another version: nothing of it is taken.
    pub fn message(
        &mut self,
        now: Time,
        from: &Arc<str>,
        bytes: &[u8],
        dispatcher: &Dispatcher,
        out: &mut Out,
    ) -> Result<(), WireError> {
        let (head, message) = Message::decode(bytes).inspect_err(|_| self.counts.strange += 1)?;
        let Some(other) = self.others.get_mut(from) else { return Ok(()) };
        self.clock.hear(now, head.clock);
        let since = other.since;
        match other.speaks((now, self.clock.of(now)), &head) {
            Life::Past => return Ok(()),
            Life::New(Some(heard)) => self.ends.note(from, heard, since),
            Life::New(None) | Life::Known => {}
        }
        let is_news = other.note(&head);
        match message {
            Message::Hello { whole, part, parts, nodes, routes, ends, last } => {
                if let Some(ends) = other.greet(&head, (part, parts), nodes, routes, (ends, last)) {
                    other.whole = whole;
                    other.place(dispatcher, &self.routes);
                    self.mourn(from, &ends);
                }
            }
            Message::Again => self.introduce(now, from, dispatcher, out),
            _ if !other.understands(&head) => {
                other.lacks_news();
                if other.up && other.puzzled.is_none_or(|asked| now.since(asked) >= PUZZLED) {
                    other.puzzled = Some(now);
                    self.say(now, [(Some(from.clone()), Message::Again)], out);
                }
            }
            Message::Loads { all, told, loads, gates } if is_news => {
                other.take_loads(now, all, loads, gates);
                if head.to_all {
                    other.has_told(told);
                }
                self.weigh(now, dispatcher, out);
            }
            // What was said later has been heard.
            Message::Loads { .. } => {}
            Message::Sets { route, sets } => {
                let adopted = adopt(now, other, route, &sets, dispatcher);
                self.count(adopted);
            }
            Message::Part { question, route, sets, next } => {
                let adopted = adopt(now, other, route, &sets, dispatcher);
                self.whole |= other.answered(question, next, self.routes.len());
                self.count(adopted);
            }
            Message::Want { question, route, since, at } => {
                let asked = (question, since, at);
                self.answer((now, from), route, asked, dispatcher, out);
            }
            Message::Missed { since } => {
                other.lacks(since);
            }
        }
        self.ask(now, out);
        Ok(())
    }

    /// To be called once a [`SwitchesSettings::period`].
    pub fn tick(&mut self, now: Time, dispatcher: &Dispatcher, out: &mut Out) {
        let epoch = dispatcher.nodes().members_epoch();
        let mut said: Vec<Message> = Vec::new();
        if self.ends.tell() | (epoch != self.members_epoch) {
            self.members_epoch = epoch;
            self.roster += 1;
            self.others.values_mut().for_each(|other| other.place(dispatcher, &self.routes));
            self.told.forget();
            said.extend(told::hello(self.whole, &self.ends, dispatcher, &self.routes));
        }
        // Whoever has heard the loads has heard the changes before them.
        said.extend(self.changes(now, dispatcher));
        said.extend(self.told.tell((now, self.told_until), &self.settings, dispatcher, &self.routes));
        self.say(now, said.into_iter().map(|message| (None, message)), out);
        self.ask(now, out);
        self.weigh(now, dispatcher, out);
    }

    /// Whether a message asks for sets.
    #[doc(hidden)]
    pub fn is_question(message: &[u8]) -> bool {
        message::is_want(message)
    }

    /// The other switches.
    pub fn others(&self, now: Time) -> Vec<OtherView> {
        let view = |(name, other): (&Arc<str>, &Other)| OtherView {
            name: name.clone(),
            up: other.up && other.greeted(),
            silent: now.since(other.heard.unwrap_or(other.joined)),
            unknown: other.is_unknown(now, self.settings.unknown_after),
            asking: other.asking.is_some(),
            requests: other.requests().map(|(_, requests)| u64::from(requests)).sum(),
        };
        self.others.iter().map(view).collect()
    }

    /// Whether all that the others knew has been asked for.
    pub const fn is_whole(&self) -> bool {
        self.whole
    }

    /// What has happened so far.
    pub const fn counts(&self) -> SwitchesCounts {
        self.counts
    }

    /// What the others have, as decisions see it.
    pub const fn elsewhere(&self) -> &Arc<PeerSwitchState> {
        &self.elsewhere
    }

    fn count(&mut self, adopted: AdoptionCounts) {
        self.counts.sets_taken += adopted.taken as u64;
        self.counts.sets_same += adopted.same as u64;
        self.counts.sets_older += adopted.older as u64;
    }

    /// Puts messages out, in order.
    fn say(&mut self, now: Time, said: impl IntoIterator<Item = (Option<Arc<str>>, Message)>, out: &mut Out) {
        for (to, message) in said {
            self.number += u64::from(to.is_none());
            let head = Head {
                clock: self.clock.of(now),
                life: self.life,
                number: self.number,
                to_all: to.is_none(),
                roster: self.roster,
            };
            out.messages.push(Outgoing { message: message.encode(&head), to });
        }
    }

    /// Tells another what this switch's numbers mean, and all its loads.
    fn introduce(&mut self, now: Time, to: &Arc<str>, dispatcher: &Dispatcher, out: &mut Out) {
        let hello = told::hello(self.whole, &self.ends, dispatcher, &self.routes);
        let said = hello.into_iter().chain(Told::all(self.told_until, dispatcher, &self.routes));
        self.say(now, said.map(|message| (Some(to.clone()), message)), out);
    }

    /// What has changed here, for all.
    fn changes(&mut self, now: Time, dispatcher: &Dispatcher) -> Vec<Message> {
        let (mut said, mut missed, mut more) = (Vec::new(), false, false);
        for (route, _) in &self.routes {
            let changes = dispatcher.changed_sets(*route, self.settings.sets_max);
            missed |= changes.missed;
            more |= changes.more;
            if changes.sets.is_empty() || self.others.is_empty() {
                continue;
            }
            let (packs, too_large) = packed(&changes.sets);
            self.counts.sets_told += changes.sets.len() as u64;
            self.counts.sets_too_large += too_large as u64;
            said.extend(packs.into_iter().map(|sets| Message::Sets { route: route.0, sets }));
        }
        if missed && !self.others.is_empty() {
            self.counts.missed += 1;
            said.push(Message::Missed { since: self.told_until });
        }
        if !more {
            self.told_until = self.clock.of(now);
        }
        said
    }

    /// Asks for sets that may be missing: of one that it has not asked yet for all it knows, one such at a time.
    fn ask(&mut self, now: Time, out: &mut Out) {
        let (whole, begun, mut said) = (self.whole, self.clock.of(now), Vec::new());
        let is_full = |other: &Other| other.asking.is_some_and(|asking| asking.is_full());
        let mut full = self.others.values().any(|other| is_full(other) && other.up);
        // Of those that have all it is asked first.
        let some_whole = self.others.values().any(|other| other.whole && other.up && other.greeted());
        for (name, other) in &mut self.others {
            if !other.up || !other.greeted() || self.routes.is_empty() {
                continue;
            }
            let may_full = !full && (whole || !some_whole || other.whole);
            let Some(asking) = other.ask(begun, may_full) else { continue };
            full |= asking.is_full();
            if asking.asked.is_some_and(|asked| now.since(asked) < ASK_AGAIN) {
                continue;
            }
            asking.asked = Some(now);
            self.counts.parts_asked += 1;
            let route = self.routes[asking.route].0.0;
            asking.question = self.counts.parts_asked;
            let since = before(asking.since, MARGIN);
            let want = Message::Want { question: asking.question, route, since, at: asking.at };
            said.push((Some(name.clone()), want));
        }
        self.say(now, said, out);
    }

    /// Answers one that asks for sets; those of a route that is not here are none.
    fn answer(
        &mut self,
        (now, to): (Time, &Arc<str>),
        theirs: u16,
        (question, since, at): (u64, Time, u64),
        dispatcher: &Dispatcher,
        out: &mut Out,
    ) {
        let own = self.others.get(to).and_then(|other| other.route(theirs));
        let page = own.map(|route| {
            dispatcher.sets_page((now, self.clock.own(since)), route, at, self.settings.sets_max)
        });
        let page = page.unwrap_or_default();
        let (packs, too_large) = packed(&page.sets);
        self.counts.sets_told += page.sets.len() as u64;
        self.counts.sets_too_large += too_large as u64;
        let (route, last) = (own.unwrap_or(RouteId::DEFAULT).0, packs.len() - 1);
        let message = |(number, sets)| {
            if number < last {
                Message::Sets { route, sets }
            } else {
                Message::Part { question, route, sets, next: page.next }
            }
        };
        let said: Vec<Message> = packs.into_iter().enumerate().map(message).collect();
        self.say(now, said.into_iter().map(|message| (Some(to.clone()), message)), out);
    }

    /// Another has gone, or has come anew.
    fn ended(&mut self, name: &Arc<str>, other: &Other) {
        if let Some(heard) = other.heard_until() {
            self.ends.note(name, heard, other.since);
        }
    }

    /// Another takes these lives for ended: what it has heard of them that was not heard here is to be asked for.
    fn mourn(&mut self, from: &Arc<str>, ends: &[End]) {
        for End { name, life, since } in ends {
            let now = self.others.get(name).and_then(Other::heard_until);
            let mut heard = now.into_iter().chain(self.ends.heard(name)).filter(|heard| heard.life == *life);
            let until = heard.find_map(|heard| heard.until).map_or(*since, |until| until.max(*since));
            if let Some(other) = self.others.get_mut(from) {
                other.lacks(until);
            }
        }
    }

    /// Adds up what the others have, and lets the dispatcher go by it.
    fn weigh(&mut self, now: Time, dispatcher: &Dispatcher, out: &mut Out) {
        let unknown_after = self.settings.unknown_after;
        let (unknown, known): (Vec<&Other>, Vec<&Other>) =
            self.others.values().partition(|other| other.is_unknown(now, unknown_after));
        let mut requests = vec![0_u32; dispatcher.nodes().slots()];
        for (node, more) in known.iter().flat_map(|other| other.requests()) {
            let at = &mut requests[node.index()];
            *at = at.saturating_add(more);
        }
        if !unknown.is_empty() {
            for (at, slot) in requests.iter_mut().zip(0..) {
                let told = u64::from(*at) + u64::from(dispatcher.nodes().load(NodeId(slot)));
                let more = told * unknown.len() as u64 / (1 + known.len() as u64);
                *at = at.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
            }
        }
        let demands = |group| -> Vec<Option<Demand>> {
            let known = known.iter().map(|other| Some(other.demand(group, dispatcher)));
            known.chain(unknown.iter().map(|_| None)).collect()
        };
        let switches = u32::try_from(self.others.len()).unwrap_or(u32::MAX);
        let groups = told::gates(dispatcher, &self.routes);
        let elsewhere = PeerSwitchState {
            switches,
            requests,
            equal_within: switches.saturating_mul(self.settings.step),
            clock_offset: self.clock.clock_offset(),
            admitted: groups.into_keys().map(|group| (group, demands(group))).collect(),
        };
        if *self.elsewhere != elsewhere {
            self.elsewhere = Arc::new(elsewhere);
            dispatcher.set_peer_switches(now, &self.elsewhere, &mut out.started);
        }
    }
}

/// So long before.
fn before(time: Time, margin: Duration) -> Time {
    let margin = u64::try_from(margin.as_nanos()).unwrap_or(u64::MAX);
    Time::from_nanos(time.as_nanos().saturating_sub(margin))
}

/// Takes over another's sets of a route that is here too; of servers that are not, nothing is taken.
fn adopt(
    now: Time,
    other: &Other,
    route: u16,
    sets: &LearnedState,
    dispatcher: &Dispatcher,
) -> AdoptionCounts {
    let Some(route) = other.route(route) else { return AdoptionCounts::default() };
    dispatcher.adopt_sets(now, route, &Arc::new(sets.with_nodes(|node| other.node(node))))
}
