//! How processors without work wait for it.

use std::fs;
use std::time::Duration;

const GOVERNOR: &str = "/sys/devices/system/cpu/cpuidle/current_governor";
const POLLS: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
const CPUS: &str = "/proc/cpuinfo";

/// How processors without work wait for it. On a virtual machine one that halts is woken by way of the hypervisor, for each
/// packet that comes alone; Linux can have it look for work for a while before (`Documentation/virt/guest-halt-polling.rst`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// It is no virtual machine, or does not say so.
    Machine,
    /// They look for work for so long at most, then they halt; zero: they halt at once.
    Polls(Duration),
    /// They halt at once, for nothing has them do otherwise.
    Halts,
}

impl Idle {
    /// Looks at this machine.
    pub(super) fn of_this_host() -> Self {
        let read = |path| fs::read_to_string(path).ok();
        Self::of(read(CPUS).as_deref(), read(GOVERNOR).as_deref(), read(POLLS).as_deref())
    }

    /// From the files, where there are any.
    fn of(cpus: Option<&str>, governor: Option<&str>, polls_ns: Option<&str>) -> Self {
        let is_guest = |line: &str| {
            line.strip_prefix("flags")
                .is_some_and(|rest| rest.split_whitespace().any(|flag| flag == "hypervisor"))
        };
        if !cpus.is_some_and(|cpus| cpus.lines().any(is_guest)) {
            return Self::Machine;
        }
        if governor.map(str::trim) != Some("haltpoll") {
            return Self::Halts;
        }
        polls_ns
            .and_then(|ns| ns.trim().parse().ok())
            .map_or(Self::Halts, |ns| Self::Polls(Duration::from_nanos(ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_machine_polls_only_if_all_is_there_for_it() {
        let guest = Some("processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm\n");
        let [polls, halt] = [Some("haltpoll\n"), Some("menu\n")];
        let limit = Idle::Polls(Duration::from_micros(200));
        for (cpus, governor, ns, idle) in [
            (guest, polls, Some("200000\n"), limit),
            (guest, polls, Some("0\n"), Idle::Polls(Duration::ZERO)),
            (guest, polls, Some("many"), Idle::Halts),
            (guest, polls, None, Idle::Halts),
            (guest, halt, Some("200000\n"), Idle::Halts),
            (guest, None, None, Idle::Halts),
            (Some("flags : fpu\nmodel name : hypervisor\n"), polls, Some("200000"), Idle::Machine),
            (None, polls, Some("200000"), Idle::Machine),
        ] {
            assert_eq!(Idle::of(cpus, governor, ns), idle, "{cpus:?} {governor:?} {ns:?}");
        }
    }
}
