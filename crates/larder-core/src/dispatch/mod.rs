//! The dispatcher: runs a policy, counts load, admits requests.
//!
//! It is a state machine. An input is a method call with the time `now`; the decision is its result. The live switch, the
//! peers and the simulator drive this one implementation. All methods take `&self` and may be called from several
//! threads. If one thread calls them, the same inputs give the same outputs on every machine.
//!
//! A request's life: [`Dispatcher::arrive`] starts it at a node, makes it wait, or refuses it. A request that waits
//! is started or refused by some later call, which reports it in `started`. A request that has started ends with
//! [`Dispatcher::finish`]; between the two its node may be changed by [`Dispatcher::retry`].
//!
//! Requests may take different [routes](RouteSpec), each with a policy, settings and a group of nodes of its own. The
//! default route takes what no other takes and uses all nodes.
//!
//! The load of a node is the number of requests started there and not finished, until the last byte is sent or the
//! reply is aborted. Kept-alive connections without a request count nothing.
//!
//! Admission is meant for requests that come and go. One that lasts ([`Dispatcher::become_long_lived`]) stays load of its
//! node, but leaves the admission limit and has a limit of its own.

mod admission;
mod apply;
mod arrival;
mod change;
mod intercept;
mod long_lived;
mod membership;
mod route;
mod settings;
mod shared;
mod signal;
mod wish;

pub use admission::{Cancel, Refusal};
pub use arrival::{Arrival, Decision, Explanation, Started};
pub use change::{Cause, Change};
pub use route::RouteSpec;
pub use settings::{Admission, Settings};

pub(crate) use intercept::Interceptor;

pub use crate::policy::{CacheEvent, Exclude, Found, Request, Served, Tie};
pub use crate::range::SettingsError;

use crate::id::{NodeId, RouteId, TargetId, Ticket};
use crate::nodes::outstanding::Outstanding;
use crate::nodes::{Elsewhere, GroupId, NodeSpec, Nodes, Sight, lock};
use crate::policy::{Memory, Reason};
use crate::range::in_range;
use crate::source::Source;
use crate::time::Time;
use admission::{Entered, Gate, Waiter};
use arc_swap::ArcSwapOption;
use core::sync::atomic::{AtomicU64, Ordering};
use route::Route;
use std::sync::Mutex;
use wish::{Wished, wished};

/// The dispatcher.
#[derive(Debug)]
pub struct Dispatcher {
    nodes: Nodes,
    /// The default route first.
    routes: Box<[Route]>,
    /// One per group, that of all nodes first.
    gates: Box<[Gate]>,
    /// The thresholds from which the limits were last derived: T_low in the upper half, T_high in the lower.
    limits_from: AtomicU64,
    refitting: Mutex<()>,
    /// What other switches have; `None` where there never were any.
    elsewhere: ArcSwapOption<Elsewhere>,
    interceptor: Option<Box<dyn Interceptor>>,
}

impl Dispatcher {
    /// A dispatcher with the default route alone over these nodes, which are up and share the targets from the start.
    ///
    /// # Errors
    /// A setting out of range, or two nodes of one name, or more nodes than `nodes_max`.
    pub fn new(settings: Settings, nodes: &[NodeSpec]) -> Result<Self, SettingsError> {
        Self::with_routes(settings, Vec::new(), nodes)
    }

    /// A dispatcher with `settings` for the default route, and further routes, which are numbered from 1.
    ///
    /// # Errors
    /// As [`Dispatcher::new`], or there are more than [`Dispatcher::ROUTES_MAX`] routes.
    pub fn with_routes(
        settings: Settings,
        routes: Vec<RouteSpec>,
        nodes: &[NodeSpec],
    ) -> Result<Self, SettingsError> {
        let more = routes.len();
        in_range("routes", more as u64, more < Self::ROUTES_MAX, "at most 4095 beside the default")?;
        let mut specs: Vec<RouteSpec> =
            core::iter::once(RouteSpec { group: GroupId::ALL, settings }).chain(routes).collect();
        specs.iter().try_for_each(|spec| spec.settings.validate())?;
        // What a policy keeps for each node must have room for all that the table takes.
        let nodes_max = specs[0].settings.nodes_max;
        specs.iter_mut().for_each(|spec| spec.settings.nodes_max = nodes_max);
        let last = specs.iter().map(|spec| spec.group).max().unwrap_or_default();
        let first = &specs[0].settings;
        let table = Nodes::with_groups(first.nodes_max, first.join_pace(), last);
        for spec in nodes {
            table.join(Time::ZERO, spec.clone(), true, Source::LIVE, |_| {})?;
        }
        let groups = last.index() + 1;
        let gate = |group| Gate::new(group, groups, first.queue_max, first.queue_timeout);
        let gates = (0..groups).map(gate).collect();
        let routes = specs.into_iter().map(Route::new).collect();
        let (limits_from, refitting) = (AtomicU64::new(0), Mutex::new(()));
        let elsewhere = ArcSwapOption::empty();
        let dispatcher =
            Self { nodes: table, routes, gates, limits_from, refitting, elsewhere, interceptor: None };
        dispatcher.set_limits();
        Ok(dispatcher)
    }

