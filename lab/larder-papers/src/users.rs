//! Users as a [`RequestSource`]: sessions of pages (open loop), and repeated profiles (closed loop).
//!
//! # Sessions
//! A page is fetched over one connection of its own. The base page comes first, then each embedded object as
//! soon as the previous one has arrived (HTTP/1.1, one server process per connection). Then the user thinks.
//! Behind a layer-4 switch the whole connection goes to the node of its first request; at layer 7 each
//! request is dispatched. The dispatcher does not count a bound connection after its first object. Therefore
//! only policies that ignore its counts can be used at layer 4. [`KeyExchange`] states which secure requests
//! begin with a key exchange; the others resume it. A page's delay runs from its first request to the end of its
//! last object.
//!
//! Pages that begin within the measured window are measured, however late they end. No page begins after the
//! window. A session whose request is refused ends.
//!
//! # Profiles
//! Each user replays one profile and pauses after each reply. Users of one profile begin at different
//! positions. Users arrive evenly over the ramp. Each request has a connection of its own. The cluster accepts
//! a connection if fewer than `backlog` requests are in progress. Otherwise the client's SYN is lost, and the
//! client sends it again after 3, 6 and 12 s, as Windows NT does. The request fails if the last SYN is lost.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use larder_core::class::ServiceClass;
use larder_core::policy::PolicyKind;
use larder_core::{NodeId, TargetId, Time};
use larder_trace::synth::profiles::Profiles;
use larder_trace::synth::sessions::{Page, Sessions, SiteItem};

use larder_sim::outcome::{DelayLog, Delays};
use larder_sim::source::{ClientConnection, ClientRequest, RequestSource};
use larder_sim::{Item, SimError, Workload};

/// Returns the items of a site as a workload without requests, because the users make the requests. A
/// database access of the site takes the back-end `place_ns`.
pub(crate) fn site_workload(items: &[SiteItem], place_ns: u64) -> Workload {
    let item = |item: &SiteItem| Item {
        class: item.class,
        cacheable: item.cacheable,
        cpu_ns: u64::from(item.cpu_us) * 1_000,
        back_ns: u64::from(item.places) * place_ns,
        ..Item::file(TargetId::of(item.key.as_bytes()), item.bytes)
    };
    Workload { items: items.iter().map(item).collect(), ..Workload::default() }
}

/// Delays of pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageLog {
    /// The delays of all pages.
    pub(crate) all: DelayLog,
    /// The delays by class of the base page, in the order of [`ServiceClass::ALL`].
    pub(crate) of_class: [DelayLog; ServiceClass::COUNT],
}

/// The secure requests that begin with a key exchange. The paper has one "at least once" a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum KeyExchange {
    /// The first secure request of a session.
    #[default]
    Session,
    /// The first request of each secure page, which is the first one of its connection.
    Page,
    /// Each secure request, as with a connection for each object.
    Object,
}

/// Users with sessions of pages.
#[derive(Debug)]
pub(crate) struct SessionUsers<'s> {
    sessions: &'s Sessions,
    /// Whether a connection stays at its first request's node.
    bound: bool,
    keys: KeyExchange,
    /// The time from which pages that begin are measured.
    from: Time,
    /// The time from which no page begins.
    until: Time,
    next: usize,
    /// The thinking users, by the time at which their next page begins.
    thinking: BinaryHeap<Reverse<(Time, u32)>>,
    users: Vec<User>,
    log: &'s mut PageLog,
}

/// Policies whose decisions do not depend on the dispatcher's counts of connections: they ignore load or use
/// the nodes' reports.
const BINDABLE: [PolicyKind; 4] =
    [PolicyKind::Random, PolicyKind::Rr, PolicyKind::WrrNum, PolicyKind::WrrTime];

/// The state of a user.
#[derive(Clone, Copy, Debug, Default)]
struct User {
    /// The index of the user's page within the session.
    page: u32,
    /// The number of finished objects of the page.
    objects: u32,
    begun: Time,
    has_keys: bool,
}

impl<'s> SessionUsers<'s> {
    /// Creates the users of all sessions. Delays of pages go to `log`. Each request is dispatched (layer 7).
    pub(crate) fn new(sessions: &'s Sessions, window: core::ops::Range<Time>, log: &'s mut PageLog) -> Self {
        let users = vec![User::default(); sessions.sessions.len()];
        let (from, until) = (window.start, window.end);
        let keys = KeyExchange::default();
        Self { sessions, bound: false, keys, from, until, next: 0, thinking: BinaryHeap::new(), users, log }
    }

