//! Contents as a reply needs them: length, validators and type as header values made once, and the body if it is
//! short.
//!
//! The entity tag is `"<seconds>-<nanoseconds>-<length>"` of the file in hexadecimal (with a model's target hash
//! appended), so nodes with equal copies send equal tags. It is strong, except while the file's last change is so
//! recent that a further one could leave the same time: then it goes out with `W/`, and the contents are read again
//! when their validity is next looked at.

use crate::http::condition::Validators;
use crate::http::content_type;
use crate::store::Meta;
use bytes::Bytes;
use http::HeaderValue;
use larder_core::TargetId;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// 9999-12-31 23:59:59 UTC, the last second an HTTP date can name.
const LAST_SECOND: i64 = 253_402_300_799;

/// The use of contents that a request has read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeping {
    /// By which id the switch knows the target.
    pub(crate) told: Option<TargetId>,
    /// Whether they go into the cache.
    pub(crate) keep: bool,
}

/// Contents under a name.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) name: Box<[u8]>,
    pub(crate) meta: Meta,
    pub(crate) etag: HeaderValue,
    pub(crate) last_modified: HeaderValue,
    pub(crate) content_type: HeaderValue,
    /// The whole body, unless it is kept in chunks (or was not read).
    pub(crate) body: Option<Bytes>,
    /// The target it belongs to, as a switch knows it.
    pub(crate) told: Option<TargetId>,
    /// Whether its chunks go into the cache.
    pub(crate) keep: bool,
    /// When the store was last asked about it, in milliseconds since the node's start.
    checked_ms: AtomicU64,
}

impl Object {
    pub(crate) fn new(name: &[u8], meta: Meta, body: Option<Bytes>, now_ms: u64) -> Self {
        let weak = if meta.fresh { "W/" } else { "" };
        let tag = if meta.tag == 0 { String::new() } else { format!("-{:x}", meta.tag) };
        let etag = format!("{weak}\"{:x}-{:x}-{:x}{tag}\"", meta.modified.0, meta.modified.1, meta.size);
        // A reply must not claim a change that is still to come.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
        let seconds = meta.modified.0.clamp(0, LAST_SECOND.min(now));
        let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds as u64));
        Self {
            name: name.into(),
            meta,
            etag: HeaderValue::try_from(etag).unwrap_or(HeaderValue::from_static("\"\"")),
            last_modified: HeaderValue::try_from(date).unwrap_or(HeaderValue::from_static("")),
            content_type: HeaderValue::from_static(content_type::of(name)),
            body,
            told: None,
            keep: true,
            checked_ms: AtomicU64::new(now_ms),
        }
    }

    /// The object as a part of what a switch knows as a target, to be kept or not.
    pub(crate) fn of(self, keeping: Keeping) -> Self {
        let Keeping { told, keep } = keeping;
        Self { told, keep, ..self }
    }

    /// What preconditions are held against.
    pub(crate) fn validators(&self) -> Validators<'_> {
        let quoted = self.etag.as_bytes();
        let opaque = quoted.strip_prefix(b"W/").unwrap_or(quoted);
        let opaque = opaque.get(1..opaque.len().saturating_sub(1)).unwrap_or_default();
        Validators { opaque, strong: !self.meta.fresh, modified: Some(self.meta.modified.0) }
    }

    /// Whether what is kept of `self` can stand for `other`.
    pub(crate) fn stands_for(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
            || (self.name == other.name && self.meta.same(&other.meta) && !self.meta.fresh)
    }

    /// Whether the last check of validity is `every_ms` or longer ago.
    pub(crate) fn is_check_due(&self, now_ms: u64, every_ms: u64) -> bool {
        now_ms.saturating_sub(self.checked_ms.load(Relaxed)) >= every_ms
    }

    /// Claims the check of validity that is due if the last is `every_ms` or longer ago: true for one caller, false
    /// for those who come while that one checks.
    pub(crate) fn claim_check(&self, now_ms: u64, every_ms: u64) -> bool {
        let checked = self.checked_ms.load(Relaxed);
        now_ms.saturating_sub(checked) >= every_ms
            && self.checked_ms.compare_exchange(checked, now_ms.max(checked + 1), Relaxed, Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(fresh: bool, modified: (i64, u32)) -> Object {
        Object::new(b"a.txt", Meta { size: 255, modified, fresh, tag: 0 }, None, 1_000)
    }

    #[test]
    fn a_settled_file_has_a_strong_tag_and_a_fresh_one_a_weak_one() {
        let settled = object(false, (1_000_000_000, 10));
        assert_eq!(settled.etag, "\"3b9aca00-a-ff\"");
        assert_eq!(settled.last_modified, "Sun, 09 Sep 2001 01:46:40 GMT");
        assert_eq!(settled.validators().opaque, b"3b9aca00-a-ff");
        let fresh = object(true, (1_000_000_000, 10));
        assert_eq!(fresh.etag, "W/\"3b9aca00-a-ff\"");
        assert_eq!(fresh.validators().opaque, b"3b9aca00-a-ff");
        assert!(!fresh.validators().strong);
        assert!(!fresh.stands_for(&settled), "it may have been read before the last change");
        assert!(settled.stands_for(&fresh));
    }

    #[test]
    fn times_out_of_the_calendar_are_moved_into_it() {
        assert_eq!(object(false, (-5, 0)).last_modified, "Thu, 01 Jan 1970 00:00:00 GMT");
        let future = object(true, (i64::MAX, 0));
        assert!(
            httpdate::parse_http_date(future.last_modified.to_str().unwrap()).unwrap() <= SystemTime::now()
        );
    }

    #[test]
    fn one_caller_claims_a_check() {
        let object = object(false, (0, 0));
        assert!(!object.claim_check(2_999, 2_000));
        assert!(object.claim_check(3_000, 2_000));
        assert!(!object.claim_check(3_000, 2_000));
        assert!(object.claim_check(3_000 + 2_001, 2_000));
    }
}
