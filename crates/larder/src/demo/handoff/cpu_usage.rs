//! Processor time of hosts in namespaces: of their processes, and of the kernel threads that receive their
//! packets.
//!
//! The kernel receives packets in soft interrupts, and charges them to the running process, which may belong
//! to another host. Therefore each interface gets a kernel thread for receiving (threaded NAPI), whose time
//! belongs to one host. On the hub's ports this also keeps the sender from paying for the transfer.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use larder_kernel::netns::Namespace;

pub(super) use crate::demo::process_time::cpu_time;

/// Kernel threads that receive packets for one host.
#[derive(Clone, Debug, Default)]
pub(super) struct Receivers(Vec<u32>);

impl Receivers {
    /// Creates receive threads for all interfaces of a host. Returns `None` if the kernel does not support
    /// threads or they are not visible. The receive time of the host is then unknown.
    pub(super) fn of(namespace: &Namespace) -> Option<Self> {
        let before = napi_threads();
        // Only a process in the namespace sees its interfaces in `/sys`.
        let script = "for file in /sys/class/net/*/threaded; do case $file in */lo/*) ;; *) echo 1 >$file || exit 1;; esac; done";
        let output =
            Command::new("ip").args(["netns", "exec", namespace.name(), "sh", "-c", script]).output().ok()?;
        if !output.status.success() {
            return None;
        }
        let new: Vec<u32> = napi_threads().difference(&before).copied().collect();
        (!new.is_empty()).then_some(Self(new))
    }

    /// Returns the ids of the threads.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// Returns the processor time of the threads.
    pub(super) fn time(&self) -> Duration {
        self.0.iter().map(|id| cpu_time(*id)).sum()
    }
}

/// Returns the ids of all NAPI threads.
fn napi_threads() -> BTreeSet<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeSet::new() };
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(|id: &u32| {
        fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name.starts_with("napi/"))
    })
    .collect()
}

/// Returns the processor time of a process and its running descendants.
pub(super) fn of_process_tree(id: u32) -> Duration {
    let mut sum = Duration::ZERO;
    let mut left = vec![id];
    // A process has one parent, so each process is counted once.
    while let Some(id) = left.pop() {
        sum += cpu_time(id);
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
    fn a_running_process_uses_processor_time() {
        let (before, since) = (of_process_tree(std::process::id()), Instant::now());
        // The call itself uses processor time. The kernel counts in steps of 10 ms, and other processes may
        // run meanwhile.
        while of_process_tree(std::process::id()) <= before {
            assert!(since.elapsed() < Duration::from_secs(20), "no time is counted");
        }
        assert_eq!(of_process_tree(u32::MAX), Duration::ZERO);
    }
}
