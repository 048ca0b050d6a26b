//! The load that a request has at the dispatcher, returned exactly once.
//!
//! A request may be served, fail, lose its client, or be dropped while it waits. The lease holds what the request has
//! at that moment, and its `Drop` returns it.

use crate::decider::Decider;
use crate::waiters::QueuePlace;
use larder_core::{Arrival, Decision, NodeId, Refusal, Request, RouteId, Time};
use std::sync::Arc;

/// State of a request at the dispatcher.
#[derive(Debug)]
enum LeaseState {
    Nothing,
    /// The request waits in the queue.
    Queued(QueuePlace),
    /// The request is admitted and counts as load of a node.
    Node(NodeId),
    /// The request counts as long-lived load of a node.
    LongLived(NodeId),
    /// The request is admitted but has no node.
    Admitted,
}

/// Lease of one request.
#[derive(Debug)]
pub(crate) struct Lease {
    decider: Arc<Decider>,
    state: LeaseState,
    /// Route of the request.
    route: RouteId,
}

/// A started request and its lease.
#[derive(Debug)]
pub(crate) struct StartedRequest {
    pub(crate) lease: Lease,
    pub(crate) request: Request,
    pub(crate) decision: Decision,
}

/// Decision about a request, or its refusal.
pub(crate) type Placement = Result<StartedRequest, Refusal>;

impl Lease {
    pub(crate) fn new(decider: Arc<Decider>) -> Self {
        Self { decider, state: LeaseState::Nothing, route: RouteId::DEFAULT }
    }

    /// Asks the dispatcher for a node. Returns `None` if the request must wait; then [`Lease::wait`] returns its
    /// node.
    pub(crate) fn arrive(&mut self, now: Time, request: Request) -> Result<Option<Decision>, Refusal> {
        debug_assert!(matches!(self.state, LeaseState::Nothing), "a request arrives once");
        self.route = request.route;
        let reserved = self.decider.reserve();
        let arrival = self.decider.dispatcher.arrive(now, request);
        drop(reserved);
        match arrival {
            Arrival::Start(decision) => {
                self.state = LeaseState::Node(decision.node);
                Ok(Some(decision))
            }
            Arrival::Wait(ticket) => {
                self.state = LeaseState::Queued(self.decider.waiters.register(ticket, request.route));
                self.decider.admission_log.waits(&self.decider.dispatcher, &self.decider.routing, self.route);
                Ok(None)
            }
            Arrival::Refused(refusal) => {
                self.decider.admission_log.refused(
                    &self.decider.dispatcher,
                    &self.decider.routing,
                    self.route,
                    refusal,
                );
                Err(refusal)
            }
        }
    }

    /// Counts a request that the forwarding plane has started by itself. Returns false if the node does not exist.
    pub(crate) fn reuse(&mut self, now: Time, request: Request, node: NodeId) -> bool {
        debug_assert!(matches!(self.state, LeaseState::Nothing), "a request arrives once");
        self.route = request.route;
        let counted = self.decider.dispatcher.reuse(now, request, node);
        if counted {
            self.state = LeaseState::Node(node);
        }
        counted
    }

    /// Waits for admission. Dropping the future keeps the place in the queue; dropping the lease gives it up.
    pub(crate) async fn wait(&mut self) -> Result<Decision, Refusal> {
        let LeaseState::Queued(place) = &mut self.state else { return Err(Refusal::NoNode) };
        // The sender is dropped unused only if the queue itself is dropped.
        let outcome = (&mut place.settled).await.unwrap_or(Err(Refusal::NoNode));
        self.state = outcome.as_ref().map_or(LeaseState::Nothing, |decision| LeaseState::Node(decision.node));
        if let Err(refusal) = outcome {
            self.decider.admission_log.refused(
                &self.decider.dispatcher,
                &self.decider.routing,
                self.route,
                refusal,
            );
        }
        outcome
    }

