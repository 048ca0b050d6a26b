//! The reports of a node: its statistics, and the signals for the switches that send it requests. Switches poll
//! the load, and follow the changes of the cache in a stream.
//!
//! | signal | source | unit | age | missing if |
//! |---|---|---|---|---|
//! | load ([`LoadCounters`]) | own counters, modelled devices, `/proc`, `/sys` | cumulative; microseconds, bytes, counts | 10 ms at most | field by field: `null` |
//! | cache ([`stream`]) | the memory cache | targets by id | the delay of the connection | the switch sent no id for the object |
//!
//! Clients get neither signal: see [`crate::service::Admission`].

mod kernel;
mod page;
mod reloads;
mod stats;
mod stream;

pub use page::{DeviceSource, LoadCounters};
pub use reloads::ReloadCounts;
pub use stats::NodeStats;

use crate::access_log::AccessLogger;
use crate::body::Body;
use crate::common_parts::CommonParts;
use crate::config::{CpuScope, ReportConfig, StoreConfig};
use crate::contents::Contents;
use crate::counters::Counters;
use crate::http::cache_status::Outcome;
use crate::lifecycle::Lifecycle;
use crate::machine::{Machine, Usage};
use crate::memory::Memory;
use crate::reply::Replies;
use crate::settings::CurrentSettings;
use crate::uptime::Uptime;
use http::header::{self, HeaderValue};
use http::{Method, Response, StatusCode};
use page::{LoadInputs, LoadPage};
use stats::NodeFacts;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Creates the reports of a node.
#[derive(Debug)]
pub(crate) struct Reports {
    name: Box<str>,
    run: u64,
    load_page: LoadPage,
    contents: Arc<Contents>,
    memory: Arc<Memory>,
    machine: Arc<Machine>,
    access: Arc<AccessLogger>,
    lifecycle: Arc<Lifecycle>,
    settings: Arc<CurrentSettings>,
    replies: Arc<Replies>,
    counters: Arc<Counters>,
    uptime: Uptime,
}

/// The parts of a node that the reports read.
pub(crate) struct ReportInputs<'a> {
    pub(crate) name: &'a str,
    pub(crate) common: &'a CommonParts,
    pub(crate) contents: &'a Arc<Contents>,
    pub(crate) access: &'a Arc<AccessLogger>,
    pub(crate) lifecycle: &'a Arc<Lifecycle>,
}

impl Reports {
    /// Creates the reports of a node with this store. `cpu` selects the processor time that counts.
    pub(crate) fn new(inputs: &ReportInputs<'_>, cpu: CpuScope, store: &StoreConfig) -> Self {
        let ReportInputs { name, common, contents, access, lifecycle } = *inputs;
        let run = RandomState::new().hash_one(std::process::id());
        let device = match store {
            StoreConfig::Directory { root, .. } => {
                rustix::fs::stat(root).ok().and_then(|stat| kernel::device_file(&stat))
            }
            _ => None,
        };
        Self {
            name: name.into(),
            run,
            load_page: LoadPage::new(run, cpu, device),
            contents: Arc::clone(contents),
            memory: Arc::clone(&common.memory),
            machine: Arc::clone(&common.machine),
            access: Arc::clone(access),
            lifecycle: Arc::clone(lifecycle),
            settings: Arc::clone(&common.settings),
            replies: Arc::clone(&common.replies),
            counters: Arc::clone(&common.counters),
            uptime: common.uptime,
        }
    }

    /// Returns the node's counts, and its current levels. Takes the cache's lock for a moment.
    pub(crate) fn stats(&self) -> NodeStats {
        let mut memory = self.memory.stats();
        if let Some(origin) = self.contents.origin() {
            memory.reading = origin.requests_in_flight();
        }
        NodeStats::new(
            &self.counters,
            NodeFacts {
                name: self.name.to_string(),
                kind: self.contents.kind(),
                draining: self.lifecycle.is_draining(),
                memory,
                store: self.contents.stats(),
                origin: self.contents.origin_stats(),
                usage: self.usage(),
                access_log_dropped: self.access.dropped_lines(),
            },
        )
    }

    /// Returns the work of the node's processor and disks, and the jobs that wait for them.
    pub(crate) fn usage(&self) -> Usage {
        self.contents.add_reads(self.machine.usage())
    }

    /// Returns the load counters. Reads some files of `/proc` and `/sys`, which takes about 100 us.
    pub(crate) fn load_counters(&self) -> LoadCounters {
        let (stats, counters) = (self.stats(), &*self.counters);
        self.load_page.load_counters(LoadInputs {
            stats,
            counters,
            machine: &self.machine,
            uptime: self.uptime,
        })
    }

    /// Answers an admitted request for one of the reports.
    pub(crate) async fn answer(self: &Arc<Self>, method: &Method, path: &str) -> Response<Body> {
        if method != Method::GET {
            return self.replies.method_not_allowed("GET");
        }
        let mut reply = if self.settings.load().report.load_path.as_deref() == Some(path) {
            self.load().await
        } else {
            self.events()
        };
        reply.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        reply
    }

    async fn load(self: &Arc<Self>) -> Response<Body> {
        let reports = Arc::clone(self);
        let made =
            tokio::task::spawn_blocking(move || reports.load_page.load_page(|| reports.load_counters()))
                .await;
        match made {
            Ok(page) => self.replies.text(StatusCode::OK, Outcome::Local("load"), "application/json", page),
            Err(_) => {
                let outcome = Outcome::Local("abandoned");
                self.replies.plain(StatusCode::INTERNAL_SERVER_ERROR, outcome, "abandoned")
            }
        }
    }

    fn events(&self) -> Response<Body> {
        let settings = self.settings.load();
        let ReportConfig { subscribers_max, backlog_max, .. } = settings.report;
        let Some(subscription) = self.memory.subscribe(subscribers_max, backlog_max) else {
            return self.replies.over_limit("subscribers-full");
        };
        let source = stream::EventInputs {
            name: self.name.clone(),
            run: self.run,
            memory: Arc::clone(&self.memory),
            settings: Arc::clone(&self.settings),
            uptime: self.uptime,
        };
        let events = stream::EventStream::new(source, subscription, &settings.report);
        let outcome = Outcome::Local("events");
        let mut reply = self.replies.start(StatusCode::OK, outcome, Body::unbounded(events));
        let kind = HeaderValue::from_static("application/x-ndjson");
        reply.headers_mut().insert(header::CONTENT_TYPE, kind);
        reply
    }
}
