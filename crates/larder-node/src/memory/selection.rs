//! Selections of entries to purge, and the record of purges that later contents are checked against
//! ([`super::purge`]).

use super::entry::CacheEntry;
use crate::pages::Page;
use std::collections::VecDeque;

/// Purges that are recorded.
pub(super) const RECENT_MAX: usize = 1_024;

/// The entries that a purge removes.
#[derive(Debug)]
pub(crate) enum Selection {
    /// Objects of this name, or with names that begin with it.
    Objects { name: Box<[u8]>, prefix: bool },
    /// Pages with this path and purged_host, or with targets that begin with it, of one host or of any host.
    Pages { host: Option<larder_edge::Location>, target: Box<str>, prefix: bool },
    /// Pages with a reply that has this tag.
    Tag(Box<str>),
}

impl Selection {
    fn matches_object(&self, of: &[u8]) -> bool {
        match self {
            Self::Objects { name, prefix: false } => **name == *of,
            Self::Objects { name, prefix: true } => of.starts_with(name),
            Self::Pages { .. } | Self::Tag(_) => false,
        }
    }

    fn matches_page(&self, page: &Page) -> bool {
        let Self::Pages { host: purged_host, target: begin, prefix } = self else { return false };
        let Some((host, target)) = page.host_and_target() else { return false };
        let target_fits = if *prefix { target.starts_with(&**begin) } else { target == &**begin };
        target_fits && purged_host.as_ref().is_none_or(|purged_host| purged_host.is_host(host))
    }

    /// Returns whether the selection names an entry.
    pub(super) fn matches(&self, entry: &CacheEntry) -> bool {
        match (entry, self) {
            (CacheEntry::Page(page), Self::Tag(tag)) => page.has_tag(tag),
            (CacheEntry::Page(page), _) => self.matches_page(page),
            (CacheEntry::Head(object) | CacheEntry::Part { of: object, .. }, _) => {
                self.matches_object(&object.name)
            }
        }
    }
}

/// The purges of a memory.
#[derive(Debug, Default)]
pub(super) struct Purges {
    started: u64,
    /// The latest purges, each with its number.
    recent: VecDeque<(u64, Selection)>,
}

impl Purges {
    /// Returns whether a purge keeps out contents whose read began after `since` completed purges. A page
    /// counts as a whole, because it may get a position that the scan has passed already.
    pub(super) fn excludes(&self, since: u64, entry: &CacheEntry) -> bool {
        if self.started == since {
            return false;
        }
        let is_too_old = self.recent.front().is_none_or(|(first, _)| *first > since + 1);
        let mut later = self.recent.iter().rev().take_while(|(number, _)| *number > since);
        is_too_old || later.any(|(_, selection)| selection.matches(entry))
    }

    pub(super) fn begin(&mut self, selection: Selection) -> u64 {
        self.started += 1;
        self.recent.push_back((self.started, selection));
        if self.recent.len() > RECENT_MAX {
            self.recent.pop_front();
        }
        self.started
    }

    /// Returns the selection of the latest purge.
    pub(super) fn last(&self) -> Option<&Selection> {
        self.recent.back().map(|(_, selection)| selection)
    }
}

/// The result of a purge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PurgeReport {
    /// Objects and chunks that were removed.
    pub removed: u64,
    /// Bytes that the removed entries were charged.
    pub removed_bytes: u64,
    /// Objects and chunks that were checked.
    pub looked_at: u64,
}
