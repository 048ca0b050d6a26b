//! Plain requests for files that are whole in memory, answered without the steps that other requests need.
//!
//! The reply is the one that [`Node::handle`] gives. Requests with conditions or ranges go there, and all requests of a node with
//! programs, peers, traces, an access log or a modelled processor. So do requests for a file whose validity must be checked.

use crate::connection::{InFlight, Shared};
use crate::edge::Entered;
use crate::http::cache_status::Outcome;
use crate::http::path;
use crate::memory::{Entry, Wanted};
use crate::node::Node;
use crate::object::Object;
use crate::reply::{ACCEPT_RANGES_BYTES, CACHE_STATUS, LARDER_STORE, NOSNIFF};
use crate::store::Store;
use crate::terms::Terms;
use ::http::StatusCode;
use ::http::header::{self, HeaderValue};
use larder_http::convert::append;
use larder_http::h1::{Body, Fault, ReplyHead, RequestHead};
use larder_http::relay::{Answer, Clock, Then};
use std::sync::Arc;

impl Node {
    /// The answer to a request, if it is one of those above.
    pub(crate) fn answer_at_once(
        &self,
        shared: &Arc<Shared>,
        head: &RequestHead,
    ) -> Option<(InFlight, Answer)> {
        if !self.answers_at_once || self.cooperation.get().is_some() || self.access.is_open() {
            return None;
        }
        let object = self.held_whole(&self.terms(), head)?;
        if shared.entered().is_some_and(Entered::may_send_on) {
            return None;
        }
        let body = object.body.clone()?;
        let head = self.head_of(&object).ok()?;
        let in_flight = shared.begin(Clock::now());
        if in_flight.is_later() {
            self.counters.later.add(1);
        }
        self.counters.requests.add(1);
        self.count(StatusCode::OK, Outcome::Hit);
        Some((in_flight, Answer { head, body: body.into(), then: Then::GoesOn }))
    }

    /// The file that a request asks for, if the request is plain and the file is whole in memory.
    fn held_whole(&self, terms: &Terms, head: &RequestHead) -> Option<Arc<Object>> {
        let target = std::str::from_utf8(head.target()).ok().filter(|target| is_plain_target(target))?;
        let path = target.split('?').next().unwrap_or_default();
        let is_plain = head.method() == b"GET"
            && head.body() == Body::None
            && !head.asks_for_upgrade()
            && !head.is_http10()
            && target.len() <= terms.limits.uri_bytes_max
            && terms.own(path).is_none()
            && head.fields.iter().all(|field| is_plain_name(field.name));
        if !is_plain {
            return None;
        }
        let name = match &self.store {
            Store::Directory(_) => path::resolve(path).ok()?,
            Store::Model(_) => target.as_bytes().into(),
            Store::Origin(_) => return None,
        };
        let hash = self.memory.hash(&name);
        let Some(Entry::Head(object)) = self.memory.find((hash, 0), Wanted::Head(&name)) else { return None };
        let now_ms = u64::try_from(self.uptime_at(Clock::now()).as_millis()).unwrap_or(u64::MAX);
        let is_due = self.store.can_change() && object.is_check_due(now_ms, terms.revalidate_ms);
        (!is_due && object.meta.size > 0).then_some(object)
    }

    fn head_of(&self, object: &Object) -> Result<ReplyHead, Fault> {
        let mut head = ReplyHead::with_status(StatusCode::OK.as_u16());
        append(&mut head, &CACHE_STATUS, &self.speller.spell(Outcome::Hit))?;
        if !self.store.can_change() {
            append(&mut head, &LARDER_STORE, &HeaderValue::from_static(self.store.kind()))?;
        }
        append(&mut head, &header::CONTENT_TYPE, &object.content_type)?;
        append(&mut head, &header::ETAG, &object.etag)?;
        append(&mut head, &header::LAST_MODIFIED, &object.last_modified)?;
        append(&mut head, &header::ACCEPT_RANGES, &ACCEPT_RANGES_BYTES)?;
        append(&mut head, &header::X_CONTENT_TYPE_OPTIONS, &NOSNIFF)?;
        Ok(head)
    }
}

/// Whether a target is a path, perhaps with a query, in characters that stand for themselves.
fn is_plain_target(target: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~!$&'()*+,;=:@?".contains(&byte);
    target.starts_with('/') && target.bytes().all(is_plain)
}

/// Whether a field of this name neither asks for a part nor sets a condition, and is counted by nobody.
fn is_plain_name(name: &[u8]) -> bool {
    let is_condition = name.get(..3).is_some_and(|begin| begin.eq_ignore_ascii_case(b"if-"));
    !is_condition && !name.eq_ignore_ascii_case(b"range") && !name.contains(&b'_')
}
