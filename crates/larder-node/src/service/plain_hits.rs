//! Fast path for plain requests for files that are completely in memory.
//!
//! The reply is the same as that of [`super::Service::handle`]. Requests with conditions or ranges take the
//! full path. So do all requests of a node with peers, traces, an access log or a modelled processor.
//! Requests for a file whose validity must be checked take the full path too.

use crate::common_parts::CommonParts;
use crate::connection::{ConnectionRecord, InFlightRequest};
use crate::counters::Counters;
use crate::edge::ConnectionInfo;
use crate::http::cache_status::Outcome;
use crate::object::Object;
use crate::objects::Objects;
use crate::reply::{ACCEPT_RANGES_BYTES, CACHE_STATUS, LARDER_STORE, NOSNIFF, Replies};
use crate::settings::{CurrentSettings, NodeSettings};
use ::http::StatusCode;
use ::http::header;
use larder_http::convert::append;
use larder_http::h1::{Body, Fault, ReplyHead, RequestHead};
use larder_http::relay::{AfterAnswer, Answer, Clock};
use std::sync::Arc;

/// Answers plain requests for files that are completely in memory.
#[derive(Debug)]
pub(crate) struct PlainHits {
    objects: Arc<Objects>,
    settings: Arc<CurrentSettings>,
    replies: Arc<Replies>,
    counters: Arc<Counters>,
}

impl PlainHits {
    pub(super) fn new(objects: &Arc<Objects>, common: &CommonParts) -> Self {
        Self {
            objects: Arc::clone(objects),
            settings: Arc::clone(&common.settings),
            replies: Arc::clone(&common.replies),
            counters: Arc::clone(&common.counters),
        }
    }

    /// Returns the reply to a request; `None` if the request needs the full path.
    pub(super) fn answer(
        &self,
        connection: &Arc<ConnectionRecord>,
        head: &RequestHead,
    ) -> Option<(InFlightRequest, Answer)> {
        let object = self.find_plain_hit(&self.settings.load(), head)?;
        if connection.info().is_some_and(ConnectionInfo::redirects_to_tls) {
            return None;
        }
        let body = object.body.clone()?;
        let head = self.reply_head(&object).ok()?;
        let in_flight = InFlightRequest::begin(connection, Clock::now());
        if in_flight.is_later_request() {
            self.counters.later.add(1);
        }
        self.counters.requests.add(1);
        self.replies.count(StatusCode::OK, Outcome::Hit);
        Some((in_flight, Answer { head, body: body.into(), then: AfterAnswer::KeepAlive }))
    }

    /// Returns the file that a request asks for, if the request is plain and the file is completely in memory.
    fn find_plain_hit(&self, settings: &NodeSettings, head: &RequestHead) -> Option<Arc<Object>> {
        let target = std::str::from_utf8(head.target()).ok().filter(|target| is_plain_target(target))?;
        let path = target.split('?').next().unwrap_or_default();
        let is_plain = head.method() == b"GET"
            && head.body() == Body::None
            && !head.asks_for_upgrade()
            && !head.is_http10()
            && target.len() <= settings.limits.uri_bytes_max
            && settings.own_path(path).is_none()
            && head.fields.iter().all(|field| is_plain_name(field.name));
        if !is_plain {
            return None;
        }
        self.objects.find_valid(&self.objects.name_of_target(target)?, Clock::now)
    }

    fn reply_head(&self, object: &Object) -> Result<ReplyHead, Fault> {
        let mut head = ReplyHead::with_status(StatusCode::OK.as_u16());
        append(&mut head, &CACHE_STATUS, &self.replies.cache_status.format(Outcome::Hit))?;
        if let Some(kind) = self.replies.synthetic() {
            append(&mut head, &LARDER_STORE, kind)?;
        }
        append(&mut head, &header::CONTENT_TYPE, &object.content_type)?;
        append(&mut head, &header::ETAG, &object.etag)?;
        append(&mut head, &header::LAST_MODIFIED, &object.last_modified)?;
        append(&mut head, &header::ACCEPT_RANGES, &ACCEPT_RANGES_BYTES)?;
        append(&mut head, &header::X_CONTENT_TYPE_OPTIONS, &NOSNIFF)?;
        Ok(head)
    }
}

/// Returns whether a target is a path with an optional query, in characters that need no decoding.
fn is_plain_target(target: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~!$&'()*+,;=:@?".contains(&byte);
    target.starts_with('/') && target.bytes().all(is_plain)
}

/// Returns whether a field name is neither a range nor a condition, and has no underscore that the entry rules
/// would count.
fn is_plain_name(name: &[u8]) -> bool {
    let is_condition = name.get(..3).is_some_and(|begin| begin.eq_ignore_ascii_case(b"if-"));
    !is_condition && !name.eq_ignore_ascii_case(b"range") && !name.contains(&b'_')
}