    /// The most routes there can be, the default one included.
    pub const ROUTES_MAX: usize = 4_096;

    /// A request arrives.
    pub fn arrive(&self, now: Time, request: Request) -> Arrival {
        match &self.interceptor {
            None => self.enter(now, &request, self.sight_for(&request, Source::LIVE)),
            Some(interceptor) => self.intercepted(&**interceptor, now, Cause::Arrive, &request),
        }
    }

    /// The forwarding plane has started a request at `node` by a decision that was made for its target a moment ago, without
    /// asking. The request is there, so it is counted whatever the limits say, and ended like any other. False, and nothing
    /// is counted, if there is no such node.
    pub fn reuse(&self, now: Time, request: Request, node: NodeId) -> bool {
        self.decide(now, Cause::Reuse(node), request).settled().is_ok()
    }

    /// A request has failed at `failed` and may be tried elsewhere: its load moves to another node that
    /// `request.exclude` and `failed` leave.
    ///
    /// # Errors
    /// [`Refusal::NoNode`] if none is left. The request then has no load any more but still its place among the
    /// admitted: end it with [`Dispatcher::abandon`] or [`Dispatcher::abandon_on`].
    pub fn retry(&self, now: Time, failed: NodeId, request: Request) -> Result<Decision, Refusal> {
        self.end(failed);
        let request = Request { exclude: request.exclude.with(failed), ..request };
        self.decide(now, Cause::Retry(failed), request).settled()
    }

    /// A request of the default route ends at its node: the last byte is sent, or the reply aborted. Requests that waited
    /// for it are appended to `started`.
    pub fn finish(&self, now: Time, node: NodeId, started: &mut Vec<Started>) {
        self.finish_on(now, RouteId::DEFAULT, node, started);
    }

    /// Like [`Dispatcher::finish`], for a request of any route.
    pub fn finish_on(&self, now: Time, route: RouteId, node: NodeId, started: &mut Vec<Started>) {
        self.end(node);
        self.abandon_on(now, route, started);
    }

    /// An admitted request of the default route ends that is at no node, after a failed [`Dispatcher::retry`].
    pub fn abandon(&self, now: Time, started: &mut Vec<Started>) {
        self.abandon_on(now, RouteId::DEFAULT, started);
    }

    /// Like [`Dispatcher::abandon`], for a request of any route.
    pub fn abandon_on(&self, now: Time, route: RouteId, started: &mut Vec<Started>) {
        let group = self.route(route).group;
        let gate = &self.gates[group.index()];
        if gate.leave(self.nodes.outstanding(group)) {
            self.admit(now, gate, started);
        }
    }

    /// The client of a waiting request is gone.
    pub fn cancel(&self, ticket: Ticket) -> Cancel {
        self.gate_of(ticket).cancel(ticket)
    }

    /// Takes the requests out of the queue whose deadline is not after `now`.
    pub fn expire(&self, now: Time, expired: &mut Vec<Ticket>) {
        self.gates.iter().for_each(|gate| gate.expire(now, expired));
    }

    /// When [`Dispatcher::expire`] must be called next; `None` if nothing waits.
    pub fn next_deadline(&self) -> Option<Time> {
        self.gates.iter().filter_map(Gate::next_deadline).min()
    }

    /// The nodes.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// The default route's settings.
    pub fn settings(&self) -> &Settings {
        &self.routes[0].settings
    }

    /// Number of routes, the default one included.
    pub fn routes(&self) -> usize {
        self.routes.len()
    }

    /// A route's settings; those of the default route if there is no such route.
    pub fn settings_of(&self, route: RouteId) -> &Settings {
        &self.route(route).settings
    }

