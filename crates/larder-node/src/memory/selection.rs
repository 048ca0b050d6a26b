//! The entries that purges name, and which purges what is on its way is held against ([`super::purge`]).

use super::entry::Entry;
use crate::pages::Page;
use std::collections::VecDeque;

/// Purges that what is on its way is held against.
pub(super) const NOTED_MAX: usize = 1_024;

/// The entries that a purge removes.
#[derive(Debug)]
pub(crate) enum Selection {
    /// Objects of this name, or whose names begin so.
    Objects { name: Box<[u8]>, prefix: bool },
    /// Pages with this path and query, or beginning so, of any host or of one.
    Pages { host: Option<larder_edge::Location>, target: Box<str>, prefix: bool },
    /// Pages with a reply that has this tag.
    Tag(Box<str>),
}

impl Selection {
    fn names_object(&self, of: &[u8]) -> bool {
        match self {
            Self::Objects { name, prefix: false } => **name == *of,
            Self::Objects { name, prefix: true } => of.starts_with(name),
            Self::Pages { .. } | Self::Tag(_) => false,
        }
    }

    fn names_page(&self, page: &Page) -> bool {
        let Self::Pages { host: wanted, target: begin, prefix } = self else { return false };
        let Some((host, target)) = page.host_and_target() else { return false };
        let target_fits = if *prefix { target.starts_with(&**begin) } else { target == &**begin };
        target_fits && wanted.as_ref().is_none_or(|wanted| wanted.is_host(host))
    }

    /// Whether an entry leaves.
    pub(super) fn removes(&self, entry: &Entry) -> bool {
        match (entry, self) {
            (Entry::Page(page), Self::Tag(tag)) => page.has_tag(tag),
            (Entry::Page(page), _) => self.names_page(page),
            (Entry::Head(object) | Entry::Part { of: object, .. }, _) => self.names_object(&object.name),
        }
    }
}

/// The purges of a memory.
#[derive(Debug, Default)]
pub(super) struct Purges {
    begun: u64,
    /// The last ones, each with its number.
    noted: VecDeque<(u64, Selection)>,
}

impl Purges {
    /// Whether a purge refuses what began when `since` purges were done. A page counts as a whole: it may take another place, which the
    /// purge has passed already.
    pub(super) fn refuse(&self, since: u64, entry: &Entry) -> bool {
        if self.begun == since {
            return false;
        }
        let forgotten = self.noted.front().is_none_or(|(first, _)| *first > since + 1);
        let mut later = self.noted.iter().rev().take_while(|(number, _)| *number > since);
        forgotten || later.any(|(_, selection)| selection.removes(entry))
    }

    pub(super) fn begin(&mut self, selection: Selection) -> u64 {
        self.begun += 1;
        self.noted.push_back((self.begun, selection));
        if self.noted.len() > NOTED_MAX {
            self.noted.pop_front();
        }
        self.begun
    }

    /// The selection of the last purge.
    pub(super) fn last(&self) -> Option<&Selection> {
        self.noted.back().map(|(_, selection)| selection)
    }
}

/// The result of a purge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Purged {
    /// Objects and chunks that were removed.
    pub removed: u64,
    /// Bytes that they counted.
    pub removed_bytes: u64,
    /// Objects and chunks that were looked at.
    pub looked_at: u64,
}
