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
    compare(getrlimit(Resource::Nofile).maximum, config.map(required_files))
}

/// Returns the number of files that the roles of a config may have open at the same time.
fn required_files(config: &Config) -> u64 {
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    // Each client of a switch may cause a connection to a node.
    let switch = config.switch.as_ref().map_or(0, |role| 2 * count(role.switch.limits.connections_max));
    let node = config.node.as_ref().map_or(0, |role| {
        let limits = &role.node.limits;
        let content = match &role.node.store {
            StoreConfig::Origin(origin) => count(origin.requests_max),
            StoreConfig::Directory { .. } | StoreConfig::Model(_) => count(limits.reads_at_once),
        };
        u64::from(limits.connections_max).saturating_add(content)
    });
    switch.saturating_add(node).saturating_add(OTHER_FILES)
}

fn compare(allowed: Option<u64>, required_files: Option<u64>) -> Finding {
    let shown = allowed.map_or("no limit".to_owned(), |files| format!("{files} files"));
    let short =
        required_files.filter(|required_files| allowed.is_some_and(|allowed| allowed < *required_files));
    let (state, found, remedy) = match (short, required_files) {
        (Some(required_files), _) => {
            let remedy = format!(
                "systemd: LimitNOFILE={required_files}; a shell: ulimit -Hn {required_files}; or lower limits.connections_max"
            );
            (
                FindingState::Degraded,
                format!("{shown}; limits.connections_max may need {required_files}"),
                Some(remedy),
            )
        }
        (None, Some(required_files)) => {
            (FindingState::Works, format!("{shown}; limits.connections_max may need {required_files}"), None)
        }
        (None, None) => (FindingState::Works, shown, None),
    };
    Finding {
        what: "open files (nofile)".to_owned(),
        state,
        found,
        why: "each connection is an open file; at the limit no connection is accepted",
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
        assert_eq!(required_files(&config), 2000 + 110 + OTHER_FILES);
        for (allowed, required_files, state) in [
            (Some(1024), Some(2366), FindingState::Degraded),
            (Some(2366), Some(2366), FindingState::Works),
            (None, Some(2366), FindingState::Works),
            (Some(1024), None, FindingState::Works),
        ] {
            let found = compare(allowed, required_files);
            assert_eq!(found.state, state, "{found:?}");
            assert_eq!(found.remedy.is_some(), state != FindingState::Works);
        }
    }
}
