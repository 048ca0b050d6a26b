//! The load of a request at the dispatcher, given back exactly once.
//!
//! A request may end in many ways: served, failed, its client gone, its task dropped in the middle of any wait.
//! The lease holds whatever the request has at that moment, and giving it back is its `Drop`.

use crate::decider::Decider;
use crate::waiting::Place;
use larder_core::{Arrival, Decision, NodeId, Refusal, Request, RouteId, Time};
use std::sync::Arc;

/// The load of a request.
#[derive(Debug)]
enum Hold {
    Nothing,
    /// A place in the queue.
    Place(Place),
    /// Load at a node, and a place among the admitted.
    Node(NodeId),
    /// Load at a node, as a long-lived request.
    LongLived(NodeId),
    /// A place among the admitted, at no node.
    Admitted,
}

/// The lease of one request.
#[derive(Debug)]
pub(crate) struct Lease {
    decider: Arc<Decider>,
    hold: Hold,
    /// The request's route.
    route: RouteId,
}

/// A request that has been started, and its lease.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) lease: Lease,
    pub(crate) request: Request,
    pub(crate) decision: Decision,
}

/// The decision about a request, or the refusal.
pub(crate) type Placement = Result<Started, Refusal>;

impl Lease {
    pub(crate) fn new(decider: Arc<Decider>) -> Self {
        Self { decider, hold: Hold::Nothing, route: RouteId::DEFAULT }
    }

    /// Asks for a node. If the request must wait, [`Lease::wait`] says when it has one.
    pub(crate) fn arrive(&mut self, now: Time, request: Request) -> Result<Option<Decision>, Refusal> {
        debug_assert!(matches!(self.hold, Hold::Nothing), "a request arrives once");
        self.route = request.route;
        let reserved = self.decider.reserve();
        let arrival = self.decider.dispatcher.arrive(now, request);
        drop(reserved);
        match arrival {
            Arrival::Start(decision) => {
                self.hold = Hold::Node(decision.node);
                Ok(Some(decision))
            }
            Arrival::Wait(ticket) => {
                self.hold = Hold::Place(self.decider.waiting.register(ticket, request.route));
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

    /// Counts a request that the forwarding plane has started by itself. False if there is no such node.
    pub(crate) fn reuse(&mut self, now: Time, request: Request, node: NodeId) -> bool {
        debug_assert!(matches!(self.hold, Hold::Nothing), "a request arrives once");
        self.route = request.route;
        let counted = self.decider.dispatcher.reuse(now, request, node);
        if counted {
            self.hold = Hold::Node(node);
        }
        counted
    }

    /// Waits for admission. Dropping the future keeps the place; dropping the lease gives it up.
    pub(crate) async fn wait(&mut self) -> Result<Decision, Refusal> {
        let Hold::Place(place) = &mut self.hold else { return Err(Refusal::NoNode) };
        // The sender is dropped unused only if the queue itself is torn down.
        let outcome = (&mut place.settled).await.unwrap_or(Err(Refusal::NoNode));
        self.hold = outcome.as_ref().map_or(Hold::Nothing, |decision| Hold::Node(decision.node));
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

    /// The request has turned out to be long-lived: it gives its place among the admitted to one that waits. Where its node has
    /// as many of these as it may, it stays where it is.
    pub(crate) fn become_long_lived(&mut self, now: Time) {
        let Hold::Node(node) = self.hold else { return };
        let Decider { dispatcher, waiting, .. } = &*self.decider;
        let mut started = Vec::new();
        if dispatcher.become_long_lived(now, self.route, node, &mut started) {
            self.hold = Hold::LongLived(node);
        } else {
            self.decider.admission_log.long_lived_full(&self.decider.dispatcher, node);
        }
        if !started.is_empty() {
            waiting.deliver(dispatcher, now, started);
        }
    }

    /// Moves to another node after the present one failed.
    pub(crate) fn retry(&mut self, request: Request) -> Result<Decision, Refusal> {
        let now = self.decider.clock.now();
        let failed = match self.hold {
            Hold::Node(failed) => failed,
            Hold::LongLived(failed)
                if self.decider.dispatcher.become_short_lived(now, self.route, failed) =>
            {
                failed
            }
            _ => return Err(Refusal::NoNode),
        };
        let outcome = self.decider.dispatcher.retry(now, failed, request);
        self.hold = outcome.as_ref().map_or(Hold::Admitted, |decision| Hold::Node(decision.node));
        outcome
    }

    /// Gives back what is held; nothing the second time.
    pub(crate) fn release(&mut self, now: Time) {
        let Decider { dispatcher, waiting, .. } = &*self.decider;
        let mut started = Vec::new();
        match std::mem::replace(&mut self.hold, Hold::Nothing) {
            Hold::Nothing => return,
            Hold::Place(place) => {
                if let Some(decision) = waiting.give_up(dispatcher, place) {
                    dispatcher.finish_on(now, self.route, decision.node, &mut started);
                }
            }
            Hold::Node(node) => dispatcher.finish_on(now, self.route, node, &mut started),
            Hold::LongLived(node) => dispatcher.end_long_lived(now, node),
            Hold::Admitted => dispatcher.abandon_on(now, self.route, &mut started),
        }
        if !started.is_empty() {
            waiting.deliver(dispatcher, now, started);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !matches!(self.hold, Hold::Nothing) {
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
        // Fewer than are let in, so that some find no room.
        config.settings.long_lived_max = 1;
        config.settings.queue_max = queue_max;
        config.settings.queue_timeout = Duration::from_secs(3600);
        config.threads = 2;
        // A second route, over the last node alone: another group, and so another count and another queue.
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
        (dispatcher.outstanding(), dispatcher.queued(), decider.waiting.len(), long_lived, loads)
            == (0, 0, 0, 0, true)
    }

    /// Something that happens to one of a few requests, or to a node.
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
        decider.waiting.expire(&expired);
    }

    proptest! {
        /// Whatever happens in whatever order, everything is given back once.
        #[test]
        fn leases_give_back_what_they_took(steps in prop::collection::vec(step(), 1..200)) {
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
                        decider.waiting.deliver(&decider.dispatcher, now, started);
                    }
                    Step::Expire => expire(&decider),
                }
            }
            drop(leases);
            prop_assert!(nothing_is_held(&decider), "{decider:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn threads_that_cut_waits_short_lose_nothing() {
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
                        // A third waits to the end, the others give up after some turns of the scheduler.
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
