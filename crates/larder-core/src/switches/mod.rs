//! Peer switches: several dispatchers in front of the same nodes, without a shared database.
//!
//! ```text
//! load(n)  = own requests at n, exact + what each other switch last told
//!            + unknown * (own + told) / (1 + switches that have told)      for those not heard for 3 s
//! place(t) = rendezvous(t) among the nodes below T_low, or within (k - 1) step of the least loaded   (crate::nodes)
//! S here   = max-min fair part of S among the demands of all k switches, S / k at least
//! ```
//!
//! *Loads.* A switch counts its own requests exactly. It sends its number of requests at a node when the number differs by
//! [`SwitchesSettings::step`] from the last one sent, at most once per [`SwitchesSettings::period`], and all numbers each second.
//! T_low and T_high are compared with the sum. A switch that is alive but has sent nothing for 3 s counts with the mean of the
//! known switches. If nothing is known of k - 1 other switches, a threshold T therefore works like T / k. A switch that is known
//! to be gone has no requests, because its connections ended with it.
//!
//! *Herding.* Switches with the same outdated loads would all choose the node that seemed least loaded. Loads that differ by less
//! than their uncertainty count as equal, and among equal nodes each target goes where its own hash points. The policies that draw
//! random numbers ([`p2c`](crate::policy)) draw different ones at each switch, by its own seed.
//!
//! *Server sets.* A switch that changes a set sends it to all others, in batches. The later change wins, by a shared
//! [clock](shared_clock); of two changes at the same time, the one whose servers' names have the higher hashes. Messages
//! are numbered. After a missed message, a lost link or an overflowed journal, a switch asks for the sets changed since.
//! A switch that joins asks the present switches for all sets, one after the other, in parts. It serves meanwhile, and
//! its own placements agree with those of the others. Received sets are not forwarded, because every switch has a link to
//! every other. Only the messages of a switch that [ended](ends) may have reached some switches and not others; those are
//! asked for them.
//!
//! *Chains.* Switches also share what their [chain dispatchers](crate::chain) know; see [`chains`].
//!
//! *When a switch fails*, the membership reports it after 2 to 4 s. Until then its requests count where they were, and it keeps its
//! part of S. *When the network splits*, each side considers the other one dead. During that time each side uses all of S and all
//! of T, like two switches that do not know each other. After the split each side asks for the changes since.
//!
//! [`Switches`] is a state machine without a clock, sockets or random numbers: its inputs are events and the time, and its outputs
//! are messages. It reads and changes the [`Dispatcher`].

mod announcements;
mod chains;
mod ends;
#[doc(hidden)]
pub mod fuzzing;
mod message;
mod peer_switch;
mod settings;
mod shared_clock;
mod status;

#[cfg(test)]
mod tests;

pub use settings::SwitchesSettings;
pub use status::{PeerSwitchSummary, SwitchesCounts};

use crate::chain::SharedChains;
use crate::dispatch::{DequeuedRequest, Dispatcher, SettingsError};
use crate::id::{NodeId, RouteId};
use crate::nodes::{Demand, PeerSwitchState};
use crate::policy::{AdoptionCounts, LearnedState};
use crate::time::Time;
use crate::wire::WireError;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use announcements::Announcements;
use chains::ChainRoutes;
use core::time::Duration;
use ends::{EndedIncarnations, IncarnationEnd};
use message::{Message, MessageHeader, pack_sets};
use peer_switch::{IncarnationStatus, PeerSwitch};
use shared_clock::SharedClock;

/// The largest size of a message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// The time after which an unanswered question is repeated.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// The shortest time between two requests for a hello.
const HELLO_RETRY: Duration = Duration::from_millis(500);
/// The time before a gap from which sets are requested. It covers decisions in progress when the gap began, and
/// differences between clocks.
const MARGIN: Duration = Duration::from_secs(2);

