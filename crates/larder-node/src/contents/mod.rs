//! Answers requests for contents from one of three sources: a modelled store's programs, a store with the memory
//! cache, or an origin.
//!
//! ```text
//! Contents -> Programs
//!          -> StoreService (a store's objects; for later requests LateralFetcher) or OriginService (an origin)
//! ```

mod lateral;
mod programs;
mod store_service;

pub use lateral::LateralConfig;

pub(crate) use lateral::{HandoffContext, LateralFetcher};

use crate::body::Body;
use crate::common_parts::CommonParts;
use crate::config::{NodeConfig, StoreConfig};
use crate::counters::Counters;
use crate::http::cache_status::Outcome;
use crate::machine::Usage;
use crate::memory::Selection;
use crate::objects::Objects;
use crate::origin::{Origin, OriginService, OriginStats};
use crate::reply::Replies;
use crate::settings::CurrentSettings;
use crate::store::{Store, StoreStats};
use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use larder_core::TargetId;
use larder_edge::Purge;
use programs::Programs;
use std::error::Error;
use std::sync::Arc;
use store_service::StoreService;

/// Answers requests for contents.
#[derive(Debug)]
pub(crate) struct Contents {
    programs: Option<Programs>,
    source: Source,
    settings: Arc<CurrentSettings>,
    replies: Arc<Replies>,
    counters: Arc<Counters>,
}

/// The source of contents that no program generates.
#[derive(Debug)]
pub(crate) enum Source {
    /// A store. Requests are answered from its objects.
    Store(StoreService),
    /// An origin. It receives whole requests.
    Origin(Arc<OriginService>),
}

impl Source {
    /// Creates the source for `store`.
    pub(crate) fn from_store(config: &NodeConfig, store: Store, common: &CommonParts) -> Self {
        let CommonParts { memory, machine, replies, counters, .. } = common;
        Self::Store(StoreService {
            objects: Arc::new(Objects::new(config, store, memory, common.uptime)),
            replies: Arc::clone(replies),
            counters: Arc::clone(counters),
            machine: Arc::clone(machine),
        })
    }

    /// Creates the source for an origin.
    pub(crate) fn from_origin(origin: Origin, common: &CommonParts) -> Self {
        let CommonParts { memory, replies, .. } = common;
        Self::Origin(Arc::new(OriginService::new(origin, memory, replies, common.uptime)))
    }
}

impl Contents {
    /// Creates the contents of a source, and of a modelled store's programs, from a validated configuration.
    pub(crate) fn new(config: &NodeConfig, source: Source, common: &CommonParts) -> Self {
        let CommonParts { machine, settings, replies, counters, .. } = common;
        let programs = match &config.store {
            StoreConfig::Model(model) if !model.programs.is_empty() => {
                Some(Programs::new(&model.programs, machine, replies, counters))
            }
            _ => None,
        };
        Self {
            programs,
            source,
            settings: Arc::clone(settings),
            replies: Arc::clone(replies),
            counters: Arc::clone(counters),
        }
    }

    /// Returns the reply to a request.
    pub(crate) async fn reply<B>(
        &self,
        parts: &Parts,
        body: B,
        handoff: Option<&HandoffContext>,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let uri_bytes_max = self.settings.load().limits.uri_bytes_max;
        self.counters.requests.add(1);
        let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
        if target.len() > uri_bytes_max {
            return self.replies.plain(StatusCode::URI_TOO_LONG, Outcome::Local("uri-length"), "");
        }
        if let Some(programs) = &self.programs
            && let Some(program) = programs.find(parts.uri.path(), target)
        {
            return Box::pin(programs.run(program, parts)).await;
        }
        match &self.source {
            Source::Origin(service) => Box::pin(service.answer(parts, body)).await,
            Source::Store(stored) => stored.reply(parts, handoff).await,
        }
    }

    /// Returns the objects of the store, if there is one.
    pub(crate) fn objects(&self) -> Option<&Arc<Objects>> {
        match &self.source {
            Source::Store(stored) => Some(&stored.objects),
            Source::Origin(_) => None,
        }
    }