    /// Sets which secure requests begin with a key exchange.
    pub(crate) fn with_keys(self, keys: KeyExchange) -> Self {
        Self { keys, ..self }
    }

    /// Puts the users behind a layer-4 switch with this policy: a connection stays at its first request's
    /// node.
    ///
    /// # Errors
    /// Returns [`SimError::Workload`] if the policy uses the dispatcher's counts of requests in flight, which
    /// do not contain connections after their first object.
    pub(crate) fn bind_connections(self, policy: PolicyKind) -> Result<Self, SimError> {
        if BINDABLE.contains(&policy) {
            return Ok(Self { bound: true, ..self });
        }
        Err(SimError::Workload(
            "a switch of layer 4 does not count a connection after its first object: use random, rr, wrr-num or \
             wrr-time, or a switch of layer 7",
        ))
    }

    fn page(&self, number: u32) -> &'s Page {
        let session = &self.sessions.sessions[number as usize];
        &self.sessions.pages[(session.pages.start + self.users[number as usize].page) as usize]
    }

    /// Returns the class of a page, which is its base page's.
    fn class(&self, page: &Page) -> ServiceClass {
        let base = self.sessions.objects_of(page).first();
        base.map_or(ServiceClass::default(), |item| self.sessions.items[*item as usize].class)
    }

    fn ask(&self, number: u32, connection: ClientConnection) -> ClientRequest {
        let objects = self.sessions.objects_of(self.page(number));
        ClientRequest {
            connection,
            ..ClientRequest::new(objects[self.users[number as usize].objects as usize], number)
        }
    }

    fn begin(&mut self, now: Time, number: u32) -> Option<ClientRequest> {
        if now >= self.until {
            return None;
        }
        let secure = self.page(number).secure;
        let user = &mut self.users[number as usize];
        (user.begun, user.objects) = (now, 0);
        let keys = secure && (self.keys != KeyExchange::Session || !user.has_keys);
        user.has_keys |= secure;
        Some(self.ask(number, ClientConnection { bound: None, opens: true, keys }))
    }

    fn started_at(&self) -> Option<Time> {
        let session = self.sessions.sessions.get(self.next)?;
        Some(Time::from_nanos(session.at_ns)).filter(|at| *at < self.until)
    }
}

impl RequestSource for SessionUsers<'_> {
    fn next_time(&self) -> Option<Time> {
        let thought = self.thinking.peek().map(|user| user.0.0);
        [self.started_at(), thought].into_iter().flatten().min()
    }

    fn next_request(&mut self, now: Time) -> Option<ClientRequest> {
        if self.started_at().is_some_and(|at| at <= now) {
            self.next += 1;
            return self.begin(now, (self.next - 1) as u32);
        }
        let Reverse((_, number)) = self.thinking.pop()?;
        self.begin(now, number)
    }

    fn handle_end(&mut self, now: Time, tag: u32, served: Option<NodeId>, requests: &mut Vec<ClientRequest>) {
        if served.is_none() {
            return;
        }
        let page = self.page(tag);
        self.users[tag as usize].objects += 1;
        let user = self.users[tag as usize];
        if (user.objects as usize) < page.objects.len() {
            let bound = served.filter(|_| self.bound);
            let keys = page.secure && self.keys == KeyExchange::Object;
            requests.push(self.ask(tag, ClientConnection { bound, opens: false, keys }));
            return;
        }
        if user.begun >= self.from {
            let delay_ns = now.as_nanos() - user.begun.as_nanos();
            self.log.all.note(delay_ns);
            self.log.of_class[self.class(page).index()].note(delay_ns);
        }
        let pages = &self.sessions.sessions[tag as usize].pages;
        if user.page + 1 < pages.end - pages.start {
            self.users[tag as usize].page += 1;
            let at = Time::from_nanos(now.as_nanos().saturating_add(page.think_ns));
            self.thinking.push(Reverse((at, tag)));
        }
    }

    fn page_delays(&self) -> Option<Delays> {
        Some(self.log.all.delays())
    }
}

