//! What a node tells the switches that send it requests: its load, when asked, and changes in its cache, as they come.
//!
//! | signal | source | unit | as old as | missing when |
//! |---|---|---|---|---|
//! | load ([`LoadCounters`]) | own counters, modelled devices, `/proc`, `/sys` | cumulative; microseconds, bytes, counts | 10 ms at most | field by field: `null` |
//! | cache ([`stream`]) | the memory cache | targets by id | as the link takes | no id was told for the object |
//!
//! Neither is for clients: see [`crate::entry`].

mod config;
mod kernel;
mod page;
pub(crate) mod residents;
pub(crate) mod stream;

pub use config::{CpuScope, ReportConfig};
pub use page::{LoadCounters, Origin};

use crate::body::Body;
use crate::config::StoreConfig;
use crate::http::cache_status::Outcome;
use crate::node::Node;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Response, StatusCode};
use larder_core::TargetId;
use page::Pages;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// The request header in which a switch tells the target's id.
pub(crate) const TARGET: HeaderName = HeaderName::from_static("larder-target");

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

/// The target's id as a switch told it; `None` if it told none, or nothing that can be read.
pub(crate) fn told(headers: &HeaderMap) -> Option<TargetId> {
    let digits = headers.get(TARGET)?.to_str().ok()?;
    let plain = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, 16).ok().map(TargetId)).flatten()
}

/// Whether a gateway has relayed the request.
pub(crate) fn is_relayed(headers: &HeaderMap) -> bool {
    const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
    [header::VIA, header::FORWARDED, FORWARDED_FOR].iter().any(|name| headers.contains_key(name))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))])
    }

    #[test]
    fn an_id_is_sixteen_digits() {
        for (value, id) in [
            ("00000000000000ff", Some(TargetId(255))),
            ("FFFFFFFFFFFFFFFF", Some(TargetId(u64::MAX))),
            ("ff", None),
            ("+0000000000000ff", None),
            ("000000000000000ff", None),
            ("000000000000000g", None),
            ("", None),
        ] {
            assert_eq!(told(&headers("larder-target", value)), id, "{value}");
        }
        assert_eq!(told(&HeaderMap::new()), None);
    }

    #[test]
    fn what_a_gateway_sends_is_told_apart() {
        assert!(is_relayed(&headers("via", "1.1 larder")));
        assert!(is_relayed(&headers("x-forwarded-for", "192.0.2.1")));
        assert!(is_relayed(&headers("forwarded", "for=192.0.2.1")));
        assert!(!is_relayed(&headers("host", "a")));
    }
}
