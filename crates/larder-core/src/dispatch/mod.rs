//! The dispatcher: runs a policy, counts load and admits requests.
//!
//! The dispatcher is a state machine. An input is a method call with the time `now`, and the decision is its result.
//! The live switch, the peers and the simulator use this implementation. All methods take `&self` and may be called
//! from several threads. If one thread makes all calls, the same inputs give the same outputs on every machine.
//!
//! A request's life: [`Dispatcher::arrive`] starts the request at a node, queues it or refuses it. A later call
//! starts or refuses a queued request and reports it in `started`. [`Dispatcher::finish`] ends a started request.
//! Before that, [`Dispatcher::retry`] may move it to another node.
//!
//! Requests may take different [routes](RouteSpec). Each route has its own policy, settings and group of nodes. The
//! default route takes the requests that no other route takes, and uses all nodes.
//!
//! The load of a node is the number of requests started there and not finished. A request finishes when its last
//! byte is sent or its reply is aborted. Kept-alive connections without a request do not count.
//!
//! # Example
//! The admission limit is 1 here, so the second request waits, and starts when the first ends:
//!
//! ```
//! use larder_core::dispatch::{Admission, Arrival, Dispatcher, Request, Settings};
//! use larder_core::{NodeSpec, TargetId, Time};
//!
//! let settings = Settings { admission: Admission::Fixed(1), ..Settings::default() };
//! let dispatcher = Dispatcher::new(settings, &["a", "b"].map(NodeSpec::named))?;
//! let (one, two) = (Request::new(TargetId(1)), Request::new(TargetId(2)));
//! let Arrival::Start(first) = dispatcher.arrive(Time::ZERO, one) else { unreachable!() };
//! let Arrival::Wait(ticket) = dispatcher.arrive(Time::ZERO, two) else { unreachable!() };
//!
//! let mut started = Vec::new();
//! dispatcher.finish(Time::from_millis(3), first.node, &mut started);
//! assert_eq!(started[0].ticket, ticket);
//! let second = started[0].outcome.expect("a node is up");
//!
//! // The request fails at its node, and goes to the other node.
//! let retried = dispatcher.retry(Time::from_millis(4), second.node, two).expect("another node is up");
//! assert_ne!(retried.node, second.node);
//!
//! // An explanation is the decision that would be made now, with the stored servers of the target.
//! let explained = dispatcher.explain(Time::from_millis(5), TargetId(1));
//! assert_eq!(explained.known.expect("it was placed").servers, [first.node]);
//! assert_eq!(explained.decision.expect("a node is up").reason.name(), "local");
//! # Ok::<(), larder_core::dispatch::SettingsError>(())
//! ```
//!
//! # Long-lived requests
//! Admission is meant for short requests. A long-lived request ([`Dispatcher::become_long_lived`]) remains load of
//! its node, but leaves the admission limit. A separate limit applies to it.

mod admission;
mod affinity;
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

pub use admission::{Cancel, Refusal};
pub use arrival::{Arrival, Decision, DequeuedRequest, Explanation};
pub use change::{Cause, Change};
pub use route::RouteSpec;
pub use settings::{Admission, Settings};

pub(crate) use intercept::Interceptor;

pub use crate::policy::{CacheEvent, CacheResult, ExcludedNodes, ReplyFeedback, Request, RequestAffinity};
pub use crate::range::SettingsError;

use crate::id::{NodeId, RouteId, TargetId, Ticket};
use crate::nodes::admission_counter::AdmissionCounter;
use crate::nodes::{ClusterView, GroupId, NodeSpec, Nodes, PeerSwitchState};
use crate::policy::{LearnedState, Reason};
use crate::range::in_range;
use crate::read_source::ReadSource;
use crate::sync::Mutex;
use crate::sync::SwapOption;
use crate::time::Time;
use admission::{AdmissionOutcome, AdmissionQueue, QueuedRequest};
use affinity::{AffinityOutcome, evaluate_affinity};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use route::Route;