/// Statistics of users with profiles.
#[derive(Clone, Debug, Default)]
pub(crate) struct UserStats {
    /// Times to connect.
    pub(crate) connects: DelayLog,
    /// Delays of requests, from the first SYN.
    pub(crate) delays: DelayLog,
    /// Requests refused, and requests whose connection failed.
    pub(crate) failed: u64,
}

/// The time to the first retransmission of a SYN, in ns. Each further one takes twice as long.
const SYN_AGAIN_NS: u64 = 3_000_000_000;
/// The number of retransmissions of a SYN.
const SYN_RETRIES: u32 = 3;

/// Users who replay profiles.
#[derive(Debug)]
pub(crate) struct ProfileUsers<'s> {
    profiles: &'s Profiles,
    users: u32,
    /// The number of requests in progress from which a SYN is lost.
    backlog: u32,
    in_progress: u32,
    /// The time from the start of the run in which all users make their first request, in ns.
    ramp_ns: u64,
    from: Time,
    until: Time,
    started: u32,
    pausing: BinaryHeap<Reverse<(Time, u32)>>,
    state: Vec<ProfileUser>,
    stats: &'s mut UserStats,
}

/// The state of a user with a profile.
#[derive(Clone, Copy, Debug, Default)]
struct ProfileUser {
    /// The number of requests that have ended.
    done: u32,
    /// The time of the first SYN of the current request.
    begun: Time,
    /// The number of lost SYNs of the current request.
    lost: u32,
}

impl<'s> ProfileUsers<'s> {
    /// Creates `users` users, who all arrive within `ramp`. Requests that begin within `window` are counted
    /// in `stats`.
    pub(crate) fn new(
        profiles: &'s Profiles,
        users: u32,
        backlog: u32,
        ramp: Time,
        window: core::ops::Range<Time>,
        stats: &'s mut UserStats,
    ) -> Self {
        Self {
            profiles,
            users,
            backlog,
            in_progress: 0,
            ramp_ns: ramp.as_nanos(),
            from: window.start,
            until: window.end,
            started: 0,
            pausing: BinaryHeap::new(),
            state: vec![ProfileUser::default(); users as usize],
            stats,
        }
    }

    /// Returns the user's current visit in its profile. Users of one profile are spread over it.
    fn visit(&self, user: u32) -> larder_trace::synth::profiles::Visit {
        let profile = &self.profiles.profiles[user as usize % self.profiles.profiles.len()];
        let lap = user as usize / self.profiles.profiles.len();
        profile[(self.state[user as usize].done as usize + lap * 7) % profile.len()]
    }

    /// Sends a SYN. Returns the request if the connection is accepted.
    fn connect(&mut self, now: Time, user: u32) -> Option<ClientRequest> {
        let state = &mut self.state[user as usize];
        if state.lost == 0 {
            if now >= self.until {
                return None;
            }
            state.begun = now;
        }
        let (begun, lost) = (state.begun, state.lost);
        if self.in_progress < self.backlog {
            state.lost = 0;
            self.in_progress += 1;
            if begun >= self.from {
                self.stats.connects.note(now.as_nanos() - begun.as_nanos());
            }
            return Some(ClientRequest::new(self.visit(user).item, user));
        }
        if lost < SYN_RETRIES {
            state.lost += 1;
            self.pausing.push(Reverse((Time::from_nanos(now.as_nanos() + (SYN_AGAIN_NS << lost)), user)));
        } else {
            self.stats.failed += u64::from(begun >= self.from);
            self.pause(now, user);
        }
        None
    }

    /// Ends a user's request. The user then pauses.
    fn pause(&mut self, now: Time, user: u32) {
        let visit = self.visit(user);
        let state = &mut self.state[user as usize];
        (state.done, state.lost) = (state.done + 1, 0);
        self.pausing.push(Reverse((Time::from_nanos(now.as_nanos().saturating_add(visit.pause_ns)), user)));
    }
}

