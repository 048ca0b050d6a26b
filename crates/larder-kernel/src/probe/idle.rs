//! Idle behaviour of processors.

use std::fs;
use std::time::Duration;

const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
const GOVERNOR: &str = "/sys/devices/system/cpu/cpuidle/current_governor";
const POLLS: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
const CPUS: &str = "/proc/cpuinfo";
const BOOTED: &str = "/proc/cmdline";

/// Idle behaviour of processors. On a virtual machine, a halted processor is woken through the hypervisor, for each
/// single packet. Linux can poll for work for a while before it halts (`Documentation/virt/guest-halt-polling.rst`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// This is not a virtual machine.
    Machine,
    /// Processors poll for at most this time before they halt; zero: they halt at once.
    Polls(Duration),
    /// Processors halt at once, because this kernel has no other method.
    Halts,
    /// Unknown, or another driver decides.
    Unknown,
}

/// Contents of the relevant files, as far as they can be read.
#[derive(Clone, Copy, Default)]
struct Files<'a> {
    cpus: Option<&'a str>,
    driver: Option<&'a str>,
    governor: Option<&'a str>,
    polls_ns: Option<&'a str>,
    booted: Option<&'a str>,
}

impl Idle {
    /// Examines this machine.
    pub(super) fn of_this_host() -> Self {
        let [cpus, driver, governor, polls_ns, booted] =
            [CPUS, DRIVER, GOVERNOR, POLLS, BOOTED].map(|path| fs::read_to_string(path).ok());
        Self::of(&Files {
            cpus: cpus.as_deref(),
            driver: driver.as_deref(),
            governor: governor.as_deref(),
            polls_ns: polls_ns.as_deref(),
            booted: booted.as_deref(),
        })
    }

    fn of(files: &Files<'_>) -> Self {
        // Other architectures have no flags.
        let flags = files.cpus.and_then(|cpus| cpus.lines().find_map(|line| line.strip_prefix("flags")));
        let Some(flags) = flags else { return Self::Unknown };
        if !flags.split_whitespace().any(|flag| flag == "hypervisor") {
            return Self::Machine;
        }
        let limit = files.polls_ns.and_then(|ns| ns.trim().parse().ok()).map(Duration::from_nanos);
        let chosen =
            files.booted.is_some_and(|line| line.split_whitespace().any(|word| word.starts_with("idle=")));
        match (files.driver.map(str::trim), files.governor.map(str::trim), limit) {
            (Some("haltpoll"), Some("haltpoll"), Some(limit)) => Self::Polls(limit),
            (Some("none"), ..) if !chosen => Self::Halts,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_polls_only_if_everything_is_present() {
        let guest = Files {
            cpus: Some("processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm\n"),
            driver: Some("haltpoll\n"),
            governor: Some("haltpoll\n"),
            polls_ns: Some("200000\n"),
            booted: Some("root=/dev/vda\n"),
        };
        let bare = Files { driver: Some("none\n"), polls_ns: None, ..guest };
        for (files, idle) in [
            (guest, Idle::Polls(Duration::from_micros(200))),
            (Files { polls_ns: Some("0\n"), ..guest }, Idle::Polls(Duration::ZERO)),
            (Files { polls_ns: Some("many"), ..guest }, Idle::Unknown),
            (Files { governor: Some("menu\n"), ..guest }, Idle::Unknown),
            (Files { driver: Some("intel_idle\n"), ..guest }, Idle::Unknown),
            (bare, Idle::Halts),
            (Files { booted: None, ..bare }, Idle::Halts),
            (Files { booted: Some("quiet idle=poll\n"), ..bare }, Idle::Unknown),
            (Files { driver: None, ..guest }, Idle::Unknown),
            (Files { cpus: Some("flags : fpu\nmodel name : hypervisor\n"), ..guest }, Idle::Machine),
            (Files { cpus: Some("Features : fp asimd\n"), ..guest }, Idle::Unknown),
            (Files::default(), Idle::Unknown),
        ] {
            assert_eq!(Idle::of(&files), idle);
        }
    }
}
