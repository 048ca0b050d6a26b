//! Processor time of hosts in namespaces: what their processes use, and what the kernel uses to receive for them.
//!
//! The kernel receives packets in soft interrupts, which are charged to whoever happens to run: on one machine that may
//! be another host's process. So each interface's receiving is given to a kernel thread of its own (threaded NAPI), whose
//! time is then that host's alone. The same on the hub's ports keeps a sender from paying for the wire.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use larder_kernel::netns::Namespace;

pub(super) use crate::demo::spent::process;

/// Threads of the kernel that receive for one host.
#[derive(Clone, Debug, Default)]
pub(super) struct Receivers(Vec<u32>);

impl Receivers {
    /// Gives the receiving of every interface of a host to threads. `None` where the kernel does not, or where the threads
    /// are not to be seen: then what the kernel receives for the host is not known.
    pub(super) fn of(namespace: &Namespace) -> Option<Self> {
        let before = napi_threads();
        // Only a process of its own sees the interfaces of the namespace in `/sys`.
        let script = "for file in /sys/class/net/*/threaded; do case $file in */lo/*) ;; *) echo 1 >$file || exit 1;; esac; done";
        let output =
            Command::new("ip").args(["netns", "exec", namespace.name(), "sh", "-c", script]).output().ok()?;
        if !output.status.success() {
            return None;
        }
        let new: Vec<u32> = napi_threads().difference(&before).copied().collect();
        (!new.is_empty()).then_some(Self(new))
    }

    /// Which threads.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// What they have used so far.
    pub(super) fn time(&self) -> Duration {
        self.0.iter().map(|id| process(*id)).sum()
    }
}

/// The kernel's threads that receive for some interface.
fn napi_threads() -> BTreeSet<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeSet::new() };
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(|id: &u32| {
        fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name.starts_with("napi/"))
    })
    .collect()
}

/// Processor time of a process with all it has started and that still runs.
pub(super) fn with_children(id: u32) -> Duration {
    let mut sum = Duration::ZERO;
    let mut left = vec![id];
    // A process has one parent, so that each comes up once.
    while let Some(id) = left.pop() {
        sum += process(id);
        let Ok(tasks) = fs::read_dir(format!("/proc/{id}/task")) else { continue };
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            left.extend(children.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn what_runs_uses_time() {
        let (before, since) = (with_children(std::process::id()), Instant::now());
        // To look is what uses time. The kernel counts it in steps of 10 ms, and other processes may run meanwhile.
        while with_children(std::process::id()) <= before {
            assert!(since.elapsed() < Duration::from_secs(20), "no time is counted");
        }
        assert_eq!(with_children(u32::MAX), Duration::ZERO);
    }
}
