//! Programs attached to tc as filters of a clsact qdisc, for kernels before 6.6, which have no tcx links.
//!
//! A filter stays until it is removed, so it needs no pin. The pinned program only notes that the filter is ours, and
//! the pin's name says where it is. The qdisc stays, because others may use it. Calls act in the thread's network
//! namespace.

use super::syscalls::Hook;
use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder};
use std::os::fd::BorrowedFd;

/// Prefix of the notes' names.
pub(super) const FILTER: &str = "filter-";
/// Handle and priority of our filters: one instance per interface.
const HANDLE: u32 = 0x1a7d;
const PRIORITY: u32 = 0x1a7d;

/// Returns the name of a filter's note. Only for tc hooks.
pub(super) fn pin_name(ifindex: u32, hook: Hook) -> String {
    let way = if hook == Hook::TcEgress { "out" } else { "in" };
    format!("{FILTER}{way}-{ifindex}")
}

fn filter(program: BorrowedFd<'_>, ifindex: u32, out: bool) -> TcHook {
    let mut builder = TcHookBuilder::new(program);
    builder.ifindex(ifindex.cast_signed()).replace(true).handle(HANDLE).priority(PRIORITY);
    builder.hook(if out { TC_EGRESS } else { TC_INGRESS })
}

/// Adds the filter, or replaces its program atomically.
pub(super) fn attach(program: BorrowedFd<'_>, ifindex: u32, hook: Hook) -> libbpf_rs::Result<()> {
    let mut filter = filter(program, ifindex, hook == Hook::TcEgress);
    if filter.attach().is_ok() {
        return Ok(());
    }
    // The interface had no clsact qdisc yet.
    filter.create()?;
    filter.attach().map(drop)
}

/// Removes the filter of a note, if it and its interface exist.
pub(super) fn detach(note: &str, program: BorrowedFd<'_>) {
    let place = note.strip_prefix(FILTER).and_then(|rest| rest.split_once('-'));
    if let Some((way, ifindex)) = place
        && let Ok(ifindex) = ifindex.parse()
    {
        let _ = filter(program, ifindex, way == "out").detach();
    }
}
