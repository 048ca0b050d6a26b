//! Shared fetches: one request to the origin for all requests that want the same target at the same time.
//!
//! The first request leads, and the others wait for the head of its reply. If the reply may be used without
//! validation for other clients, they read its body as it arrives. If not, each of them asks the origin by
//! itself at once, without a queue. The number of waiting requests is bounded by the node's client connections.

use super::error::OriginError;
use crate::pages::Variant;
use http::StatusCode;
use http::uri::Authority;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::Notify;

/// The outcome of a shared fetch for the requests that joined it.
#[derive(Clone, Debug)]
pub(crate) enum FlightOutcome {
    /// A fresh reply. Each request must still check whether the reply matches it.
    Shared { variant: Arc<Variant>, summary: FetchSummary },
    /// The outcome is for the leading request only.
    Alone,
    /// The origin cannot be reached, by any request.
    Unreachable(OriginError),
}

impl FlightOutcome {
    /// Returns the outcome for a fetch that failed. An error that may depend on the leading request (its header
    /// or its share of the origin) is not for others.
    pub(crate) const fn of_error(error: OriginError) -> Self {
        match error {
            OriginError::Connect | OriginError::ConnectTimeout => Self::Unreachable(error),
            _ => Self::Alone,
        }
    }
}

/// The origin of a shared reply, for its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FetchSummary {
    /// The status that the origin sent; `None` if it failed.
    pub(crate) status: Option<u16>,
    pub(crate) stored: bool,
    pub(crate) detail: Option<&'static str>,
    /// The origin that sent the reply; `None` if it failed.
    pub(crate) origin: Option<Authority>,
}

impl FetchSummary {
    /// Describes a stored reply that is used in place of an origin's failure with this status, or without a
    /// reply.
    pub(crate) fn stale_if_error(status: Option<StatusCode>) -> Self {
        let status = status.map(|status| status.as_u16());
        Self { status, stored: false, detail: Some("stale-if-error"), origin: None }
    }
}

/// A fetch in flight, including its body.
#[derive(Debug, Default)]
pub(crate) struct FetchFlight {
    outcome: OnceLock<FlightOutcome>,
    notify: Notify,
}

impl FetchFlight {
    /// Waits for the head of the reply.
    pub(crate) async fn wait(&self) -> FlightOutcome {
        let notified = self.notify.notified();
        tokio::pin!(notified);
        // The waiter registers before it looks, so that a reply that arrives in between is not missed.
        notified.as_mut().enable();
        if let Some(outcome) = self.outcome.get() {
            return outcome.clone();
        }
        notified.await;
        self.outcome.get().cloned().unwrap_or(FlightOutcome::Alone)
    }
}

/// The fetches in flight, by their keys.
#[derive(Debug, Default)]
pub(crate) struct FetchFlights(Mutex<HashMap<Box<[u8]>, Arc<FetchFlight>>>);

/// The result of looking up a fetch.
#[derive(Debug)]
pub(crate) enum FetchRole {
    Join(Arc<FetchFlight>),
    Lead(FetchLead),
}

impl FetchFlights {
    /// Joins the fetch for `key`, or leads a new one.
    pub(crate) fn begin(self: &Arc<Self>, key: &[u8]) -> FetchRole {
        let mut flights = self.lock();
        if let Some(flight) = flights.get(key) {
            return FetchRole::Join(Arc::clone(flight));
        }
        let flight = Arc::<FetchFlight>::default();
        flights.insert(key.into(), Arc::clone(&flight));
        FetchRole::Lead(FetchLead { flights: Arc::clone(self), key: Some(key.into()), flight })
    }

    /// Returns the fetch for `key` that is in flight, if there is one.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Arc<FetchFlight>> {
        self.lock().get(key).map(Arc::clone)
    }

    /// Prevents further requests from joining fetches in flight.
    pub(crate) fn close(&self) {
        self.lock().clear();
    }

    /// Leads a fetch that no request can join.
    pub(crate) fn lead_unshared(self: &Arc<Self>) -> FetchLead {
        FetchLead { flights: Arc::clone(self), key: None, flight: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Arc<FetchFlight>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The duty to announce an outcome. If it is dropped, no request joins any more, and waiting requests ask by
/// themselves.
#[derive(Debug)]
pub(crate) struct FetchLead {
    flights: Arc<FetchFlights>,
    key: Option<Box<[u8]>>,
    flight: Arc<FetchFlight>,
}

impl FetchLead {
    /// Informs the waiting requests.
    pub(crate) fn announce(&self, outcome: FlightOutcome) {
        // Only the first outcome counts.
        let _ = self.flight.outcome.set(outcome);
        self.flight.notify.notify_waiters();
    }

    /// Prevents further requests from joining.
    pub(crate) fn close(&mut self) {
        if let Some(key) = self.key.take() {
            let mut flights = self.flights.lock();
            // A newer fetch may have replaced this one, if this one was closed before.
            if flights.get(&key).is_some_and(|flight| Arc::ptr_eq(flight, &self.flight)) {
                flights.remove(&key);
            }
        }
    }
}

impl Drop for FetchLead {
    fn drop(&mut self) {
        self.close();
        self.announce(FlightOutcome::Alone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_that_join_learn_the_outcome() {
        let flights = Arc::<FetchFlights>::default();
        for (outcome, abandon) in [
            (FlightOutcome::Unreachable(OriginError::Connect), false),
            (FlightOutcome::Alone, false),
            (FlightOutcome::Unreachable(OriginError::Connect), true),
        ] {
            let FetchRole::Lead(lead) = flights.begin(b"a") else { panic!("the first leads") };
            let FetchRole::Join(flight) = flights.begin(b"a") else { panic!("the second joins") };
            assert!(matches!(flights.begin(b"b"), FetchRole::Lead(_)), "another thing");
            let waiting = tokio::spawn(async move { flight.wait().await });
            tokio::task::yield_now().await;
            if !abandon {
                lead.announce(outcome.clone());
            }
            drop(lead);
            let result = waiting.await.unwrap();
            let expected = if abandon { FlightOutcome::Alone } else { outcome };
            assert_eq!(format!("{result:?}"), format!("{expected:?}"));
        }
        assert!(flights.lock().is_empty());
    }

    #[test]
    fn only_a_failed_connection_is_reported_to_all_waiters() {
        use OriginError::{Abandoned, BadReply, Closed, Connect, ConnectTimeout, Full, HeadTimeout};
        for error in [Connect, ConnectTimeout] {
            assert!(matches!(FlightOutcome::of_error(error), FlightOutcome::Unreachable(of) if of == error));
        }
        for error in [Full, HeadTimeout, Closed, BadReply, Abandoned] {
            assert!(matches!(FlightOutcome::of_error(error), FlightOutcome::Alone), "{error}");
        }
    }
}
