//! Purges: who may ask for one, and which entries of the memory it names.
//!
//! A node has no cache on a disk: a directory is the source of its contents and stays as it is.

use crate::body::Body;
use crate::http::cache_status::Outcome;
use crate::http::path;
use crate::memory::{Purged, Selection};
use crate::node::Node;
use crate::store::Store;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use larder_edge::{Location, PURGE_FIELD, Purge, Unpermitted, permit};
use std::sync::Arc;

/// Purges by switches that are under way or wait at one time; further ones get 503.
pub(crate) const PURGES_MAX: usize = 16;

impl Node {
    /// Whether who shows this `Authorization` may purge. A refusal is counted.
    ///
    /// # Errors
    /// The node has no token, or another one.
    pub fn may_purge(&self, authorization: Option<&[u8]>) -> Result<(), Unpermitted> {
        let permitted = permit(self.terms().purge.as_ref(), authorization);
        if permitted.is_err() {
            self.counters.purges_denied.add(1);
        }
        permitted
    }

    /// Removes what a purge names from the memory, replies for all choices of request fields and stored errors among it. What is on
    /// its way from an origin or a disk is not kept if the purge names it. Blocks while it does, and while another purge does.
    pub fn purge(&self, purge: &Purge) -> Purged {
        let purged = self.selection(purge).map(|selection| self.memory.purge(selection)).unwrap_or_default();
        if let Store::Origin(origin) = &self.store {
            origin.close_flights();
        }
        self.counters.purges.add(1);
        self.counters.purged.add(purged.removed);
        let Purged { removed, removed_bytes, .. } = purged;
        tracing::info!(%purge, removed, removed_bytes, "purge: done");
        purged
    }

    /// The entries that a purge names; `None` if nothing of that name is ever kept.
    fn selection(&self, purge: &Purge) -> Option<Selection> {
        let (location, prefix) = match purge {
            Purge::Tag(tag) => return Some(Selection::Tag(tag.clone())),
            Purge::Url(location) => (location, false),
            Purge::Prefix(location) => (location, true),
        };
        let target = location.target();
        match &self.store {
            Store::Origin(origin) => {
                // Without the client's host, one stored reply is for the URLs of all hosts.
                let host = origin.sends_host_of_client().then(|| location.clone());
                Some(Selection::Pages { host, target: target.into(), prefix })
            }
            Store::Model(_) => Some(Selection::Objects { name: target.as_bytes().into(), prefix }),
            Store::Directory(_) => {
                let name = name_of_file(location, prefix)?;
                Some(Selection::Objects { name: name.into(), prefix })
            }
        }
    }

    /// Answers a switch that asks for a purge and may.
    pub(crate) async fn answer_purge(self: &Arc<Self>, parts: &Parts) -> Response<Body> {
        if parts.method != Method::POST {
            let mut reply = self.plain(StatusCode::METHOD_NOT_ALLOWED, Outcome::Local("method"), "");
            reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
            return reply;
        }
        let named = parts.headers.get(PURGE_FIELD).and_then(|value| value.to_str().ok());
        let Some(purge) = named.and_then(|text| Purge::of_displayed(text).ok()) else {
            return self.plain(StatusCode::BAD_REQUEST, Outcome::Local("purge"), "no purge is named");
        };
        let Ok(place) = Arc::clone(&self.purges).try_acquire_owned() else {
            return self.plain(StatusCode::SERVICE_UNAVAILABLE, Outcome::Local("purges-full"), "purges-full");
        };
        let node = Arc::clone(self);
        let purging = tokio::task::spawn_blocking(move || {
            let purged = node.purge(&purge);
            drop(place);
            purged
        });
        match purging.await.ok().and_then(|purged| serde_json::to_vec(&purged).ok()) {
            Some(json) => {
                self.text(StatusCode::OK, Outcome::Local("purge"), "application/json", Bytes::from(json))
            }
            None => self.plain(StatusCode::INTERNAL_SERVER_ERROR, Outcome::Local("abandoned"), "abandoned"),
        }
    }
}

/// The `Authorization` of a request.
pub(crate) fn authorization(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes)
}

/// The name of a file, or the beginning of names; `None` if there are no such files.
fn name_of_file(location: &Location, prefix: bool) -> Option<Vec<u8>> {
    let path = location.target().split('?').next().unwrap_or_default();
    let mut name = path::resolve(path).ok()?.into_owned();
    if prefix && path.ends_with('/') {
        name.truncate(name.len() - path::INDEX.len());
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_names_of_files() {
        for (kind, url, name) in [
            ("url", "http://a/x/y%20z?q", Some("x/y z")),
            ("url", "http://a/", Some("index.html")),
            ("prefix", "http://a/", Some("")),
            ("prefix", "http://a//x/", Some("x/")),
            ("prefix", "http://a/x", Some("x")),
            ("url", "http://a/.hidden", None),
            ("url", "http://a/%", None),
        ] {
            let (Purge::Url(location) | Purge::Prefix(location)) = Purge::new(kind, url).unwrap() else {
                continue;
            };
            let found = name_of_file(&location, kind == "prefix");
            assert_eq!(found.as_deref(), name.map(str::as_bytes), "{kind} {url}");
        }
    }
}
