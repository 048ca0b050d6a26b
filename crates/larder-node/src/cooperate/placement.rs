//! The placement of a request: the node that serves it.

use super::Cooperation;
use super::adapter::{FORWARDED, LOCAL, PolicyOutput, UNANSWERED};
use super::card::CardAdapter;
use super::policy::Policy;
use larder_core::peers::{CardPlacement, Claim};
use larder_core::{NodeId, TargetId, Time};
use larder_peers::Name;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The node that serves a client's request.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) node: NodeId,
    /// The name of that node; `None` for this node.
    pub(crate) name: Option<Name>,
    /// Whether this node has the target in memory, as far as the policy knows.
    pub(crate) held: bool,
    /// The dispatcher's count of the request.
    pub(crate) claim: Option<Claim>,
}

impl Cooperation {
    /// Calls `act` with the policy if it is CARD, and executes the policy's outputs.
    fn with_card<R>(
        &self,
        act: impl FnOnce(&mut CardAdapter, Time, &mut Vec<PolicyOutput>) -> R,
    ) -> Option<R> {
        self.with(|policy, now, out| match policy {
            Policy::Card(card) => Some(act(card, now, out)),
            Policy::Press(_) | Policy::Ward(_) => None,
        })
    }

    /// Decides which node serves a request.
    pub(crate) async fn decide(self: &Arc<Self>, target: TargetId) -> Placement {
        let request = if self.asks_dispatcher { PlacementRequest::new(self, target) } else { None };
        let (node, reason, held, claim) = match request {
            Some(request) => match request.wait().await {
                Some(placed) => (placed.node, placed.reason.name(), false, placed.claim),
                // The node shuts down.
                None => return Placement { node: LOCAL, name: None, held: false, claim: None },
            },
            None => self.decide_locally(target),
        };
        self.count_decision(reason);
        let name = if node == LOCAL { None } else { self.lock().names.get(&node).cloned() };
        Placement { node, name, held, claim }
    }

    /// Decides where the policy lets each node decide for itself.
    fn decide_locally(&self, target: TargetId) -> (NodeId, &'static str, bool, Option<Claim>) {
        self.with(|policy, now, out| match policy {
            Policy::Press(adapter) => {
                let verdict = adapter.decide(now, target, out);
                (verdict.node, verdict.reason.name(), adapter.press.holds(target), None)
            }
            Policy::Ward(adapter) => {
                let verdict = adapter.ward.decide(now, target);
                (verdict.node, verdict.reason.name(), false, None)
            }
            Policy::Card(_) => (LOCAL, UNANSWERED, false, None),
        })
    }

    /// Records that this node serves a request because it could not be forwarded.
    pub(crate) fn record_fallback(&self, node: NodeId, target: TargetId, is_fault: bool) {
        self.with(|policy, now, _| policy.adapter().record_no_answer(now, node, target, is_fault));
        self.count_decision(UNANSWERED);
    }

    /// Records that this node serves a request that a peer has forwarded.
    pub(crate) fn record_forwarded(&self, target: TargetId) {
        let reason = self.with(|policy, _, _| match policy {
            Policy::Press(adapter) => adapter.press.decide_forwarded(target, None).reason.name(),
            Policy::Card(_) | Policy::Ward(_) => FORWARDED,
        });
        self.count_decision(reason);
    }

    /// Releases the dispatcher's count of a request.
    pub(super) fn release_claim(&self, claim: Claim) {
        self.with_card(|card, now, _| card.card.end_request(now, claim));
    }
}

/// A request that waits for its placement.
struct PlacementRequest {
    cooperation: Arc<Cooperation>,
    placement: oneshot::Receiver<CardPlacement>,
}

impl PlacementRequest {
    /// Asks for a placement; `None` if each node decides for itself.
    fn new(cooperation: &Arc<Cooperation>, target: TargetId) -> Option<Self> {
        let placement = cooperation.with_card(|card, now, out| card.request_placement(now, target, out))?;
        Some(Self { cooperation: Arc::clone(cooperation), placement })
    }

    /// Waits for the placement; `None` if the node shuts down.
    async fn wait(mut self) -> Option<CardPlacement> {
        (&mut self.placement).await.ok()
    }
}

impl Drop for PlacementRequest {
    fn drop(&mut self) {
        self.placement.close();
        if let Ok(CardPlacement { claim: Some(claim), .. }) = self.placement.try_recv() {
            self.cooperation.release_claim(claim);
        }
    }
}