    /// Turns the request into a long-lived one, which frees its admission for a waiting request. If its node has as
    /// many long-lived requests as it may, nothing changes.
    pub(crate) fn become_long_lived(&mut self, now: Time) {
        let LeaseState::Node(node) = self.state else { return };
        let Decider { dispatcher, waiters, .. } = &*self.decider;
        let mut started = Vec::new();
        if dispatcher.become_long_lived(now, self.route, node, &mut started) {
            self.state = LeaseState::LongLived(node);
        } else {
            self.decider.admission_log.long_lived_full(&self.decider.dispatcher, node);
        }
        if !started.is_empty() {
            waiters.deliver(dispatcher, now, started);
        }
    }

    /// Moves the load to another node after the current node failed.
    pub(crate) fn retry(&mut self, request: Request) -> Result<Decision, Refusal> {
        let now = self.decider.clock.now();
        let failed = match self.state {
            LeaseState::Node(failed) => failed,
            LeaseState::LongLived(failed)
                if self.decider.dispatcher.become_short_lived(now, self.route, failed) =>
            {
                failed
            }
            _ => return Err(Refusal::NoNode),
        };
        let outcome = self.decider.dispatcher.retry(now, failed, request);
        self.state =
            outcome.as_ref().map_or(LeaseState::Admitted, |decision| LeaseState::Node(decision.node));
        outcome
    }

