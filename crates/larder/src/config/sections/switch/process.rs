//! `[switch.process]`, and as whom a switch's workers run.

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

    /// Worker threads; 0 takes one for each core.
    threads: usize = 0, range "0 to 1024";
    /// Shards of the target map. More shards let more threads decide at once.
    shards: usize = Settings::default().shards, range "a power of two from 1 to 4096";
    /// The user as whom the work is done, by name or number: the process that keeps the listeners stays who it is, and those that
    /// read what clients send give up all rights but this user's. The files that they read and write must be this user's to
    /// read and write. Needs root. Unset: nobody changes.
    user: Option<String>, example "larder";
    /// The group, by name or number. Unset: the user's own.
    group: Option<String>, example "larder";
}

/// The user and group of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunAs {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// Whether the process that does the work may access a file or folder: this process, or one that this one, as root, starts as
/// another user.
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

/// As whom workers run; `None`: as the switch was started.
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
                    CAP_NET_RAW for as long as it runs";
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
                format!("{user} is in no file of users: its group is not known"),
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

/// A user's number, and its group's if it has an entry.
fn account(accounts: &str, user: &str) -> Option<(u32, Option<u32>)> {
    entry(accounts, user).map(|(id, rest)| (id, rest.and_then(|rest| rest.split(':').next()?.parse().ok())))
}

/// The number of a name, or a number itself, and what follows it in the line `name:x:number:...`.
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
