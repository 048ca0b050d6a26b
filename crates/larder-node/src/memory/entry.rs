//! What a memory keeps under a key.

use crate::object::Object;
use crate::pages::Page;
use bytes::Bytes;
use larder_core::TargetId;
use std::sync::Arc;

/// Least number of bytes an object counts for.
pub(crate) const CHARGE_MIN: u64 = 512;

/// Something kept, or just read.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// An object with its header values, and its body if that is short.
    Head(Arc<Object>),
    /// A chunk of an object.
    Part { of: Arc<Object>, bytes: Bytes },
    /// Replies of an origin to requests for one target.
    Page(Arc<Page>),
}

impl Entry {
    pub(super) fn charge(&self) -> larder_core::Bytes {
        let len = match self {
            Self::Head(object) => object.body.as_ref().map_or(0, Bytes::len),
            Self::Part { bytes, .. } => bytes.len(),
            Self::Page(page) => return larder_core::Bytes(page.charge()),
        };
        larder_core::Bytes((len as u64).max(CHARGE_MIN))
    }

    /// The target that its contents belong to, and the length of the whole object. None for what has no contents.
    pub(super) fn target(&self) -> Option<(TargetId, u64)> {
        let object = match self {
            Self::Head(object) => object.body.as_ref().map(|_| object)?,
            Self::Part { of, .. } => of,
            Self::Page(page) => return page.told.map(|target| (target, page.len())),
        };
        object.told.map(|target| (target, object.meta.size))
    }

    pub(super) fn is(&self, wanted: Wanted<'_>) -> bool {
        match (self, wanted) {
            (Self::Head(object), Wanted::Head(name)) => *object.name == *name,
            (Self::Part { of, .. }, Wanted::Part(object)) => of.stands_for(object),
            (Self::Page(page), Wanted::Page(name)) => *page.name == *name,
            _ => false,
        }
    }
}

/// The thing that is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted<'a> {
    /// The object of this name.
    Head(&'a [u8]),
    /// A chunk of this object.
    Part(&'a Arc<Object>),
    /// The page of this name.
    Page(&'a [u8]),
}
