//! Limits of this machine that a role's settings need.

use larder_kernel::probe::{Finding, FindingState};
use larder_node::StoreConfig;
use rustix::process::{Resource, getrlimit};

use crate::config::Config;

/// Files that a role has open beside connections: listeners, logs, programs of the kernel.
const OTHERS: u64 = 256;

/// The finding on the limit of open files.
pub(super) fn open_files(config: Option<&Config>) -> Finding {
    // A role raises the limit to what the system allows.
    judge(getrlimit(Resource::Nofile).maximum, config.map(needed))
}

/// Files that the roles of a config may have open at once.
fn needed(config: &Config) -> u64 {
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    // Each client of a switch may have a connection to a node.
    let switch = config.switch.as_ref().map_or(0, |role| 2 * count(role.switch.limits.connections_max));
    let node = config.node.as_ref().map_or(0, |role| {
        let limits = &role.node.limits;
        let content = match &role.node.store {
            StoreConfig::Origin(origin) => count(origin.requests_max),
            StoreConfig::Directory { .. } | StoreConfig::Model { .. } => count(limits.reads_at_once),
        };
        u64::from(limits.connections_max).saturating_add(content)
    });
    switch.saturating_add(node).saturating_add(OTHERS)
}

fn judge(allowed: Option<u64>, needed: Option<u64>) -> Finding {
    let shown = allowed.map_or("no limit".to_owned(), |files| format!("{files} files"));
    let short = needed.filter(|needed| allowed.is_some_and(|allowed| allowed < *needed));
    let (state, found, remedy) = match (short, needed) {
        (Some(needed), _) => {
            let remedy = format!(
                "systemd: LimitNOFILE={needed}; a shell: ulimit -Hn {needed}; or a lower limits.connections_max"
            );
            (
                FindingState::Degraded,
                format!("{shown}; limits.connections_max may need {needed}"),
                Some(remedy),
            )
        }
        (None, Some(needed)) => {
            (FindingState::Works, format!("{shown}; limits.connections_max may need {needed}"), None)
        }
        (None, None) => (FindingState::Works, shown, None),
    };
    Finding {
        what: "open files (nofile)".to_owned(),
        state,
        found,
        why: "each connection is an open file; beyond the limit none is accepted",
        remedy,
        needed_for: &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Written;

    #[test]
    fn the_limit_is_held_against_the_connections_of_the_config() {
        let text = "[switch]\nlisten = \"127.0.0.1:1\"\nnodes = [\"127.0.0.1:2\"]\nlimits = { connections_max = 1000 }\n\
                    [node]\nlisten = \"127.0.0.1:3\"\nroot = \"/\"\nlimits = { connections_max = 100, reads_at_once = 10 }\n";
        let config = Written::parse("f", text).unwrap().validate().unwrap();
        assert_eq!(needed(&config), 2000 + 110 + OTHERS);
        for (allowed, needed, state) in [
            (Some(1024), Some(2366), FindingState::Degraded),
            (Some(2366), Some(2366), FindingState::Works),
            (None, Some(2366), FindingState::Works),
            (Some(1024), None, FindingState::Works),
        ] {
            let found = judge(allowed, needed);
            assert_eq!(found.state, state, "{found:?}");
            assert_eq!(found.remedy.is_some(), state != FindingState::Works);
        }
    }
}