/// A message to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingMessage {
    /// The receiver; `None` for all switches whose links are up.
    pub to: Option<Arc<str>>,
    /// The message, at most [`MESSAGE_BYTES_MAX`].
    pub message: Vec<u8>,
}

/// The outputs of an event.
#[derive(Debug, Default)]
pub struct SwitchesOutput {
    /// The messages, in order.
    pub messages: Vec<OutgoingMessage>,
    /// The requests that have left the admission queue.
    pub started: Vec<DequeuedRequest>,
}

/// The protocol state of one switch among its peers.
#[derive(Debug)]
pub struct Switches {
    name: Arc<str>,
    settings: SwitchesSettings,
    incarnation: u64,
    /// The number of messages to all switches so far.
    number: u64,
    /// The number of times that slots have changed their meaning.
    roster: u64,
    /// The dispatcher's routes, with their names.
    routes: Vec<(RouteId, String)>,
    clock: SharedClock,
    others: BTreeMap<Arc<str>, PeerSwitch>,
    ends: EndedIncarnations,
    announcements: Announcements,
    chains: ChainRoutes,
    /// Whether this switch has received the full state of the others.
    is_complete: bool,
    members_epoch: u64,
    /// The time of the shared clock at which the journals were last empty.
    sent_until: Time,
    peer_state: Arc<PeerSwitchState>,
    counts: SwitchesCounts,
}