/// Chooses a node for each request, counts the load of the nodes, and limits the number of admitted requests.
#[derive(Debug)]
pub struct Dispatcher {
    nodes: Nodes,
    /// The routes, the default route first.
    routes: Box<[Route]>,
    /// One admission queue per group; the first is that of all nodes.
    queues: Box<[AdmissionQueue]>,
    /// The thresholds from which the limits were last derived: T_low in the upper half, T_high in the lower.
    limits_from: AtomicU64,
    limits_lock: Mutex<()>,
    /// The state of the other switches; `None` if there never were any.
    peer_switches: SwapOption<PeerSwitchState>,
    interceptor: Option<Box<dyn Interceptor>>,
}

impl Dispatcher {
    /// Creates a dispatcher that has only the default route. The nodes are up and share the targets from the start.
    ///
    /// # Errors
    /// A setting is out of range, two nodes have the same name, or there are more nodes than `nodes_max`.
    pub fn new(settings: Settings, nodes: &[NodeSpec]) -> Result<Self, SettingsError> {
        Self::with_routes(settings, Vec::new(), nodes)
    }

    /// Creates a dispatcher with `settings` for the default route, and further routes numbered from 1.
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
        // A policy's state per node must have room for all nodes of the table.
        let nodes_max = specs[0].settings.nodes_max;
        specs.iter_mut().for_each(|spec| spec.settings.nodes_max = nodes_max);
        let last = specs.iter().map(|spec| spec.group).max().unwrap_or_default();
        let first = &specs[0].settings;
        let table = Nodes::with_groups(first.nodes_max, first.join_pace(), last);
        for spec in nodes {
            table.join(Time::ZERO, spec.clone(), true, ReadSource::LIVE, |_| {})?;
        }
        let groups = last.index() + 1;
        let queue = |group| AdmissionQueue::new(group, groups, first.queue_max, first.queue_timeout);
        let queues = (0..groups).map(queue).collect();
        let routes = specs.into_iter().map(Route::new).collect();
        let (limits_from, limits_lock) = (AtomicU64::new(0), Mutex::new(()));
        let peer_switches = SwapOption::empty();
        let dispatcher =
            Self { nodes: table, routes, queues, limits_from, limits_lock, peer_switches, interceptor: None };
        dispatcher.set_limits();
        Ok(dispatcher)
    }

    /// The largest number of routes, including the default route.
    pub const ROUTES_MAX: usize = 4_096;

    /// Decides about an arriving request.
    pub fn arrive(&self, now: Time, request: Request) -> Arrival {
        match &self.interceptor {
            None => self.decide_arrival(now, &request, self.request_view(&request, ReadSource::LIVE)),
            Some(interceptor) => self.decide_intercepted(&**interceptor, now, Cause::Arrive, &request),
        }
    }

    /// Counts a request that the forwarding plane started at `node` by reusing a recent decision for its target. The
    /// request counts as admitted regardless of the limits, and ends like any other. Returns false and counts
    /// nothing if there is no such node.
    pub fn reuse(&self, now: Time, request: Request, node: NodeId) -> bool {
        self.decide(now, Cause::Reuse(node), request).settled().is_ok()
    }

    /// Retries a request that failed at `failed`. Its load moves to another node, which is neither `failed` nor in
    /// `request.exclude`.
    ///
    /// # Errors
    /// [`Refusal::NoNode`] if no node is left. The request then has no load but still counts as admitted: end it
    /// with [`Dispatcher::abandon`] or [`Dispatcher::abandon_on`].
    pub fn retry(&self, now: Time, failed: NodeId, request: Request) -> Result<Decision, Refusal> {
        self.end_at(failed);
        let request = Request { exclude: request.exclude.with(failed), ..request };
        self.decide(now, Cause::Retry(failed), request).settled()
    }

    /// Ends a request of the default route at its node: its last byte was sent, or its reply was aborted. Queued
    /// requests that can start now are appended to `started`.
    pub fn finish(&self, now: Time, node: NodeId, started: &mut Vec<DequeuedRequest>) {
        self.finish_on(now, RouteId::DEFAULT, node, started);
    }

    /// Ends a request of any route at its node; see [`Dispatcher::finish`].
    pub fn finish_on(&self, now: Time, route: RouteId, node: NodeId, started: &mut Vec<DequeuedRequest>) {
        self.end_at(node);
        self.abandon_on(now, route, started);
    }

    /// Ends a request of any route at its node if the node has a request. Returns false and changes nothing if it has
    /// none. For a caller whose requests come from outside and may end twice.
    pub fn try_finish_on(
        &self,
        now: Time,
        route: RouteId,
        node: NodeId,
        started: &mut Vec<DequeuedRequest>,
    ) -> bool {
        let ended = node.index() < self.nodes.slots() && self.nodes.end(node);
        if ended {
            self.abandon_on(now, route, started);
        }
        ended
    }

    /// Ends an admitted request of the default route that is at no node because [`Dispatcher::retry`] failed.
    pub fn abandon(&self, now: Time, started: &mut Vec<DequeuedRequest>) {
        self.abandon_on(now, RouteId::DEFAULT, started);
    }

    /// Ends an admitted request of any route; see [`Dispatcher::abandon`].
    pub fn abandon_on(&self, now: Time, route: RouteId, started: &mut Vec<DequeuedRequest>) {
        let group = self.route(route).group;
        let queue = &self.queues[group.index()];
        if queue.release(self.nodes.outstanding(group)) {
            self.start_queued(now, queue, started);
        }
    }

    /// Removes a queued request whose client has gone.
    pub fn cancel(&self, ticket: Ticket) -> Cancel {
        self.queue_of(ticket).cancel(ticket)
    }

    /// Removes the queued requests whose deadline is not after `now`, and appends their tickets to `expired`.
    pub fn expire(&self, now: Time, expired: &mut Vec<Ticket>) {
        self.queues.iter().for_each(|queue| queue.expire(now, expired));
    }

    /// Returns the time at which [`Dispatcher::expire`] must be called next; `None` if no request is queued.
    pub fn next_deadline(&self) -> Option<Time> {
        self.queues.iter().filter_map(AdmissionQueue::next_deadline).min()
    }

    /// Returns the node table.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Returns the default route's settings.
    pub fn settings(&self) -> &Settings {
        &self.routes[0].settings
    }

    /// Returns the number of routes, including the default route.
    pub fn routes(&self) -> usize {
        self.routes.len()
    }

    /// Returns a route's settings, or those of the default route if there is no such route.
    pub fn settings_of(&self, route: RouteId) -> &Settings {
        &self.route(route).settings
    }

    /// Returns the T_low and T_high of a route that are in force, in connections. These are the thresholds that the
    /// policy has derived, else the route's settings.
    pub fn thresholds_of(&self, route: RouteId) -> (u32, u32) {
        let Route { policy, settings, .. } = self.route(route);
        policy.thresholds().unwrap_or((settings.t_low, settings.t_high))
    }

    /// Returns the group of nodes that a route uses.
    pub fn group_of(&self, route: RouteId) -> GroupId {
        self.route(route).group
    }

    /// Returns the number of requests admitted and not ended.
    pub fn outstanding(&self) -> u32 {
        self.queues.iter().map(|queue| self.counter(queue).count()).sum()
    }

    /// Returns the number of requests admitted and not ended on the routes that use `group`.
    pub fn outstanding_in(&self, group: GroupId) -> u32 {
        self.nodes.outstanding(group).count()
    }

    /// Returns S, the largest number of outstanding requests on the routes that use all nodes. `u32::MAX` means no
    /// limit.
    pub fn admission_limit(&self) -> u32 {
        self.admission_limit_in(GroupId::ALL)
    }

    /// Returns S of the routes that use `group`.
    pub fn admission_limit_in(&self, group: GroupId) -> u32 {
        self.nodes.outstanding(group).limit()
    }

    /// Returns the number of requests waiting for admission.
    pub fn queued(&self) -> usize {
        self.queues.iter().map(AdmissionQueue::queued).sum()
    }

    /// Returns the number of requests waiting for admission on the routes that use `group`.
    pub fn queued_in(&self, group: GroupId) -> usize {
        self.queues.get(group.index()).map_or(0, AdmissionQueue::queued)
    }

    /// Returns the number of targets whose servers are stored, over all routes.
    pub fn targets_known(&self) -> usize {
        self.routes.iter().map(|route| route.policy.targets()).sum()
    }

    /// Returns the number of a route's targets whose servers are stored.
    pub fn targets_of(&self, route: RouteId) -> usize {
        self.route(route).policy.targets()
    }

    /// Returns the state that a route's policy has learned.
    pub fn learned_state(&self, route: RouteId) -> LearnedState {
        self.route(route).policy.learned_state(self.view(route, ReadSource::LIVE))
    }

    /// Restores the learned state of a route's policy. Call this before the first decision, and not while a run is
    /// recorded, because the record would not contain the state.
    pub fn restore(&self, route: RouteId, memory: &LearnedState) {
        self.route(route).policy.restore(memory, self.view(route, ReadSource::LIVE));
        self.update_limits_if_changed();
    }

    /// Returns whether a route's policy mirrors the nodes' caches and needs [`Dispatcher::cache_event`].
    pub fn mirrors_caches(&self) -> bool {
        self.routes.iter().any(|route| route.kind().mirrors_caches())
    }

    /// Returns the stored servers of a target and the decision that would be made now. Changes nothing.
    pub fn explain(&self, now: Time, target: TargetId) -> Explanation {
        self.explain_request(now, &Request::new(target))
    }

    /// Explains a request with a class, route, affinity or excluded nodes; see [`Dispatcher::explain`].
    pub fn explain_request(&self, now: Time, request: &Request) -> Explanation {
        let (route, view) = (self.route(request.route), self.request_view(request, ReadSource::LIVE));
        Explanation {
            target: request.target,
            policy: route.kind(),
            known: route.policy.known(request.target, view),
            decision: match self.affinity_outcome(request, view) {
                AffinityOutcome::Accepted(decision) => Some(decision),
                affinity => affinity.or_policy(route.policy.peek(now, request, view)),
            },
        }
    }

    fn route(&self, route: RouteId) -> &Route {
        self.routes.get(route.index()).unwrap_or(&self.routes[0])
    }

    /// Returns the nodes as a route's decisions see them.
    #[inline]
    fn view<'a>(&'a self, route: RouteId, source: ReadSource<'a>) -> ClusterView<'a> {
        ClusterView::of(&self.nodes, source, route, self.route(route).group)
    }

    /// Returns the nodes as the decision about a request sees them.
    ///
    /// Long-lived requests count as load for a request that is itself likely to last, and for policies that only
    /// spread load. They do not count for policies that place by content: most are idle, and the thresholds are
    /// meant for short requests. Counted, they would move every target from node to node.
    #[inline]
    fn request_view<'a>(&'a self, request: &Request, source: ReadSource<'a>) -> ClusterView<'a> {
        let counts = request.lasting || !self.route(request.route).kind().is_by_target();
        self.view(request.route, source).counting(counts)
    }

    fn queue_of(&self, ticket: Ticket) -> &AdmissionQueue {
        &self.queues[(ticket.0 % self.queues.len() as u64) as usize]
    }

    fn counter(&self, queue: &AdmissionQueue) -> &AdmissionCounter {
        self.nodes.outstanding(queue.group())
    }

    /// Installs an interceptor for every decision and every change from now on.
    pub(crate) fn intercept(self, interceptor: Box<dyn Interceptor>) -> Self {
        Self { interceptor: Some(interceptor), ..self }
    }

    /// Makes a decision, through the interceptor if there is one.
    fn decide(&self, now: Time, cause: Cause, request: Request) -> Arrival {
        match &self.interceptor {
            None => self.decide_with(now, cause, &request, ReadSource::LIVE),
            Some(interceptor) => self.decide_intercepted(&**interceptor, now, cause, &request),
        }
    }

    #[cold]
    fn decide_intercepted(
        &self,
        interceptor: &dyn Interceptor,
        now: Time,
        cause: Cause,
        request: &Request,
    ) -> Arrival {
        interceptor.decide(now, cause, request, &|source| self.decide_with(now, cause, request, source))
    }

    /// Makes a change, which `change` describes after it has taken effect.
    #[inline]
    fn change<E>(
        &self,
        now: Time,
        change: impl FnOnce() -> Change,
        act: impl FnOnce(ReadSource<'_>) -> Result<NodeId, E>,
    ) -> Result<NodeId, E> {
        let Some(interceptor) = &self.interceptor else { return act(ReadSource::LIVE) };
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

    /// Makes a decision. The decision reads all changing values through `source`, so that it can be replayed.
    pub(crate) fn decide_with(
        &self,
        now: Time,
        cause: Cause,
        request: &Request,
        source: ReadSource<'_>,
    ) -> Arrival {
        let view = self.request_view(request, source);
        match cause {
            Cause::Arrive => self.decide_arrival(now, request, view),
            Cause::Admit(_, deadline) if deadline <= now => Arrival::Refused(Refusal::Deadline),
            Cause::Admit(..) | Cause::Retry(_) => self.start(now, request, view),
            Cause::Reuse(node) if node.index() < self.nodes.slots() => {
                view.force_admit();
                view.start(node);
                Arrival::Start(Decision { node, reason: Reason::Reuse })
            }
            Cause::Reuse(_) => Arrival::Refused(Refusal::NoNode),
        }
    }

    #[inline(always)]
    fn decide_arrival(&self, now: Time, request: &Request, view: ClusterView<'_>) -> Arrival {
        if view.open_count() == 0 {
            return Arrival::Refused(Refusal::NoNode);
        }
        let queue = &self.queues[self.route(request.route).group.index()];
        match AdmissionOutcome::read(view, || queue.admit(now, request, self.counter(queue))) {
            AdmissionOutcome::Admitted => {
                let outcome = self.start(now, request, view);
                if !matches!(outcome, Arrival::Start(_)) {
                    view.release_admission();
                }
                outcome
            }
            // The last node may have closed, and the queue may have been emptied, just before this request was
            // queued.
            AdmissionOutcome::Queued(ticket)
                if view.open_count() == 0 && queue.cancel(ticket) == Cancel::Removed =>
            {
                Arrival::Refused(Refusal::NoNode)
            }
            AdmissionOutcome::Queued(ticket) => Arrival::Wait(ticket),
            AdmissionOutcome::QueueFull => Arrival::Refused(Refusal::QueueFull),
        }
    }

    #[inline(always)]
    fn start(&self, now: Time, request: &Request, view: ClusterView<'_>) -> Arrival {
        let affinity = self.affinity_outcome(request, view);
        if let AffinityOutcome::Accepted(decision) = affinity {
            view.start(decision.node);
            return Arrival::Start(decision);
        }
        match affinity.or_policy(self.pick(now, request, view)) {
            Some(decision) => Arrival::Start(decision),
            None => Arrival::Refused(Refusal::NoNode),
        }
    }

    /// Returns the outcome of a request's affinity. Counts nothing.
    #[inline]
    fn affinity_outcome(&self, request: &Request, view: ClusterView<'_>) -> AffinityOutcome {
        evaluate_affinity(request, view, || self.thresholds_of(request.route))
    }

    /// Returns the policy's decision, or else the least loaded node.
    ///
    /// A policy looks at one node after another, or at a list of open nodes. While a group changes over to its
    /// backups or back, a policy may find no node although one is open at every moment.
    #[inline(always)]
    fn pick(&self, now: Time, request: &Request, view: ClusterView<'_>) -> Option<Decision> {
        let picked = self.route(request.route).policy.pick(now, request, view);
        picked.or_else(|| {
            let changes = view.is_live() && request.exclude.is_empty();
            let tries = (0..4).filter(|_| changes && view.open_count() > 0);
            let node = tries.filter_map(|_| view.least(view.position(request.target.0))).next()?;
            view.start(node);
            Some(Decision { node, reason: Reason::LeastLoaded })
        })
    }

    fn end_at(&self, node: NodeId) {
        let was_there = self.nodes.end(node);
        debug_assert!(was_there, "a request ended at {node} that had not started there");
    }

    /// Starts queued requests while there is room.
    fn start_queued(&self, now: Time, queue: &AdmissionQueue, started: &mut Vec<DequeuedRequest>) {
        while let Some(QueuedRequest { ticket, request, deadline }) = queue.next(self.counter(queue)) {
            let outcome = self.decide(now, Cause::Admit(ticket, deadline), request).settled();
            if outcome.is_err() {
                self.counter(queue).release();
            }
            started.push(DequeuedRequest { ticket, outcome });
        }
    }

    /// Updates the limits and the queues after a change of membership.
    fn refresh_admission(&self, now: Time, started: &mut Vec<DequeuedRequest>) {
        self.set_limits();
        for queue in &self.queues {
            if self.nodes.open_in(queue.group()) == 0 {
                let refused = |ticket| DequeuedRequest { ticket, outcome: Err(Refusal::NoNode) };
                started.extend(queue.clear().into_iter().map(refused));
            } else {
                self.start_queued(now, queue, started);
            }
        }
    }

    /// Updates the limits if the thresholds have changed.
    fn update_limits_if_changed(&self) {
        let (low, high) = self.thresholds();
        if self.limits_from.load(Ordering::Relaxed) != u64::from(low) << 32 | u64::from(high) {
            self.set_limits();
        }
    }

    fn set_limits(&self) {
        // The lock serialises updates: of two concurrent changes, the sums of the later one must remain.
        let _one = self.limits_lock.lock();
        let (low, high) = self.thresholds();
        self.limits_from.store(u64::from(low) << 32 | u64::from(high), Ordering::Relaxed);
        for queue in &self.queues {
            self.counter(queue).set_limit(self.limit(queue.group()));
        }
    }

    /// Returns the thresholds from which limits are derived: those in force on the default route.
    fn thresholds(&self) -> (u32, u32) {
        self.thresholds_of(RouteId::DEFAULT)
    }

    /// Returns the largest number of outstanding requests on a group's routes. If there are other switches, this is
    /// the part of this switch.
    fn limit(&self, group: GroupId) -> u32 {
        let total = match self.settings().admission {
            Admission::Unlimited => u32::MAX,
            Admission::Fixed(limit) => limit,
            Admission::Derived => self.derived_limit(group, self.thresholds()),
            Admission::Auto => self.auto_limit(group),
        };
        self.own_share(total, group)
    }

    /// Returns S = (n - 1) T_high + T_low - 1 (LARD section 2.4) over the nodes of a group. Each node's thresholds
    /// are scaled by its weight. The heaviest node counts with T_low, so that S is never too large.
    fn derived_limit(&self, group: GroupId, (low, high): (u32, u32)) -> u32 {
        let (sum, max) = (self.nodes.weight_sum(group), self.nodes.weight_max(group));
        let high = u64::from(high) * (sum - max.min(sum));
        let low = u64::from(low) * max;
        u32::try_from(((high + low) / 1000).saturating_sub(1)).unwrap_or(u32::MAX).max(1)
    }

    /// Returns the limit for [`Admission::Auto`].
    fn auto_limit(&self, group: GroupId) -> u32 {
        let routes = self.routes.iter().filter(|route| route.group == group);
        let by_threshold = routes.filter_map(|route| route.policy.thresholds()).max_by_key(|(_, high)| *high);
        let per_node = match by_threshold {
            Some(thresholds) if self.nodes.open_in(group) > 1 => {
                return self.derived_limit(group, thresholds);
            }
            // The last open node of several gets no more than it would carry beside the others.
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
