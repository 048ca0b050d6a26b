//! Cache entries, and the queries that find them.

use crate::object::Object;
use crate::pages::Page;
use bytes::Bytes;
use larder_core::TargetId;
use std::sync::Arc;

/// Least number of bytes that an object is charged.
pub(crate) const CHARGE_MIN: u64 = 512;

/// A cache entry, or contents that have just been read.
#[derive(Clone, Debug)]
pub(crate) enum CacheEntry {
    /// An object with its header values, and with its body if that is short.
    Head(Arc<Object>),
    /// A chunk of an object.
    Part { of: Arc<Object>, bytes: Bytes },
    /// Stored replies of an origin to requests for one target.
    Page(Arc<Page>),
}

impl CacheEntry {
    pub(super) fn charge(&self) -> larder_core::Bytes {
        let len = match self {
            Self::Head(object) => object.body.as_ref().map_or(0, Bytes::len),
            Self::Part { bytes, .. } => bytes.len(),
            Self::Page(page) => return larder_core::Bytes(page.charge()),
        };
        larder_core::Bytes((len as u64).max(CHARGE_MIN))
    }

    /// Returns the target that the contents belong to, and the length of the whole object. `None` for an entry
    /// without contents or without a target id.
    pub(super) fn target(&self) -> Option<(TargetId, u64)> {
        let object = match self {
            Self::Head(object) => object.body.as_ref().map(|_| object)?,
            Self::Part { of, .. } => of,
            Self::Page(page) => return page.target_id.map(|target| (target, page.len())),
        };
        object.target_id.map(|target| (target, object.meta.size))
    }

    pub(super) fn matches(&self, query: EntryQuery<'_>) -> bool {
        match (self, query) {
            (Self::Head(object), EntryQuery::Head(name)) => *object.name == *name,
            (Self::Part { of, .. }, EntryQuery::Part(object)) => of.is_valid_for(object),
            (Self::Page(page), EntryQuery::Page(name)) => *page.name == *name,
            _ => false,
        }
    }
}

/// The object, chunk or page to look for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EntryQuery<'a> {
    /// The object of this name.
    Head(&'a [u8]),
    /// A chunk of this object.
    Part(&'a Arc<Object>),
    /// The page of this name.
    Page(&'a [u8]),
}
