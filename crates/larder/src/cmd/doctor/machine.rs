//! Limits of this machine that matter for a role's settings.

use larder_kernel::probe::{Finding, FindingState};
use larder_node::StoreConfig;
use rustix::process::{Resource, getrlimit};

use crate::config::Config;

/// Files that a role has open besides connections: listeners, logs, BPF programs.
const OTHER_FILES: u64 = 256;

/// Returns the finding on the limit of open files.
pub(super) fn open_files(config: Option<&Config>) -> Finding {
    // A role raises its limit to the allowed maximum.
    compare(getrlimit(Resource::Nofile).maximum, config.map(files_needed))
}

/// Returns the number of files that the roles of a config may have open at the same time.
fn files_needed(config: &Config) -> u64 {
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    // Each client of a switch may cause a connection to a node.
    let switch = config.switch.as_ref().map_or(0, |role| 2 * count(role.switch.limits.connections_max));
    let node = config.node.as_ref().map_or(0, |role| {
        let limits = &role.node.limits;
        let content = match &role.node.store {
            StoreConfig::Origin(origin) => count(origin.requests_max),
            StoreConfig::Directory { .. } | StoreConfig::Model { .. } => count(limits.reads_at_once),
        };
        u64::from(limits.connections_max).saturating_add(content)
    });
    switch.saturating_add(node).saturating_add(OTHER_FILES)
}

fn compare(allowed: Option<u64>, files_needed: Option<u64>) -> Finding {
    let shown = allowed.map_or("no limit".to_owned(), |files| format!("{files} files"));
    let short = files_needed.filter(|files_needed| allowed.is_some_and(|allowed| allowed < *files_needed));
    let (state, found, remedy) = match (short, files_needed) {
        (Some(files_needed), _) => {
            let remedy = format!(
                "systemd: LimitNOFILE={files_needed}; a shell: ulimit -Hn {files_needed}; or a lower limits.connections_max"
            );
            (
                FindingState::Degraded,
                format!("{shown}; limits.connections_max may need {files_needed}"),
                Some(remedy),
            )
        }
        (None, Some(files_needed)) => {
            (FindingState::Works, format!("{shown}; limits.connections_max may need {files_needed}"), None)
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
    fn the_limit_is_compared_with_the_connections_of_the_config() {
        let text = "[switch]\nlisten = \"127.0.0.1:1\"\nnodes = [\"127.0.0.1:2\"]\nlimits = { connections_max = 1000 }\n\
                    [node]\nlisten = \"127.0.0.1:3\"\nroot = \"/\"\nlimits = { connections_max = 100, reads_at_once = 10 }\n";
        let config = Written::parse("f", text).unwrap().validate().unwrap();
        assert_eq!(files_needed(&config), 2000 + 110 + OTHER_FILES);
        for (allowed, files_needed, state) in [
            (Some(1024), Some(2366), FindingState::Degraded),
            (Some(2366), Some(2366), FindingState::Works),
            (None, Some(2366), FindingState::Works),
            (Some(1024), None, FindingState::Works),
        ] {
            let found = compare(allowed, files_needed);
            assert_eq!(found.state, state, "{found:?}");
            assert_eq!(found.remedy.is_some(), state != FindingState::Works);
        }
    }
}