impl Switches {
    /// Creates the state of a switch that knows no others yet. Its dispatcher starts to keep journals and to place
    /// like all switches. `name` is its name among the switches, and `incarnation` must be higher than at any earlier start
    /// under this name.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn new(
        now: Time,
        (name, incarnation): (Arc<str>, u64),
        settings: SwitchesSettings,
        routes: Vec<(RouteId, String)>,
        dispatcher: &Dispatcher,
    ) -> Result<Self, SettingsError> {
        settings.validate()?;
        dispatcher.keep_journals();
        let peer_state = Arc::<PeerSwitchState>::default();
        dispatcher.set_peer_switches(now, &peer_state, &mut Vec::new());
        Ok(Self {
            name,
            settings,
            incarnation,
            number: 0,
            roster: 1,
            routes,
            clock: SharedClock::default(),
            others: BTreeMap::new(),
            ends: EndedIncarnations::default(),
            announcements: Announcements::default(),
            chains: ChainRoutes::default(),
            is_complete: false,
            members_epoch: dispatcher.nodes().members_epoch(),
            sent_until: SharedClock::default().to_shared(now),
            peer_state,
            counts: SwitchesCounts::default(),
        })
    }

    /// Shares the chain dispatcher of a route with the other switches. Must be called before the first of them is added.
    pub fn share_chains(&mut self, route: RouteId, chains: Arc<SharedChains>) {
        self.chains.add(route, chains);
    }

    /// Adds another switch.
    pub fn add_switch(
        &mut self,
        now: Time,
        name: &Arc<str>,
        dispatcher: &Dispatcher,
        out: &mut SwitchesOutput,
    ) {
        let times = (now, self.clock.to_shared(now));
        let before = self.others.remove(name);
        let sync = before.as_ref().and_then(PeerSwitch::sync_state).or_else(|| self.ends.sync_state(name));
        if let Some(before) = before {
            self.record_end(name, &before);
        }
        self.others.insert(name.clone(), PeerSwitch::new(times, sync));
        self.update_dispatcher(now, dispatcher, out);
    }

    /// Removes another switch. Its requests have ended with it.
    pub fn remove_switch(
        &mut self,
        now: Time,
        name: &str,
        dispatcher: &Dispatcher,
        out: &mut SwitchesOutput,
    ) {
        let Some((name, other)) = self.others.remove_entry(name) else { return };
        self.record_end(&name, &other);
        self.update_dispatcher(now, dispatcher, out);
    }

    /// Marks the link to another switch as up. The switch has received none of the earlier messages.
    pub fn link_up(&mut self, name: &Arc<str>, now: Time, dispatcher: &Dispatcher, out: &mut SwitchesOutput) {
        let Some(other) = self.others.get_mut(name) else { return };
        other.set_link(true);
        self.send_hello(now, name, dispatcher, out);
        self.request_missing(now, dispatcher, out);
    }

    /// Marks the link to another switch as down.
    pub fn link_down(&mut self, name: &str) {
        if let Some(other) = self.others.get_mut(name) {
            other.set_link(false);
        }
    }

    /// Marks the messages of another switch as interrupted: some of the earlier ones may be lost.
    pub fn interrupt_link(&mut self, name: &str) {
        if let Some(other) = self.others.get_mut(name) {
            other.interrupt();
        }
    }

    /// Processes a message of another switch.
    ///
    /// # Errors
    /// The message is invalid or of another version, and has no effect.
    pub fn receive(
        &mut self,
        now: Time,
        from: &Arc<str>,
        bytes: &[u8],
        dispatcher: &Dispatcher,
        out: &mut SwitchesOutput,
    ) -> Result<(), WireError> {
        let (head, message) = Message::decode(bytes).inspect_err(|_| self.counts.invalid += 1)?;
        let Some(other) = self.others.get_mut(from) else { return Ok(()) };
        self.clock.observe(now, head.clock);
        let since = other.since;
        match other.check_incarnation((now, self.clock.to_shared(now)), &head) {
            IncarnationStatus::Past => return Ok(()),
            IncarnationStatus::New(Some(sync)) => self.ends.record(from, sync, since),
            IncarnationStatus::New(None) | IncarnationStatus::Current => {}
        }
        let is_news = other.record_number(&head);
        if dispatcher.nodes().members_epoch() != self.members_epoch {
            // Slots may have other nodes since the last tick.
            other.map_names(dispatcher, &self.routes);
        }
        match message {
            Message::Hello { is_complete, part, parts, nodes, routes, ends, last } => {
                if let Some(ends) = other.receive_hello(&head, (part, parts), nodes, routes, (ends, last)) {
                    other.is_complete = is_complete;
                    other.map_names(dispatcher, &self.routes);
                    self.receive_ends(from, &ends);
                }
            }
            Message::Again => self.send_hello(now, from, dispatcher, out),
            _ if !other.understands(&head) => {
                other.mark_latest_missing();
                if other.up && other.hello_requested.is_none_or(|asked| now.since(asked) >= HELLO_RETRY) {
                    other.hello_requested = Some(now);
                    self.send(now, [(Some(from.clone()), Message::Again)], out);
                }
            }
            Message::Loads { all, sent_until, loads, demands } if is_news => {
                other.take_loads(now, all, loads, demands);
                if head.to_all {
                    other.set_sent_until(sent_until);
                }
                self.update_dispatcher(now, dispatcher, out);
            }
            Message::ChainWork { route, has_credits, all, work } if is_news => {
                other.take_chain_work(route, (has_credits, all), work);
                self.update_dispatcher(now, dispatcher, out);
            }
            // A later message has been received already.
            Message::Loads { .. } | Message::ChainWork { .. } => {}
            Message::Sets { route, sets } => {
                let adopted = adopt(now, other, route, &sets, dispatcher);
                self.count(adopted);
            }
            Message::Part { question, route, sets, next } => {
                let adopted = adopt(now, other, route, &sets, dispatcher);
                self.is_complete |= other.receive_answer(question, next, self.routes.len());
                self.count(adopted);
            }
            Message::Want { question, route, since, at } => {
                let asked = (question, since, at);
                self.answer((now, from), route, asked, dispatcher, out);
            }
            Message::Missed { since } => other.mark_missing(since),
            Message::Placements { route, runs } => {
                self.chains.receive_placements(other, route, runs, dispatcher, &mut self.counts);
            }
            Message::WantCredits { question, route, node, after } => {
                let answer = self.chains.answer(other, question, (route, node), after);
                self.send(now, answer.into_iter().map(|message| (Some(from.clone()), message)), out);
            }
            // The page is asked for again at the next tick.
            Message::Credits { .. } if dispatcher.nodes().members_epoch() != self.members_epoch => {}
            Message::Credits { question, runs, end } => {
                let has_credits = other.has_credits();
                self.chains.receive_credits(question, runs, (end, has_credits), dispatcher);
            }
        }
        self.request_missing(now, dispatcher, out);
        Ok(())
    }

    /// Sends loads and changes. Must be called once per [`SwitchesSettings::period`].
    pub fn tick(&mut self, now: Time, dispatcher: &Dispatcher, out: &mut SwitchesOutput) {
        let epoch = dispatcher.nodes().members_epoch();
        let mut messages: Vec<Message> = Vec::new();
        if self.ends.take_unreported() | (epoch != self.members_epoch) {
            self.members_epoch = epoch;
            self.roster += 1;
            self.others.values_mut().for_each(|other| other.map_names(dispatcher, &self.routes));
            self.announcements.invalidate();
            self.chains.invalidate();
            messages.extend(announcements::hello(self.is_complete, &self.ends, dispatcher, &self.routes));
        }
        // A switch that has received the loads has received the changes before them.
        messages.extend(self.changes(now, dispatcher));
        messages.extend(self.announcements.due_messages(
            (now, self.sent_until),
            &self.settings,
            dispatcher,
            &self.routes,
        ));
        messages.extend(self.chains.due_messages(now, &self.settings, &self.others, &mut self.counts));
        self.send(now, messages.into_iter().map(|message| (None, message)), out);
        self.request_missing(now, dispatcher, out);
        self.update_dispatcher(now, dispatcher, out);
    }

    /// Returns whether a message asks for sets.
    #[doc(hidden)]
    pub fn is_question(message: &[u8]) -> bool {
        message::is_set_request(message)
    }

    /// Returns the status of the other switches.
    pub fn statuses(&self, now: Time) -> Vec<PeerSwitchSummary> {
        let view = |(name, other): (&Arc<str>, &PeerSwitch)| PeerSwitchSummary {
            name: name.clone(),
            up: other.up && other.has_hello(),
            silent: now.since(other.loads_at.unwrap_or(other.joined)),
            unknown: other.is_unknown(now, self.settings.unknown_after),
            requesting: other.request.is_some(),
            requests: other.requests().map(|(_, requests)| u64::from(requests)).sum(),
        };
        self.others.iter().map(view).collect()
    }

    /// Returns whether this switch has received the full state of the others.
    pub const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns whether this switch has the credits of the others' chains, or there were none.
    pub const fn has_credits(&self) -> bool {
        self.chains.has_credits()
    }

    /// Returns the counters.
    pub const fn counts(&self) -> SwitchesCounts {
        self.counts
    }

    /// Returns the state of the other switches, as decisions see it.
    pub const fn peer_state(&self) -> &Arc<PeerSwitchState> {
        &self.peer_state
    }

    fn count(&mut self, adopted: AdoptionCounts) {
        self.counts.sets_taken += adopted.taken as u64;
        self.counts.sets_same += adopted.same as u64;
        self.counts.sets_older += adopted.older as u64;
    }

    /// Appends messages to the outputs, in order.
    fn send(
        &mut self,
        now: Time,
        messages: impl IntoIterator<Item = (Option<Arc<str>>, Message)>,
        out: &mut SwitchesOutput,
    ) {
        for (to, message) in messages {
            self.number += u64::from(to.is_none());
            let head = MessageHeader {
                clock: self.clock.to_shared(now),
                incarnation: self.incarnation,
                number: self.number,
                to_all: to.is_none(),
                roster: self.roster,
            };
            out.messages.push(OutgoingMessage { message: message.encode(&head), to });
        }
    }

    /// Sends a hello and all loads to another switch.
    fn send_hello(&mut self, now: Time, to: &Arc<str>, dispatcher: &Dispatcher, out: &mut SwitchesOutput) {
        let hello = announcements::hello(self.is_complete, &self.ends, dispatcher, &self.routes);
        let loads = Announcements::all(self.sent_until, dispatcher, &self.routes);
        let messages = hello.into_iter().chain(loads).chain(self.chains.all_work());
        self.send(now, messages.map(|message| (Some(to.clone()), message)), out);
    }

    /// Returns messages to all switches with the sets that have changed here.
    fn changes(&mut self, now: Time, dispatcher: &Dispatcher) -> Vec<Message> {
        let (mut messages, mut missed, mut more) = (Vec::new(), false, false);
        for (route, _) in &self.routes {
            let changes = dispatcher.changed_sets(*route, self.settings.sets_max);
            missed |= changes.missed;
            more |= changes.more;
            if changes.sets.is_empty() || self.others.is_empty() {
                continue;
            }
            let (packs, too_large) = pack_sets(&changes.sets);
            self.counts.sets_sent += changes.sets.len() as u64;
            self.counts.sets_too_large += too_large as u64;
            messages.extend(packs.into_iter().map(|sets| Message::Sets { route: route.0, sets }));
        }
        if missed && !self.others.is_empty() {
            self.counts.missed += 1;
            messages.push(Message::Missed { since: self.sent_until });
        }
        if !more {
            self.sent_until = self.clock.to_shared(now);
        }
        messages
    }

    /// Asks other switches for sets that may be missing. The full state is requested from one switch at a time.
    fn request_missing(&mut self, now: Time, dispatcher: &Dispatcher, out: &mut SwitchesOutput) {
        let (is_complete, begun, mut messages) = (self.is_complete, self.clock.to_shared(now), Vec::new());
        let is_full = |other: &PeerSwitch| other.request.is_some_and(|request| request.is_full());
        let mut full = self.others.values().any(|other| is_full(other) && other.up);
        // Switches that have the full state are asked first.
        let some_whole = self.others.values().any(|other| other.is_complete && other.up && other.has_hello());
        for (name, other) in &mut self.others {
            if !other.up || !other.has_hello() || self.routes.is_empty() {
                continue;
            }
            let may_full = !full && (is_complete || !some_whole || other.is_complete);
            let Some(request) = other.next_request(begun, may_full) else { continue };
            full |= request.is_full();
            if request.asked.is_some_and(|asked| now.since(asked) < ASK_AGAIN) {
                continue;
            }
            request.asked = Some(now);
            self.counts.parts_asked += 1;
            let route = self.routes[request.route].0.0;
            request.question = self.counts.parts_asked;
            let since = before(request.since, MARGIN);
            let want = Message::Want { question: request.question, route, since, at: request.at };
            messages.push((Some(name.clone()), want));
        }
        let question = self.chains.next_question(now, &self.others, dispatcher, &mut self.counts);
        messages.extend(question.map(|(to, message)| (Some(to), message)));
        self.send(now, messages, out);
    }

    /// Answers a request for sets; the answer is empty if the route does not exist here.
    fn answer(
        &mut self,
        (now, to): (Time, &Arc<str>),
        theirs: u16,
        (question, since, at): (u64, Time, u64),
        dispatcher: &Dispatcher,
        out: &mut SwitchesOutput,
    ) {
        let own = self.others.get(to).and_then(|other| other.route(theirs));
        let page = own.map(|route| {
            dispatcher.sets_page((now, self.clock.to_own(since)), route, at, self.settings.sets_max)
        });
        let page = page.unwrap_or_default();
        let (packs, too_large) = pack_sets(&page.sets);
        self.counts.sets_sent += page.sets.len() as u64;
        self.counts.sets_too_large += too_large as u64;
        let (route, last) = (own.unwrap_or(RouteId::DEFAULT).0, packs.len() - 1);
        let message = |(number, sets)| {
            if number < last {
                Message::Sets { route, sets }
            } else {
                Message::Part { question, route, sets, next: page.next }
            }
        };
        let messages: Vec<Message> = packs.into_iter().enumerate().map(message).collect();
        self.send(now, messages.into_iter().map(|message| (Some(to.clone()), message)), out);
    }

    /// Records the end of another switch's incarnation.
    fn record_end(&mut self, name: &Arc<str>, other: &PeerSwitch) {
        if let Some(sync) = other.sync_state() {
            self.ends.record(name, sync, other.since);
        }
    }

    /// Processes the incarnations that another switch considers ended: the changes that it received from them, and
    /// that are missing here, are requested from it.
    fn receive_ends(&mut self, from: &Arc<str>, ends: &[IncarnationEnd]) {
        for IncarnationEnd { name, incarnation, since } in ends {
            if *name == self.name && *incarnation == self.incarnation {
                // The other switch has lost this one for a while. This one knows its own changes.
                continue;
            }
            let now = self.others.get(name).and_then(PeerSwitch::sync_state);
            let mut sync = now
                .into_iter()
                .chain(self.ends.sync_state(name))
                .filter(|sync| sync.incarnation == *incarnation);
            let until = sync.find_map(|sync| sync.until).map_or(*since, |until| until.max(*since));
            if let Some(other) = self.others.get_mut(from) {
                other.mark_missing(until);
            }
        }
    }

    /// Adds up the loads of the other switches and passes them to the dispatcher.
    fn update_dispatcher(&mut self, now: Time, dispatcher: &Dispatcher, out: &mut SwitchesOutput) {
        let unknown_after = self.settings.unknown_after;
        let (unknown, known): (Vec<&PeerSwitch>, Vec<&PeerSwitch>) =
            self.others.values().partition(|other| other.is_unknown(now, unknown_after));
        let mut requests = vec![0_u32; dispatcher.nodes().slots()];
        for (node, more) in known.iter().flat_map(|other| other.requests()) {
            let at = &mut requests[node.index()];
            *at = at.saturating_add(more);
        }
        if !unknown.is_empty() {
            for (at, slot) in requests.iter_mut().zip(0..) {
                let reported = u64::from(*at) + u64::from(dispatcher.nodes().load(NodeId(slot)));
                let more = reported * unknown.len() as u64 / (1 + known.len() as u64);
                *at = at.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
            }
        }
        self.chains.update(&known, unknown.len(), dispatcher);
        let demands = |group| -> Vec<Option<Demand>> {
            let known = known.iter().map(|other| Some(other.demand(group, dispatcher)));
            known.chain(unknown.iter().map(|_| None)).collect()
        };
        let switches = u32::try_from(self.others.len()).unwrap_or(u32::MAX);
        let groups = announcements::group_routes(dispatcher, &self.routes);
        let peer_state = PeerSwitchState {
            switches,
            requests,
            equal_within: switches.saturating_mul(self.settings.step),
            clock_offset: self.clock.clock_offset(),
            admitted: groups.into_keys().map(|group| (group, demands(group))).collect(),
        };
        if *self.peer_state != peer_state {
            self.peer_state = Arc::new(peer_state);
            dispatcher.set_peer_switches(now, &self.peer_state, &mut out.started);
        }
    }
}

/// Returns the time `margin` before `time`.
fn before(time: Time, margin: Duration) -> Time {
    let margin = u64::try_from(margin.as_nanos()).unwrap_or(u64::MAX);
    Time::from_nanos(time.as_nanos().saturating_sub(margin))
}

/// Adopts another switch's sets of a route that exists here too. Servers that do not exist here are omitted.
fn adopt(
    now: Time,
    other: &PeerSwitch,
    route: u16,
    sets: &LearnedState,
    dispatcher: &Dispatcher,
) -> AdoptionCounts {
    let Some(route) = other.route(route) else { return AdoptionCounts::default() };
    dispatcher.adopt_sets(now, route, &Arc::new(sets.with_nodes(|node| other.node(node))))
}