    /// Returns the origin, if there is one.
    pub(crate) fn origin(&self) -> Option<&Arc<Origin>> {
        match &self.source {
            Source::Store(_) => None,
            Source::Origin(service) => Some(service.origin()),
        }
    }

    /// Returns the number of programs.
    pub(crate) fn programs(&self) -> usize {
        self.programs.as_ref().map_or(0, Programs::len)
    }

    /// Applies the settings that may change while the node runs. Call this from one thread at a time, within
    /// the runtime.
    pub(crate) fn change(&self, config: &NodeConfig) {
        match (&self.source, &config.store) {
            (Source::Store(stored), _) => stored.objects.change(config),
            (Source::Origin(service), StoreConfig::Origin(config)) => {
                service.origin().change((**config).clone());
            }
            (Source::Origin(_), _) => {}
        }
    }

    /// Returns whether any node with the same contents may answer a request as well as this node: a GET or HEAD
    /// that no program answers.
    pub(crate) fn any_node_may_answer(&self, parts: &Parts) -> bool {
        let path = parts.uri.path();
        let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
        let dynamic = self.programs.as_ref().is_some_and(|programs| programs.find(path, target).is_some());
        matches!(parts.method, Method::GET | Method::HEAD) && !dynamic
    }

    /// Returns the target of a request: the file, the modelled name, or the host and target at the origin.
    /// `None` if there is none.
    pub(crate) fn target_of(&self, parts: &Parts) -> Option<TargetId> {
        match &self.source {
            Source::Store(stored) => stored.objects.name_of(&parts.uri).ok().map(|name| TargetId::of(&name)),
            Source::Origin(service) => {
                // This is the name that the memory uses. A host has several spellings.
                let host = service.origin().host(parts)?;
                let rest = parts.uri.path_and_query()?.as_str();
                Some(TargetId::of_parts(&[host.as_bytes(), rest.as_bytes()]))
            }
        }
    }

    /// Returns the cache entries that a purge names; `None` if no entry can ever have such a name.
    pub(crate) fn selection(&self, purge: &Purge) -> Option<Selection> {
        let (location, prefix) = match purge {
            Purge::Tag(tag) => return Some(Selection::Tag(tag.clone())),
            Purge::Url(location) => (location, false),
            Purge::Prefix(location) => (location, true),
        };
        match &self.source {
            Source::Store(stored) => stored.objects.selection(location, prefix),
            Source::Origin(service) => {
                // If the client's host is not passed on, one stored reply serves the URLs of all hosts.
                let host = service.origin().sends_host_of_client().then(|| location.clone());
                Some(Selection::Pages { host, target: location.target().into(), prefix })
            }
        }
    }

    /// Returns `directory`, `model` or `origin`, as reported in the statistics.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.source {
            Source::Store(stored) => stored.objects.store.kind(),
            Source::Origin(_) => "origin",
        }
    }

    /// Returns fields for the log line at the start.
    pub(crate) fn describe(&self) -> String {
        match &self.source {
            Source::Store(stored) => stored.objects.store.describe(),
            Source::Origin(service) => format!("kind=origin url={}", service.origin().settings().config.url),
        }
    }

    /// Returns the counts of the source since the node's start.
    pub(crate) fn stats(&self) -> StoreStats {
        match &self.source {
            Source::Store(stored) => stored.objects.store.stats(),
            Source::Origin(service) => {
                let (reads, bytes, busy) = service.origin().totals();
                StoreStats { reads, bytes, busy }
            }
        }
    }

    /// Returns counts and levels of the origin; all zero if there is none.
    pub(crate) fn origin_stats(&self) -> OriginStats {
        self.origin().map(|origin| origin.stats()).unwrap_or_default()
    }

    /// Adds the reads of a directory to the machine's reads.
    pub(crate) fn add_reads(&self, mut usage: Usage) -> Usage {
        if let Some(Store::Directory(directory)) = self.objects().map(|objects| &objects.store) {
            let stats = directory.stats();
            usage.disk_reads += stats.reads;
            usage.disk_bytes += stats.bytes;
        }
        usage
    }
}
