//! The placement of a request: the node that serves it.

use super::Cooperation;
use super::card::CardSide;
use super::policy::Policy;
use super::side::{FORWARDED, ME, Say, UNANSWERED};
use larder_core::peers::{Claim, Placed};
use larder_core::{NodeId, TargetId, Time};
use larder_peers::Name;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The node that serves a client's request.
#[derive(Debug)]
pub(crate) struct Place {
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
    fn with_card<R>(&self, act: impl FnOnce(&mut CardSide, Time, &mut Vec<Say>) -> R) -> Option<R> {
        self.with(|policy, now, out| match policy {
            Policy::Card(card) => Some(act(card, now, out)),
            Policy::Press(_) | Policy::Ward(_) => None,
        })
    }

    /// Decides which node serves a request.
    pub(crate) async fn decide(self: &Arc<Self>, target: TargetId) -> Place {
        let asked = if self.asks { Asked::new(self, target) } else { None };
        let (node, reason, held, claim) = match asked {
            Some(asked) => match asked.place().await {
                Some(placed) => (placed.node, placed.why.name(), false, placed.claim),
                // The node shuts down.
                None => return Place { node: ME, name: None, held: false, claim: None },
            },
            None => self.decide_here(target),
        };
        self.count(reason);
        let name = if node == ME { None } else { self.lock().names.get(&node).cloned() };
        Place { node, name, held, claim }
    }

    /// Decides where the policy lets each node decide for itself.
    fn decide_here(&self, target: TargetId) -> (NodeId, &'static str, bool, Option<Claim>) {
        self.with(|policy, now, out| match policy {
            Policy::Press(side) => {
                let verdict = side.decide(now, target, out);
                (verdict.node, verdict.why.name(), side.press.holds(target), None)
            }
            Policy::Ward(side) => {
                let verdict = side.ward.decide(now, target);
                (verdict.node, verdict.why.name(), false, None)
            }
            Policy::Card(_) => (ME, UNANSWERED, false, None),
        })
    }

    /// Records that this node serves a request because it could not be forwarded.
    pub(crate) fn take_back(&self, node: NodeId, target: TargetId, to_blame: bool) {
        self.with(|policy, now, _| policy.side().unanswered(now, node, target, to_blame));
        self.count(UNANSWERED);
    }

    /// Records that this node serves a request that a peer has forwarded.
    pub(crate) fn forwarded(&self, target: TargetId) {
        let reason = self.with(|policy, _, _| match policy {
            Policy::Press(side) => side.press.forwarded(target, None).why.name(),
            Policy::Card(_) | Policy::Ward(_) => FORWARDED,
        });
        self.count(reason);
    }

    /// Releases the dispatcher's count of a request.
    pub(super) fn release(&self, claim: Claim) {
        self.with_card(|card, now, _| card.card.ended(now, claim));
    }
}

/// A request that waits for its placement.
struct Asked {
    cooperation: Arc<Cooperation>,
    place: oneshot::Receiver<Placed>,
}

impl Asked {
    /// Asks for a placement; `None` if each node decides for itself.
    fn new(cooperation: &Arc<Cooperation>, target: TargetId) -> Option<Self> {
        let place = cooperation.with_card(|card, now, out| card.ask(now, target, out))?;
        Some(Self { cooperation: Arc::clone(cooperation), place })
    }

    /// Waits for the placement; `None` if the node shuts down.
    async fn place(mut self) -> Option<Placed> {
        (&mut self.place).await.ok()
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.place.close();
        if let Ok(Placed { claim: Some(claim), .. }) = self.place.try_recv() {
            self.cooperation.release(claim);
        }
    }
}
