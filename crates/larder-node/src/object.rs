//! Objects: contents with length, validators and type as ready header values, and the body if it is short.
//!
//! The entity tag is `"<seconds>-<nanoseconds>-<length>"` of the file in hexadecimal; a model appends the
//! target's hash. So nodes with equal copies send equal tags. The tag is strong, unless the file's last change
//! is so recent that another change could have the same time. Then the tag is sent with `W/`, and the contents
//! are read again at the next validity check.

use crate::http::condition::Validators;
use crate::http::content_type;
use crate::store::Meta;
use bytes::Bytes;
use http::HeaderValue;
use larder_core::TargetId;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// 9999-12-31 23:59:59 UTC, the last second that an HTTP date can express.
const LAST_SECOND: i64 = 253_402_300_799;

/// Whether and under which target id the contents of a read are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoragePolicy {
    /// The id by which the switch knows the target.
    pub(crate) target_id: Option<TargetId>,
    /// Whether the contents go into the cache.
    pub(crate) may_store: bool,
}

/// The contents of one name.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) name: Box<[u8]>,
    pub(crate) meta: Meta,
    pub(crate) etag: HeaderValue,
    pub(crate) last_modified: HeaderValue,
    pub(crate) content_type: HeaderValue,
    /// The whole body; `None` if the object is stored in chunks or was not read.
    pub(crate) body: Option<Bytes>,
    /// The id of the target that the object belongs to, if a switch named one.
    pub(crate) target_id: Option<TargetId>,
    /// Whether the object's chunks go into the cache.
    pub(crate) may_store: bool,
    /// Time of the last validity check, in milliseconds since the node's start.
    checked_ms: AtomicU64,
}

impl Object {
    pub(crate) fn new(name: &[u8], meta: Meta, body: Option<Bytes>, now_ms: u64) -> Self {
        let weak = if meta.fresh { "W/" } else { "" };
        let tag = if meta.tag == 0 { String::new() } else { format!("-{:x}", meta.tag) };
        let etag = format!("{weak}\"{:x}-{:x}-{:x}{tag}\"", meta.modified.0, meta.modified.1, meta.size);
        // A reply must not claim a change in the future.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
        let seconds = meta.modified.0.clamp(0, LAST_SECOND.min(now));
        let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds as u64));
        Self {
            name: name.into(),
            meta,
            etag: HeaderValue::try_from(etag).unwrap_or(HeaderValue::from_static("\"\"")),
            last_modified: HeaderValue::try_from(date).unwrap_or(HeaderValue::from_static("")),
            content_type: HeaderValue::from_static(content_type::from_name(name)),
            body,
            target_id: None,
            may_store: true,
            checked_ms: AtomicU64::new(now_ms),
        }
    }

    /// Sets the target id, and whether the object is stored.
    pub(crate) fn with_storage(self, storage: StoragePolicy) -> Self {
        let StoragePolicy { target_id, may_store } = storage;
        Self { target_id, may_store, ..self }
    }

    /// Returns the validators for preconditions.
    pub(crate) fn validators(&self) -> Validators<'_> {
        let quoted = self.etag.as_bytes();
        let opaque = quoted.strip_prefix(b"W/").unwrap_or(quoted);
        let opaque = opaque.get(1..opaque.len().saturating_sub(1)).unwrap_or_default();
        Validators { opaque, strong: !self.meta.fresh, modified: Some(self.meta.modified.0) }
    }

    /// Returns whether stored contents of `self` are valid for `other`.
    pub(crate) fn is_valid_for(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
            || (self.name == other.name && self.meta.is_same(&other.meta) && !self.meta.fresh)
    }

    /// Returns whether the last validity check is at least `every_ms` milliseconds ago.
    pub(crate) fn is_check_due(&self, now_ms: u64, every_ms: u64) -> bool {
        now_ms.saturating_sub(self.checked_ms.load(Relaxed)) >= every_ms
    }

    /// Claims the validity check if the last one is at least `every_ms` milliseconds ago. Exactly one caller
    /// gets true.
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
    fn an_old_file_has_a_strong_tag_and_a_recent_one_a_weak_tag() {
        let old = object(false, (1_000_000_000, 10));
        assert_eq!(old.etag, "\"3b9aca00-a-ff\"");
        assert_eq!(old.last_modified, "Sun, 09 Sep 2001 01:46:40 GMT");
        assert_eq!(old.validators().opaque, b"3b9aca00-a-ff");
        let fresh = object(true, (1_000_000_000, 10));
        assert_eq!(fresh.etag, "W/\"3b9aca00-a-ff\"");
        assert_eq!(fresh.validators().opaque, b"3b9aca00-a-ff");
        assert!(!fresh.validators().strong);
        assert!(!fresh.is_valid_for(&old), "it may have been read before the last change");
        assert!(old.is_valid_for(&fresh));
    }

    #[test]
    fn modification_times_are_clamped_to_1970_and_now() {
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
