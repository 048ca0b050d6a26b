//! What a node tells the switches that send it requests: its load, when asked, and changes in its cache, as they come.
//!
//! | signal | source | unit | as old as | missing when |
//! |---|---|---|---|---|
//! | load ([`LoadCounters`]) | own counters, modelled devices, `/proc`, `/sys` | cumulative; microseconds, bytes, counts | 10 ms at most | field by field: `null` |
//! | cache ([`stream`]) | the memory cache | targets by id | as the link takes | no id was told for the object |
//!
//! Neither is for clients: see [`crate::entry`].

mod kernel;
mod page;
pub(crate) mod stream;

pub use page::{LoadCounters, Origin};

use crate::body::Body;
use crate::config::{CpuScope, ReportConfig, StoreConfig};
use crate::http::cache_status::Outcome;
use crate::node::Node;
use http::header::{self, HeaderValue};
use http::{Method, Response, StatusCode};
use page::Pages;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// What reporting needs.
#[derive(Debug)]
pub(crate) struct Report {
    run: u64,
    pages: Pages,
}

impl Report {
    /// `cpu`: whose processor time counts.
    pub(crate) fn new(cpu: CpuScope, store: &StoreConfig) -> Self {
        let run = RandomState::new().hash_one(std::process::id());
        let device = match store {
            StoreConfig::Directory { root, .. } => {
                rustix::fs::stat(root).ok().and_then(|stat| kernel::device_file(&stat))
            }
            _ => None,
        };
        let pages = Pages::new(run, cpu, device);
        Self { run, pages }
    }
}

impl Node {
    /// Answers a request for one of the reports, which has been admitted.
    pub(crate) async fn report(self: &Arc<Self>, method: &Method, path: &str) -> Response<Body> {
        if method != Method::GET {
            let mut reply = self.plain(StatusCode::METHOD_NOT_ALLOWED, Outcome::Local("method"), "");
            reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
            return reply;
        }
        let mut reply = if self.terms().report.load_path.as_deref() == Some(path) {
            self.load().await
        } else {
            self.events()
        };
        reply.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        reply
    }

    async fn load(self: &Arc<Self>) -> Response<Body> {
        let node = Arc::clone(self);
        match tokio::task::spawn_blocking(move || node.load_page()).await {
            Ok(page) => self.text(StatusCode::OK, Outcome::Local("load"), "application/json", page),
            Err(_) => self.plain(StatusCode::INTERNAL_SERVER_ERROR, Outcome::Local("abandoned"), "abandoned"),
        }
    }

    fn events(self: &Arc<Self>) -> Response<Body> {
        let terms = self.terms();
        let ReportConfig { subscribers_max, backlog_max, .. } = terms.report;
        let Some(subscription) = self.memory.subscribe(subscribers_max, backlog_max) else {
            let detail = "subscribers-full";
            let mut reply = self.plain(StatusCode::SERVICE_UNAVAILABLE, Outcome::Local(detail), detail);
            reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            return reply;
        };
        let events = stream::Events::new(Arc::clone(self), subscription, &terms.report);
        let mut reply = self.start(StatusCode::OK, Outcome::Local("events"), Body::events(events));
        let kind = HeaderValue::from_static("application/x-ndjson");
        reply.headers_mut().insert(header::CONTENT_TYPE, kind);
        reply
    }

    /// Ends the event streams, for good.
    pub(crate) fn end_events(&self) {
        self.memory.end_subscriptions();
    }
}
