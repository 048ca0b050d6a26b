//! Limits of each node's connections for the fast path, in memory shared with the program: `active = base + opened -
//! seen`. The program writes `opened`. `seen` and `base` are one word, so that both change atomically; so are `limit`
//! and `usable`.

use super::mapping::Mapping;
use crate::abi::{Gate, NODES_MAX};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

#[derive(Debug)]
pub(super) struct Gates(Mapping);

impl Gates {
    pub(super) fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let bytes = (usize::from(NODES_MAX) + 1) * size_of::<Gate>();
        Mapping::new(fd, 0, bytes.next_multiple_of(rustix::param::page_size()), true).map(Self)
    }

    /// `None` is the sum over all nodes. A slot that does not exist changes nothing.
    fn store(&self, node: Option<u16>, field: usize, low: u32, high: u32) {
        let word = u64::from_ne_bytes(zerocopy::transmute!([low.to_ne_bytes(), high.to_ne_bytes()]));
        if let Some(word_at) = self.0.u64_at(slot(node) + field) {
            word_at.store(word, Ordering::Release);
        }
    }

    pub(super) fn set(&self, node: Option<u16>, limit: u32, usable: bool) {
        self.store(node, offset_of!(Gate, limit), limit, u32::from(usable));
    }

    pub(super) fn set_base(&self, node: Option<u16>, base: u32, seen: u32) {
        self.store(node, offset_of!(Gate, seen), seen, base);
    }

    pub(super) fn opened(&self, node: Option<u16>) -> u64 {
        let opened = self.0.u64_at(slot(node) + offset_of!(Gate, opened));
        opened.map_or(0, |opened| opened.load(Ordering::Acquire))
    }
}

fn slot(node: Option<u16>) -> usize {
    usize::from(node.unwrap_or(NODES_MAX)) * size_of::<Gate>()
}