    /// Returns the load and the admission. A second call does nothing.
    pub(crate) fn release(&mut self, now: Time) {
        let Decider { dispatcher, waiters, .. } = &*self.decider;
        let mut started = Vec::new();
        match std::mem::replace(&mut self.state, LeaseState::Nothing) {
            LeaseState::Nothing => return,
            LeaseState::Queued(place) => {
                if let Some(decision) = waiters.cancel(dispatcher, place) {
                    dispatcher.finish_on(now, self.route, decision.node, &mut started);
                }
            }
            LeaseState::Node(node) => dispatcher.finish_on(now, self.route, node, &mut started),
            LeaseState::LongLived(node) => dispatcher.end_long_lived(now, node),
            LeaseState::Admitted => dispatcher.abandon_on(now, self.route, &mut started),
        }
        if !started.is_empty() {
            waiters.deliver(dispatcher, now, started);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !matches!(self.state, LeaseState::Nothing) {
            self.release(self.decider.clock.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SwitchConfig;
    use crate::node_entry::NodeEntry;
    use crate::routes::Route;
    use crate::shared::Shared;
    use larder_core::dispatch::Admission;
    use larder_core::rules::Matcher;
    use larder_core::{NodeSpec, NodeState, TargetId};
    use proptest::prelude::*;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    fn decider(nodes: u16, admitted: u32, queue_max: usize) -> Arc<Decider> {
        let entry = |n| NodeEntry::new(NodeSpec::named(format!("n{n}")), "127.0.0.1:9");
        let mut config = SwitchConfig::new(vec![([127, 0, 0, 1], 0).into()], (0..nodes).map(entry).collect());
        config.settings.admission = Admission::Fixed(admitted);
        // Below the admission limit, so that some requests find no room.
        config.settings.long_lived_max = 1;
        config.settings.queue_max = queue_max;
        config.settings.queue_timeout = Duration::from_secs(3600);
        config.threads = 2;
        // A second route uses only the last node. That node is in another group with its own count and queue.
        let route = Route::new("last", Matcher::new().path("/last").expect("a path"));
        config.routes = vec![Route { group: Some("last".to_owned()), ..route }];
        if let Some(last) = config.nodes.last_mut() {
            last.groups.push("last".to_owned());
        }
        let joined = tokio::sync::mpsc::unbounded_channel().0;
        Shared::new(config, joined, crate::clock::Clock::start()).expect("a valid config").decider
    }

    fn nothing_is_held(decider: &Decider) -> bool {
        let dispatcher = &decider.dispatcher;
        let loads = dispatcher.nodes().rows().iter().all(|row| row.load == 0);
        let long_lived = dispatcher.nodes().long_lived_total();
        (dispatcher.outstanding(), dispatcher.queued(), decider.waiters.len(), long_lived, loads)
            == (0, 0, 0, 0, true)
    }

    /// An event of one of a few requests, or of a node.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Arrive(u64, u16),
        Poll(usize),
        Retry(usize),
        LongLived(usize),
        Release(usize),
        Drop(usize),
        Node(u16, bool),
        Expire,
    }

    fn step() -> impl Strategy<Value = Step> {
        let which = 0..8_usize;
        prop_oneof![
            4 => (0..20_u64, 0..2_u16).prop_map(|(target, route)| Step::Arrive(target, route)),
            3 => which.clone().prop_map(Step::Poll),
            2 => which.clone().prop_map(Step::Retry),
            2 => which.clone().prop_map(Step::LongLived),
            2 => which.clone().prop_map(Step::Release),
            3 => which.prop_map(Step::Drop),
            1 => (0..3_u16, any::<bool>()).prop_map(|(node, up)| Step::Node(node, up)),
            1 => Just(Step::Expire),
        ]
    }

    fn expire(decider: &Decider) {
        let mut expired = Vec::new();
        decider.dispatcher.expire(Time::MAX, &mut expired);
        decider.waiters.expire(&expired);
    }

    proptest! {
        /// Any order of events returns everything exactly once.
        #[test]
        fn leases_return_all_load(steps in prop::collection::vec(step(), 1..200)) {
            let decider = decider(3, 4, 3);
            let mut leases: Vec<(Lease, Request)> = Vec::new();
            for step in steps {
                match step {
                    Step::Arrive(target, route) => {
                        let mut lease = Lease::new(decider.clone());
                        let request = Request::new(TargetId(target)).with_route(RouteId(route));
                        let _ = lease.arrive(decider.clock.now(), request);
                        leases.push((lease, request));
                    }
                    Step::Poll(at) => if let Some((lease, _)) = leases.get_mut(at) {
                        let waiting = std::pin::pin!(lease.wait());
                        let _: Poll<_> = waiting.poll(&mut Context::from_waker(Waker::noop()));
                    },
                    Step::Retry(at) => if let Some((lease, request)) = leases.get_mut(at) {
                        let _ = lease.retry(*request);
                    },
                    Step::LongLived(at) => if let Some((lease, _)) = leases.get_mut(at) {
                        lease.become_long_lived(decider.clock.now());
                    },
                    Step::Release(at) => if let Some((lease, _)) = leases.get_mut(at) {
                        lease.release(decider.clock.now());
                    },
                    Step::Drop(at) => if at < leases.len() {
                        drop(leases.swap_remove(at));
                    },
                    Step::Node(node, up) => {
                        let state = if up { NodeState::Up } else { NodeState::Down };
                        let mut started = Vec::new();
                        let now = decider.clock.now();
                        decider.dispatcher.set_state(now, larder_core::NodeId(node), state, &mut started);
                        decider.waiters.deliver(&decider.dispatcher, now, started);
                    }
                    Step::Expire => expire(&decider),
                }
            }
            drop(leases);
            prop_assert!(nothing_is_held(&decider), "{decider:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn cancelled_waits_leak_nothing() {
        let decider = decider(2, 3, 1000);
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..16_u64 {
            let decider = decider.clone();
            tasks.spawn(async move {
                for round in 0..300 {
                    let mut lease = Lease::new(decider.clone());
                    let target = TargetId(task * 1000 + round);
                    let route = RouteId(u16::from(round % 2 == 0));
                    let outcome = lease.arrive(decider.clock.now(), Request::new(target).with_route(route));
                    if matches!(outcome, Ok(None)) {
                        // A third of the tasks wait to the end; the others give up after some scheduler turns.
                        let turns = if round % 3 == 0 { usize::MAX } else { (round % 5) as usize };
                        tokio::select! {
                            biased;
                            outcome = lease.wait() => assert!(outcome.is_ok()),
                            () = async { for _ in 0..turns { tokio::task::yield_now().await; } } => {}
                        }
                    }
                    tokio::task::yield_now().await;
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.expect("no panic");
        }
        assert!(nothing_is_held(&decider));
    }
}