impl RequestSource for ProfileUsers<'_> {
    fn next_time(&self) -> Option<Time> {
        let first = Time::from_nanos(u64::from(self.started) * self.ramp_ns / u64::from(self.users.max(1)));
        let first = (self.started < self.users && first < self.until).then_some(first);
        [first, self.pausing.peek().map(|user| user.0.0)].into_iter().flatten().min()
    }

    fn next_request(&mut self, now: Time) -> Option<ClientRequest> {
        if self.pausing.peek().is_some_and(|user| user.0.0 <= now) {
            let Reverse((_, user)) = self.pausing.pop()?;
            return self.connect(now, user);
        }
        self.started += 1;
        self.connect(now, self.started - 1)
    }

    fn handle_end(
        &mut self,
        now: Time,
        user: u32,
        served: Option<NodeId>,
        _requests: &mut Vec<ClientRequest>,
    ) {
        self.in_progress -= 1;
        let begun = self.state[user as usize].begun;
        if begun >= self.from {
            match served {
                Some(_) => self.stats.delays.note(now.as_nanos() - begun.as_nanos()),
                None => self.stats.failed += 1,
            }
        }
        self.pause(now, user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_trace::synth::profiles::{ProfileKind, profiles};
    use larder_trace::synth::sessions::{SessionRecipe, Site};

    /// Runs a source whose every request takes 1 ms at node 3. Returns the requests by time.
    fn drive(source: &mut dyn RequestSource) -> Vec<(Time, ClientRequest)> {
        let mut ends: BinaryHeap<Reverse<(Time, u64, u32)>> = BinaryHeap::new();
        let mut asked = Vec::new();
        let mut sequence = 0_u64;
        loop {
            let end = ends.peek().map(|Reverse((at, ..))| *at);
            let mut requests = Vec::new();
            let now = match (source.next_time(), end) {
                (Some(at), end) if end.is_none_or(|end| at <= end) => {
                    requests.extend(source.next_request(at));
                    at
                }
                (_, Some(_)) => {
                    let Some(Reverse((at, _, tag))) = ends.pop() else { unreachable!("peeked") };
                    source.handle_end(at, tag, Some(NodeId(3)), &mut requests);
                    at
                }
                _ => return asked,
            };
            for ask in requests {
                sequence += 1;
                ends.push(Reverse((Time::from_nanos(now.as_nanos() + 1_000_000), sequence, ask.tag)));
                asked.push((now, ask));
            }
        }
    }

    fn create_sessions() -> Sessions {
        let recipe =
            SessionRecipe { span_s: 20.0, sessions_per_s: 10.0, ..SessionRecipe::cap01(Site::CommerceA) };
        recipe.sessions(1).expect("in range")
    }

    #[test]
    fn pages_are_fetched_object_by_object() {
        let sessions = create_sessions();
        let mut log = PageLog::default();
        let window = Time::ZERO..Time::from_secs(10_000);
        let asked = drive(&mut SessionUsers::new(&sessions, window, &mut log));
        // Every object of every page is requested once, in the order of its session.
        for (number, session) in sessions.sessions.iter().enumerate() {
            let pages = &sessions.pages[session.pages.start as usize..session.pages.end as usize];
            let wanted: Vec<u32> = pages.iter().flat_map(|page| sessions.objects_of(page)).copied().collect();
            let mine: Vec<&(Time, ClientRequest)> =
                asked.iter().filter(|(_, ask)| ask.tag == number as u32).collect();
            assert_eq!(mine.iter().map(|(_, ask)| ask.item).collect::<Vec<u32>>(), wanted);
            assert_eq!(mine[0].0, Time::from_nanos(session.at_ns));
            assert_eq!(mine.iter().filter(|(_, ask)| ask.connection.opens).count(), pages.len());
            let keys = mine.iter().filter(|(_, ask)| ask.connection.keys).count();
            assert_eq!(keys, usize::from(pages.iter().any(|page| page.secure)), "once a session");
            assert!(mine.iter().all(|(_, ask)| ask.connection.bound.is_none()));
        }
        let objects = sessions.objects.len() as f64 / sessions.pages.len() as f64;
        assert_eq!(log.all.delays().count, sessions.pages.len() as u64);
        let secure = sessions.pages.iter().filter(|page| page.secure).count() as u64;
        assert_eq!(log.of_class[ServiceClass::Cb.index()].delays().count, secure);
        assert_eq!(
            log.of_class[ServiceClass::N.index()].delays().count,
            sessions.pages.len() as u64 - secure
        );
        assert!((log.all.delays().mean_s - objects * 1e-3).abs() < 1e-9, "each object takes a millisecond");
    }

    #[test]
    fn keys_are_exchanged_by_session_page_or_object() {
        let sessions = create_sessions();
        let count = |keys| {
            let mut log = PageLog::default();
            let window = Time::ZERO..Time::from_secs(10_000);
            let asked = drive(&mut SessionUsers::new(&sessions, window, &mut log).with_keys(keys));
            asked.iter().filter(|(_, ask)| ask.connection.keys).count()
        };
        let secure = || sessions.pages.iter().filter(|page| page.secure);
        let objects: usize = secure().map(|page| page.objects.len()).sum();
        assert_eq!((count(KeyExchange::Page), count(KeyExchange::Object)), (secure().count(), objects));
        assert!(count(KeyExchange::Session) < secure().count());
    }

    #[test]
    fn a_bound_connection_stays_and_the_window_is_kept() {
        let sessions = create_sessions();
        let mut log = PageLog::default();
        let window = Time::from_secs(5)..Time::from_secs(15);
        let users = SessionUsers::new(&sessions, window, &mut log);
        let asked = drive(&mut users.bind_connections(PolicyKind::WrrNum).expect("it goes by reports"));
        for (now, ask) in &asked {
            assert_eq!(ask.connection.bound, (!ask.connection.opens).then_some(NodeId(3)));
            assert!(!ask.connection.opens || *now < Time::from_secs(15));
        }
        let measured =
            asked.iter().filter(|(now, ask)| ask.connection.opens && *now >= Time::from_secs(5)).count();
        assert_eq!(log.all.delays().count, measured as u64);
    }

    #[test]
    fn policies_that_go_by_the_dispatchers_counts_are_not_put_behind_layer_4() {
        let sessions = create_sessions();
        for policy in PolicyKind::ALL {
            let mut log = PageLog::default();
            let users = SessionUsers::new(&sessions, Time::ZERO..Time::from_secs(1), &mut log);
            let goes = !matches!(users.bind_connections(policy), Err(SimError::Workload(_)));
            let blind = ["random", "rr", "wrr-num", "wrr-time"].contains(&policy.name());
            assert_eq!(goes, blind, "{}", policy.name());
        }
    }

    #[test]
    fn profiles_are_replayed_with_their_pauses() {
        let profiles = profiles(ProfileKind::Baseline, 1);
        let mut stats = UserStats::default();
        let window = Time::ZERO..Time::from_secs(100);
        let ramp = Time::from_secs(10);
        let asked = drive(&mut ProfileUsers::new(&profiles, 600, 600, ramp, window, &mut stats));
        for user in [0, 17, 599] {
            let mine: Vec<&(Time, ClientRequest)> = asked.iter().filter(|(_, ask)| ask.tag == user).collect();
            assert_eq!(mine[0].0, Time::from_nanos(u64::from(user) * 10_000_000_000 / 600));
            // Requests are 2 s and 1 ms apart, up to 100 s.
            let apart = mine.windows(2).map(|pair| pair[1].0.as_nanos() - pair[0].0.as_nanos());
            assert!(apart.into_iter().all(|ns| ns == 2_001_000_000));
            assert!(mine.len() >= 44, "{}", mine.len());
            let profile = &profiles.profiles[user as usize % 500];
            let from = if user < 500 { 0 } else { 7 };
            assert_eq!(mine[3].1.item, profile[from + 3].item);
        }
        assert_eq!(stats.delays.delays().count, asked.len() as u64);
        assert!((stats.delays.delays().mean_s - 0.001).abs() < 1e-9);
        assert_eq!((stats.connects.delays().max_s, stats.failed), (0.0, 0));
    }

    #[test]
    fn a_lost_syn_is_sent_again() {
        let profiles = profiles(ProfileKind::Baseline, 1);
        let run = |users, backlog| {
            let mut stats = UserStats::default();
            let window = Time::ZERO..Time::from_secs(1);
            let mut source = ProfileUsers::new(&profiles, users, backlog, Time::ZERO, window, &mut stats);
            let asked = drive(&mut source);
            (asked.iter().map(|(at, _)| at.as_nanos()).collect::<Vec<u64>>(), stats)
        };
        // All users connect at the same time, and a request takes 1 ms.
        let (times, stats) = run(3, 2);
        assert_eq!(times, [0, 0, 3_000_000_000]);
        assert_eq!((stats.connects.delays().max_s, stats.failed), (3.0, 0));
        // The retransmissions of three users meet again after 3, 6 and 12 s. The last user's fail.
        let (times, stats) = run(5, 1);
        assert_eq!(times, [0, 3_000_000_000, 9_000_000_000, 21_000_000_000]);
        assert_eq!((stats.connects.delays().max_s, stats.failed), (21.0, 1));
    }
}