    /// T_low and T_high of a route as they are in force, in connections: those that its policy has found out, else the
    /// route's settings.
    pub fn thresholds_of(&self, route: RouteId) -> (u32, u32) {
        let Route { policy, settings, .. } = self.route(route);
        policy.thresholds().unwrap_or((settings.t_low, settings.t_high))
    }

    /// The group of nodes that a route uses.
    pub fn group_of(&self, route: RouteId) -> GroupId {
        self.route(route).group
    }

    /// Requests admitted and not ended.
    pub fn outstanding(&self) -> u32 {
        self.gates.iter().map(|gate| self.inside(gate).count()).sum()
    }

    /// Requests admitted and not ended of the routes that use `group`.
    pub fn outstanding_in(&self, group: GroupId) -> u32 {
        self.nodes.outstanding(group).count()
    }

    /// S: how many requests of the routes that use all nodes may be outstanding. `u32::MAX` if there is no limit.
    pub fn admission_limit(&self) -> u32 {
        self.admission_limit_in(GroupId::ALL)
    }

    /// S of the routes that use `group`.
    pub fn admission_limit_in(&self, group: GroupId) -> u32 {
        self.nodes.outstanding(group).limit()
    }

    /// Requests waiting for admission.
    pub fn queued(&self) -> usize {
        self.gates.iter().map(Gate::queued).sum()
    }

    /// Requests waiting for admission on the routes that use `group`.
    pub fn queued_in(&self, group: GroupId) -> usize {
        self.gates.get(group.index()).map_or(0, Gate::queued)
    }

    /// Targets whose servers are remembered.
    pub fn targets_known(&self) -> usize {
        self.routes.iter().map(|route| route.policy.targets()).sum()
    }

    /// Targets of a route whose servers are remembered.
    pub fn targets_of(&self, route: RouteId) -> usize {
        self.route(route).policy.targets()
    }

    /// What a route's policy has learned.
    pub fn memory(&self, route: RouteId) -> Memory {
        self.route(route).policy.memory(self.sight(route, Source::LIVE))
    }

    /// Lets a route's policy go on from what another has learned; before the first decision. Not while a run is recorded:
    /// the record would not have it.
    pub fn remember(&self, route: RouteId, memory: &Memory) {
        self.route(route).policy.remember(memory, self.sight(route, Source::LIVE));
        self.follow_thresholds();
    }

    /// Whether some route's policy mirrors the nodes' caches and so wants [`Dispatcher::cache_event`].
    pub fn mirrors_caches(&self) -> bool {
        self.routes.iter().any(|route| route.kind().mirrors_caches())
    }

    /// What is known of a target and what would be decided now. Changes nothing.
    pub fn explain(&self, now: Time, target: TargetId) -> Explanation {
        self.explain_request(now, &Request::new(target))
    }

    /// Like [`Dispatcher::explain`], for a request of some class, route, origin or history.
    pub fn explain_request(&self, now: Time, request: &Request) -> Explanation {
        let (route, sight) = (self.route(request.route), self.sight_for(request, Source::LIVE));
        Explanation {
            target: request.target,
            policy: route.kind(),
            known: route.policy.known(request.target, sight),
            decision: match self.wish_of(request, sight) {
                Wished::Granted(decision) => Some(decision),
                wished => wished.instead(route.policy.peek(now, request, sight)),
            },
        }
    }

    fn route(&self, route: RouteId) -> &Route {
        self.routes.get(route.index()).unwrap_or(&self.routes[0])
    }

    /// The nodes as a route's decisions see them.
    #[inline]
    fn sight<'a>(&'a self, route: RouteId, source: Source<'a>) -> Sight<'a> {
        Sight::of(&self.nodes, source, route, self.route(route).group)
    }

    /// The nodes as the decision about a request sees them. Long-lived requests count for a request that is itself likely to
    /// last, and for policies that only spread load. They do not count where a policy places by content: most are idle, and
    /// thresholds meant for requests that come and go would send every target from node to node.
    #[inline]
    fn sight_for<'a>(&'a self, request: &Request, source: Source<'a>) -> Sight<'a> {
        let counts = request.lasting || !self.route(request.route).kind().is_by_target();
        self.sight(request.route, source).counting(counts)
    }

    fn gate_of(&self, ticket: Ticket) -> &Gate {
        &self.gates[(ticket.0 % self.gates.len() as u64) as usize]
    }

