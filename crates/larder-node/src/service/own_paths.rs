//! The paths that the node answers itself.

use crate::body::Body;
use crate::common_parts::CommonParts;
use crate::counters::Counters;
use crate::http::cache_status::Outcome;
use crate::lifecycle::Lifecycle;
use crate::purge::Purger;
use crate::reply::Replies;
use crate::report::Reports;
use crate::settings::OwnPath;
use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use std::sync::Arc;

/// Answers requests for the node's own paths.
#[derive(Debug)]
pub(crate) struct OwnPaths {
    reports: Arc<Reports>,
    purger: Arc<Purger>,
    lifecycle: Arc<Lifecycle>,
    replies: Arc<Replies>,
    counters: Arc<Counters>,
}

impl OwnPaths {
    pub(crate) fn new(
        common: &CommonParts,
        reports: &Arc<Reports>,
        purger: &Arc<Purger>,
        lifecycle: &Arc<Lifecycle>,
    ) -> Self {
        Self {
            reports: Arc::clone(reports),
            purger: Arc::clone(purger),
            lifecycle: Arc::clone(lifecycle),
            replies: Arc::clone(&common.replies),
            counters: Arc::clone(&common.counters),
        }
    }

    /// Returns the reply to an admitted request.
    pub(super) async fn answer(&self, own: OwnPath, parts: &Parts) -> Response<Body> {
        match own {
            OwnPath::Health => self.health(),
            OwnPath::Stats => {
                let json = serde_json::to_vec(&self.reports.stats()).unwrap_or_default();
                let outcome = Outcome::Local("stats");
                self.replies.text(StatusCode::OK, outcome, "application/json", Bytes::from(json))
            }
            OwnPath::Report => self.reports.answer(&parts.method, parts.uri.path()).await,
            OwnPath::Purge => self.purger.answer(parts).await,
        }
    }

    /// Returns the 404 for a sender that may not ask for one of the node's own paths. Such a path is never
    /// passed to the origin.
    pub(super) fn deny(&self) -> Response<Body> {
        self.counters.own_denied.add(1);
        self.replies.plain(StatusCode::NOT_FOUND, Outcome::Local("denied"), "not-found")
    }

    fn health(&self) -> Response<Body> {
        let outcome = Outcome::Local("health");
        match self.lifecycle.is_draining() {
            false => self.replies.plain(StatusCode::OK, outcome, "ok"),
            true => self.replies.plain(StatusCode::SERVICE_UNAVAILABLE, outcome, "draining"),
        }
    }
}
