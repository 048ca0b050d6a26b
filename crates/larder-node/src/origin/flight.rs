//! One request to the origin for all who want the same thing meanwhile.
//!
//! The first leads, the others wait for the head of the reply. If the reply is for all, they read its body as it
//! comes. If it turns out not to be kept, everybody asks the origin alone and at once: there is no queue. Who waits is
//! bounded by the node's client connections.

use super::client::OriginError;
use super::stored::Variant;
use http::StatusCode;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::Notify;

/// What came of a request.
#[derive(Clone, Debug)]
pub(crate) enum Joint {
    /// A reply for all that it suits.
    Shared {
        variant: Arc<Variant>,
        how: How,
    },
    /// A reply for the one who asked.
    Alone,
    Failed(OriginError),
}

/// How a reply for all came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct How {
    /// The status the origin sent; none if it failed.
    pub(crate) status: Option<u16>,
    pub(crate) stored: bool,
    pub(crate) detail: Option<&'static str>,
}

impl How {
    /// What was kept stands in for an origin that sent this status, or nothing.
    pub(crate) fn standing_in(status: Option<StatusCode>) -> Self {
        let status = status.map(|status| status.as_u16());
        Self { status, stored: false, detail: Some("stale-if-error") }
    }
}

/// A request under way, or its body.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    joint: OnceLock<Joint>,
    notify: Notify,
}

impl Flight {
    /// Whether the head of the reply has come.
    pub(crate) fn has_landed(&self) -> bool {
        self.joint.get().is_some()
    }

    /// Waits for the head of the reply.
    pub(crate) async fn landed(&self) -> Joint {
        let notified = self.notify.notified();
        tokio::pin!(notified);
        // Registers before looking, so that a reply that comes in between is not missed.
        notified.as_mut().enable();
        if let Some(joint) = self.joint.get() {
            return joint.clone();
        }
        notified.await;
        self.joint.get().cloned().unwrap_or(Joint::Failed(OriginError::Abandoned))
    }
}

/// Requests under way, by what they ask for.
#[derive(Debug, Default)]
pub(crate) struct Flights(Mutex<HashMap<Box<[u8]>, Arc<Flight>>>);

/// What is to be done about something wanted.
#[derive(Debug)]
pub(crate) enum Begun {
    Join(Arc<Flight>),
    Lead(Landing),
}

impl Flights {
    /// Joins the request for `key`, or leads it.
    pub(crate) fn begin(self: &Arc<Self>, key: &[u8]) -> Begun {
        let mut flights = self.lock();
        if let Some(flight) = flights.get(key) {
            return Begun::Join(Arc::clone(flight));
        }
        let flight = Arc::<Flight>::default();
        flights.insert(key.into(), Arc::clone(&flight));
        Begun::Lead(Landing { flights: Arc::clone(self), key: Some(key.into()), flight })
    }

    /// Leads a request that nobody joins.
    pub(crate) fn alone(self: &Arc<Self>) -> Landing {
        Landing { flights: Arc::clone(self), key: None, flight: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Arc<Flight>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The duty to land. Dropped, nobody joins any more, and those who wait in vain learn it.
#[derive(Debug)]
pub(crate) struct Landing {
    flights: Arc<Flights>,
    key: Option<Box<[u8]>>,
    flight: Arc<Flight>,
}

impl Landing {
    /// Tells those who wait.
    pub(crate) fn announce(&self, joint: Joint) {
        // Only the first counts.
        let _ = self.flight.joint.set(joint);
        self.flight.notify.notify_waiters();
    }

    /// Lets nobody join any more.
    pub(crate) fn close(&mut self) {
        if let Some(key) = self.key.take() {
            self.flights.lock().remove(&key);
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.close();
        self.announce(Joint::Failed(OriginError::Abandoned));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_who_join_learn_what_came_of_it() {
        let flights = Arc::<Flights>::default();
        for (joint, abandon) in
            [(Joint::Alone, false), (Joint::Failed(OriginError::Full), false), (Joint::Alone, true)]
        {
            let Begun::Lead(landing) = flights.begin(b"a") else { panic!("the first leads") };
            let Begun::Join(flight) = flights.begin(b"a") else { panic!("the second joins") };
            assert!(matches!(flights.begin(b"b"), Begun::Lead(_)), "another thing");
            let waiting = tokio::spawn(async move { flight.landed().await });
            tokio::task::yield_now().await;
            if !abandon {
                landing.announce(joint.clone());
            }
            drop(landing);
            let landed = waiting.await.unwrap();
            match (abandon, &landed) {
                (true, Joint::Failed(OriginError::Abandoned)) => {}
                (false, _) => assert_eq!(format!("{landed:?}"), format!("{joint:?}")),
                _ => panic!("{landed:?}"),
            }
        }
        assert!(flights.lock().is_empty());
    }
}
