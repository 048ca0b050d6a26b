//! Purges: who may request them, and how they run.
//!
//! A node has no cache on disk. A directory is the source of its contents and is never changed.

use crate::body::Body;
use crate::contents::Contents;
use crate::counters::Counters;
use crate::http::cache_status::Outcome;
use crate::memory::{Memory, PurgeReport};
use crate::reply::Replies;
use crate::settings::NodeSettings;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use larder_edge::{PURGE_FIELD, PermissionError, Purge, permit};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Most purges from switches that run or wait at one time. Further ones get 503.
const PURGES_MAX: usize = 16;

/// Removes contents from the memory cache on request.
#[derive(Debug)]
pub(crate) struct Purger {
    contents: Arc<Contents>,
    memory: Arc<Memory>,
    counters: Arc<Counters>,
    replies: Arc<Replies>,
    /// Permits for purges from switches.
    permits: Arc<Semaphore>,
}

impl Purger {
    pub(crate) fn new(
        contents: &Arc<Contents>,
        memory: &Arc<Memory>,
        counters: &Arc<Counters>,
        replies: &Arc<Replies>,
    ) -> Self {
        Self {
            contents: Arc::clone(contents),
            memory: Arc::clone(memory),
            counters: Arc::clone(counters),
            replies: Arc::clone(replies),
            permits: Arc::new(Semaphore::new(PURGES_MAX)),
        }
    }

    /// Removes the entries that a purge names from the memory. Contents that are being read or fetched are not
    /// stored if the purge names them. Blocks until this purge and all earlier ones are done.
    pub(crate) fn purge(&self, purge: &Purge) -> PurgeReport {
        let selection = self.contents.selection(purge);
        let purged = selection.map(|selection| self.memory.purge(selection)).unwrap_or_default();
        if let Some(origin) = self.contents.origin() {
            origin.close_flights();
        }
        self.counters.purges.add(1);
        self.counters.purged.add(purged.removed);
        let PurgeReport { removed, removed_bytes, .. } = purged;
        tracing::info!(purge = purge.to_string(), removed, removed_bytes, "purge: done");
        purged
    }

    /// Answers an admitted purge request of a switch.
    pub(crate) async fn answer(self: &Arc<Self>, parts: &Parts) -> Response<Body> {
        let replies = &self.replies;
        if parts.method != Method::POST {
            return replies.method_not_allowed("POST");
        }
        let named = parts.headers.get(PURGE_FIELD).and_then(|value| value.to_str().ok());
        let Some(purge) = named.and_then(|text| Purge::parse(text).ok()) else {
            return replies.plain(StatusCode::BAD_REQUEST, Outcome::Local("purge"), "no purge is given");
        };
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            let outcome = Outcome::Local("purges-full");
            return replies.plain(StatusCode::SERVICE_UNAVAILABLE, outcome, "purges-full");
        };
        let purger = Arc::clone(self);
        let purging = tokio::task::spawn_blocking(move || {
            let purged = purger.purge(&purge);
            drop(permit);
            purged
        });
        match purging.await.ok().and_then(|purged| serde_json::to_vec(&purged).ok()) {
            Some(json) => {
                replies.text(StatusCode::OK, Outcome::Local("purge"), "application/json", Bytes::from(json))
            }
            None => {
                let outcome = Outcome::Local("abandoned");
                replies.plain(StatusCode::INTERNAL_SERVER_ERROR, outcome, "abandoned")
            }
        }
    }
}

/// Checks whether the sender of this `Authorization` may purge. A refusal is counted.
///
/// # Errors
/// Fails if the node has no purge token, or if the token differs.
pub(crate) fn permit_purge(
    settings: &NodeSettings,
    counters: &Counters,
    authorization: Option<&[u8]>,
) -> Result<(), PermissionError> {
    let permitted = permit(settings.purge.as_ref(), authorization);
    if permitted.is_err() {
        counters.purges_denied.add(1);
    }
    permitted
}

/// Returns the `Authorization` of a request.
pub(crate) fn authorization(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes)
}
