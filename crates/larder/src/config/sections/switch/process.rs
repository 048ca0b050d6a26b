//! `[switch.process]`, and the user of worker processes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use larder_core::Settings;
use larder_switch::{HandoffConfig, MechanismSetting};
use rustix::fs::Access;
use serde::{Deserialize, Serialize};

use crate::config::error::Fault;
use crate::config::keys::keys;

keys! {
    /// `[switch.process]`.
    table ProcessSection;

    /// Number of worker threads. 0: one for each core.
    threads: usize = 0, range "0 to 1024";
    /// Number of shards of the target map. With more shards, more threads can decide at once.
    shards: usize = Settings::default().shards, range "a power of two from 1 to 4096";
    /// User of the worker processes, by name or number. Workers, which read what clients send, have only the rights
    /// of this user. The master, which holds the listeners, keeps its user. The user needs access to all files that
    /// workers read and write. Needs root. Unset: the workers run as the master does.
    user: Option<String>, example "larder";
    /// Group of the worker processes, by name or number. Unset: the group of `user`.
    group: Option<String>, example "larder";
}

/// The user and group of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunAs {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// Whether a worker process may access a file or directory. Workers run as this process, or as another user if this
/// process is root.
pub(crate) fn may(run_as: Option<RunAs>, path: &Path, access: Access) -> bool {
    let Some(who) = run_as.filter(|who| who.user != 0 && rustix::process::geteuid().is_root()) else {
        return rustix::fs::access(path, access).is_ok();
    };
    fs::metadata(path).is_ok_and(|found| {
        let shift = if found.uid() == who.user {
            6
        } else if found.gid() == who.group {
            3
        } else {
            0
        };
        // The three lowest bits of `access(2)` are those of a mode.
        (found.mode() >> shift) & 0o7 & access.bits() == access.bits()
    })
}

/// Returns the user of worker processes; `None` for the user of the switch.
pub(crate) fn run_as(
    user: Option<&str>,
    group: Option<&str>,
    handoff: &HandoffConfig,
) -> Result<Option<RunAs>, Fault> {
    let Some(user) = user else {
        return match group {
            None => Ok(None),
            Some(_) => Err(Fault::new("switch.process.group", "is not used: switch.process.user is missing")
                .hint("write user = \"larder\" beside it")),
        };
    };
    if handoff.setting != MechanismSetting::Relay {
        let what = "contradicts switch.handoff: the process that moves connections needs CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON and \
                    CAP_NET_RAW while it runs";
        return Err(Fault::new("switch.process.user", what).hint(
            "leave it out, and let the service manager start the switch as a user with these capabilities",
        ));
    }
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let (id, own_group) = account(&accounts, user).ok_or_else(|| unknown("switch.process.user", user))?;
    let group = match group {
        None => own_group.ok_or_else(|| {
            Fault::new(
                "switch.process.user",
                format!("{user} has no entry in /etc/passwd, so its group is unknown"),
            )
            .hint("write group beside it")
            .of_machine()
        })?,
        Some(name) => {
            let groups = fs::read_to_string("/etc/group").unwrap_or_default();
            entry(&groups, name).map(|(id, _)| id).ok_or_else(|| unknown("switch.process.group", name))?
        }
    };
    Ok(Some(RunAs { user: id, group }))
}

fn unknown(key: &'static str, name: &str) -> Fault {
    let file = if key.ends_with("user") { "/etc/passwd" } else { "/etc/group" };
    Fault::new(key, format!("'{}' is not in {file}", name.escape_debug()))
        .hint("write a name that is there, or a number; `useradd --system NAME` makes a user")
        .of_machine()
}

/// Returns the number of a user, and of its group if the user has an entry.
fn account(accounts: &str, user: &str) -> Option<(u32, Option<u32>)> {
    entry(accounts, user).map(|(id, rest)| (id, rest.and_then(|rest| rest.split(':').next()?.parse().ok())))
}

/// Returns the number of a name (or the number itself), and the rest of its line `name:x:number:...`.
fn entry<'a>(lines: &'a str, name: &str) -> Option<(u32, Option<&'a str>)> {
    let number = name.parse::<u32>().ok();
    let found = lines.lines().find_map(|line| {
        let mut fields = line.splitn(4, ':');
        let (own, _, id, rest) =
            (fields.next()?, fields.next()?, fields.next()?.parse().ok()?, fields.next());
        (own == name || number == Some(id)).then_some((id, rest))
    });
    found.or(number.map(|id| (id, None)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNTS: &str =
        "root:x:0:0:root:/root:/bin/sh\nbroken\nwww:x:33:34:www:/var/www:/usr/sbin/nologin\n";

    #[test]
    fn names_and_numbers_are_found() {
        assert_eq!(account(ACCOUNTS, "www"), Some((33, Some(34))));
        assert_eq!(account(ACCOUNTS, "33"), Some((33, Some(34))));
        assert_eq!(account(ACCOUNTS, "77"), Some((77, None)), "a number needs no entry");
        assert_eq!(account(ACCOUNTS, "nobody-here"), None);
        assert_eq!(account(ACCOUNTS, "broken"), None);
    }
}