    fn inside(&self, gate: &Gate) -> &Outstanding {
        self.nodes.outstanding(gate.group())
    }

    /// Puts something around every decision and every change from now on.
    pub(crate) fn intercept(self, interceptor: Box<dyn Interceptor>) -> Self {
        Self { interceptor: Some(interceptor), ..self }
    }

    /// Makes a decision.
    fn decide(&self, now: Time, cause: Cause, request: Request) -> Arrival {
        match &self.interceptor {
            None => self.decision(now, cause, &request, Source::LIVE),
            Some(interceptor) => self.intercepted(&**interceptor, now, cause, &request),
        }
    }

    #[cold]
    fn intercepted(
        &self,
        interceptor: &dyn Interceptor,
        now: Time,
        cause: Cause,
        request: &Request,
    ) -> Arrival {
        interceptor.decide(now, cause, request, &|source| self.decision(now, cause, request, source))
    }

    /// Makes a change that `change` describes once it has taken effect.
    #[inline]
    fn change<E>(
        &self,
        now: Time,
        change: impl FnOnce() -> Change,
        act: impl FnOnce(Source<'_>) -> Result<NodeId, E>,
    ) -> Result<NodeId, E> {
        let Some(interceptor) = &self.interceptor else { return act(Source::LIVE) };
        let (mut parts, mut result) = (Some((change, act)), None);
        interceptor.change(now, &mut |source| {
            let (change, act) = parts.take()?;
            let acted = act(source);
            let told = acted.as_ref().ok().map(|node| (change(), *node));
            result = Some(acted);
            told
        });
        result.expect("an interceptor makes the change that it stands around")
    }

    /// Decides: all that a decision reads passes `source`, so that it can be made anew.
    pub(crate) fn decision(&self, now: Time, cause: Cause, request: &Request, source: Source<'_>) -> Arrival {
        let sight = self.sight_for(request, source);
        match cause {
            Cause::Arrive => self.enter(now, request, sight),
            Cause::Admit(_, deadline) if deadline <= now => Arrival::Refused(Refusal::Deadline),
            Cause::Admit(..) | Cause::Retry(_) => self.start(now, request, sight),
            Cause::Reuse(node) if node.index() < self.nodes.slots() => {
                sight.enter_anyway();
                sight.start(node);
                Arrival::Start(Decision { node, reason: Reason::Reuse })
            }
            Cause::Reuse(_) => Arrival::Refused(Refusal::NoNode),
        }
    }

    #[inline(always)]
    fn enter(&self, now: Time, request: &Request, sight: Sight<'_>) -> Arrival {
        if sight.open_count() == 0 {
            return Arrival::Refused(Refusal::NoNode);
        }
        let gate = &self.gates[self.route(request.route).group.index()];
        match Entered::read(sight, || gate.enter(now, request, self.inside(gate))) {
            Entered::Now => {
                let outcome = self.start(now, request, sight);
                if !matches!(outcome, Arrival::Start(_)) {
                    sight.leave();
                }
                outcome
            }
            // The last node may have gone, and the queue been emptied, just before this request joined it.
            Entered::Waits(ticket) if sight.open_count() == 0 && gate.cancel(ticket) == Cancel::Removed => {
                Arrival::Refused(Refusal::NoNode)
            }
            Entered::Waits(ticket) => Arrival::Wait(ticket),
            Entered::Full => Arrival::Refused(Refusal::QueueFull),
        }
    }

    #[inline(always)]
    fn start(&self, now: Time, request: &Request, sight: Sight<'_>) -> Arrival {
        let wished = self.wish_of(request, sight);
        if let Wished::Granted(decision) = wished {
            sight.start(decision.node);
            return Arrival::Start(decision);
        }
        match wished.instead(self.pick(now, request, sight)) {
            Some(decision) => Arrival::Start(decision),
            None => Arrival::Refused(Refusal::NoNode),
        }
    }

    /// The outcome of a request's wish. Nothing is counted.
    #[inline]
    fn wish_of(&self, request: &Request, sight: Sight<'_>) -> Wished {
        wished(request, sight, || self.thresholds_of(request.route))
    }

    /// The policy's decision, or the least loaded node. A policy looks at one node after another, or at a list that it has made
    /// of the open ones: while a group goes over to its backups or back it may find none, though at every moment one is open.
    #[inline(always)]
    fn pick(&self, now: Time, request: &Request, sight: Sight<'_>) -> Option<Decision> {
        let picked = self.route(request.route).policy.pick(now, request, sight);
        picked.or_else(|| {
            let changes = sight.is_live() && request.exclude.is_empty();
            let tries = (0..4).filter(|_| changes && sight.open_count() > 0);
            let node = tries.filter_map(|_| sight.least(sight.position(request.target.0))).next()?;
            sight.start(node);
            Some(Decision { node, reason: Reason::LeastLoaded })
        })
    }

    fn end(&self, node: NodeId) {
        let was_there = self.nodes.end(node);
        debug_assert!(was_there, "a request ended at {node} that had not started there");
    }

    /// Starts waiting requests while there is room.
    fn admit(&self, now: Time, gate: &Gate, started: &mut Vec<Started>) {
        while let Some(Waiter { ticket, request, deadline }) = gate.next(self.inside(gate)) {
            let outcome = self.decide(now, Cause::Admit(ticket, deadline), request).settled();
            if outcome.is_err() {
                self.inside(gate).leave();
            }
            started.push(Started { ticket, outcome });
        }
    }

    /// Follows a change of membership.
    fn refit(&self, now: Time, started: &mut Vec<Started>) {
        self.set_limits();
        for gate in &self.gates {
            if self.nodes.open_in(gate.group()) == 0 {
                let refused = |ticket| Started { ticket, outcome: Err(Refusal::NoNode) };
                started.extend(gate.clear().into_iter().map(refused));
            } else {
                self.admit(now, gate, started);
            }
        }
    }

    /// Lets the limits follow thresholds that have changed.
    fn follow_thresholds(&self) {
        let (low, high) = self.thresholds();
        if self.limits_from.load(Ordering::Relaxed) != u64::from(low) << 32 | u64::from(high) {
            self.set_limits();
        }
    }

    fn set_limits(&self) {
        // One at a time: of two changes at once, the later one's sums must be the ones that stay.
        let _one = lock(&self.refitting);
        let (low, high) = self.thresholds();
        self.limits_from.store(u64::from(low) << 32 | u64::from(high), Ordering::Relaxed);
        for gate in &self.gates {
            self.inside(gate).set_limit(self.limit(gate.group()));
        }
    }

    /// The thresholds that limits follow while they change: those in force on the default route.
    fn thresholds(&self) -> (u32, u32) {
        self.thresholds_of(RouteId::DEFAULT)
    }

    /// How many requests of a group's routes may be outstanding. Where there are other switches, this one's part of it.
    fn limit(&self, group: GroupId) -> u32 {
        let total = match self.settings().admission {
            Admission::Unlimited => u32::MAX,
            Admission::Fixed(limit) => limit,
            Admission::Derived => self.derived_limit(group, self.thresholds()),
            Admission::Auto => self.auto_limit(group),
        };
        self.part_of(total, group)
    }

    /// S = (n - 1) T_high + T_low - 1 (LARD section 2.4) over the nodes of a group, each node's thresholds scaled by its
    /// weight; the node that counts with T_low is the heaviest, which keeps the sum on the safe side.
    fn derived_limit(&self, group: GroupId, (low, high): (u32, u32)) -> u32 {
        let (sum, max) = (self.nodes.weight_sum(group), self.nodes.weight_max(group));
        let high = u64::from(high) * (sum - max.min(sum));
        let low = u64::from(low) * max;
        u32::try_from(((high + low) / 1000).saturating_sub(1)).unwrap_or(u32::MAX).max(1)
    }

    /// [`Admission::Auto`].
    fn auto_limit(&self, group: GroupId) -> u32 {
        let routes = self.routes.iter().filter(|route| route.group == group);
        let by_threshold = routes.filter_map(|route| route.policy.thresholds()).max_by_key(|(_, high)| *high);
        let per_node = match by_threshold {
            Some(thresholds) if self.nodes.open_in(group) > 1 => {
                return self.derived_limit(group, thresholds);
            }
            // The last node of several gets no more than it would carry beside the others.
            Some((_, high)) if self.nodes.members_in(group) > 1 => high,
            Some((_, high)) => Admission::PER_NODE.max(high),
            None => Admission::PER_NODE,
        };
        let total = u64::from(per_node) * self.nodes.weight_sum(group) / 1000;
        u32::try_from(total).unwrap_or(u32::MAX).max(1)
    }
}

#[cfg(test)]
mod long_lived_tests;
#[cfg(test)]
mod route_tests;
#[cfg(test)]
mod tests;
