//! Checks whether the host names of a config can be resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Finding, Purpose};
use crate::config::Fault;

/// Longest time to resolve all names.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most names that are resolved at the same time.
const THREADS_MAX: usize = 16;

/// The consequence if a name cannot be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Consequence {
    /// The role does not start.
    NoStart,
    /// The role starts, and requests that need the host fail.
    Unreachable,
    /// The role starts, logs the failure, and resolves the name again later.
    Retried,
}

/// The host name of a server that a role connects to.
#[derive(Clone, Debug)]
pub(super) struct RequiredName {
    pub(super) key: String,
    /// Host and port.
    pub(super) authority: String,
    pub(super) consequence: Consequence,
}

/// Host names of a config with their addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResolvedNames(BTreeMap<String, Resolution>);

/// The addresses of a name, or the error of its resolution.
type Resolution = Result<Vec<IpAddr>, String>;

impl ResolvedNames {
    /// Returns the socket addresses of `host:port`.
    ///
    /// # Errors
    /// Returns an error if the name could not be resolved in time.
    pub(crate) fn addresses(&self, authority: &str) -> Result<Vec<SocketAddr>, String> {
        if let Ok(address) = authority.parse() {
            return Ok(vec![address]);
        }
        let parts = authority.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (name, port) = parts.ok_or("the address has no port")?;
        let late = || Err(format!("no answer within {} s", RESOLVE_TIMEOUT.as_secs()));
        let found = self.0.get(name).cloned().unwrap_or_else(late);
        let at = |ip: IpAddr| SocketAddr::new(ip, port);
        found
            .map(|ips| ips.into_iter().map(at).collect())
            .map_err(|error| format!("cannot resolve '{name}': {error}"))
    }
}

/// Resolves the required names, and returns the findings. A starting role reports some names itself; these
/// are skipped then.
pub(super) fn check(required_names: &[RequiredName], purpose: Purpose) -> (Vec<Finding>, ResolvedNames) {
    let to_resolve = required_names
        .iter()
        .filter(|requirement| purpose == Purpose::Check || requirement.consequence != Consequence::Retried);
    let to_resolve: Vec<(&RequiredName, &str)> = to_resolve
        .filter_map(|requirement| Some((requirement, host_name(&requirement.authority)?)))
        .collect();
    let resolved = resolve(to_resolve.iter().map(|(_, name)| (*name).to_owned()).collect(), RESOLVE_TIMEOUT);
    let found = to_resolve
        .into_iter()
        .filter_map(|(requirement, name)| finding(requirement, name, resolved.get(name)))
        .collect();
    (found, ResolvedNames(resolved))
}

fn finding(requirement: &RequiredName, name: &str, resolved: Option<&Resolution>) -> Option<Finding> {
    let consequence = match requirement.consequence {
        Consequence::NoStart => "",
        Consequence::Unreachable => "; until it resolves, requests that need this host get 502",
        Consequence::Retried => "; larder starts and tries again",
    };
    let (what, slow) = match resolved {
        Some(Ok(_)) => return None,
        Some(Err(error)) => (format!("cannot resolve '{name}': {error}{consequence}"), false),
        None => {
            (format!("'{name}' did not resolve within {} s{consequence}", RESOLVE_TIMEOUT.as_secs()), true)
        }
    };
    let hint = format!("correct the name, or write an IP address; `getent hosts {name}` asks as larder does");
    let fault = Fault::new(&requirement.key, what).hint(hint);
    // A starting role waits longer than this check, so a slow resolution is only a warning.
    Some(if requirement.consequence == Consequence::NoStart && !slow {
        Finding::error(fault)
    } else {
        Finding::warning(fault)
    })
}

/// Returns the host of `host:port` if it is a name.
fn host_name(authority: &str) -> Option<&str> {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().is_err().then_some(host)
}

/// Resolves names in parallel. Names that take longer than `patience` are missing from the result.
fn resolve(names: BTreeSet<String>, patience: Duration) -> BTreeMap<String, Resolution> {
    let (until, count) = (Instant::now() + patience, names.len());
    let queue = Arc::new(Mutex::new(names));
    let (sender, results) = mpsc::channel();
    for _ in 0..count.min(THREADS_MAX) {
        let (queue, sender) = (Arc::clone(&queue), sender.clone());
        // A thread that waits for the resolver ends with the process or with the resolver's reply. If no
        // thread can be started, names are missing.
        let _ = std::thread::Builder::new().name("resolve".to_owned()).spawn(move || {
            while let Some(name) = take_next(&queue) {
                let found = resolve_one(&name);
                if sender.send((name, found)).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let mut resolved = BTreeMap::new();
    while let Ok((name, found)) = results.recv_timeout(until.saturating_duration_since(Instant::now())) {
        resolved.insert(name, found);
    }
    // An empty queue stops the threads.
    queue.lock().unwrap_or_else(PoisonError::into_inner).clear();
    resolved
}

fn take_next(queue: &Mutex<BTreeSet<String>>) -> Option<String> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop_first()
}

fn resolve_one(name: &str) -> Resolution {
    match (name, 0).to_socket_addrs() {
        Ok(found) if found.len() > 0 => Ok(found.map(|address| address.ip()).collect()),
        Ok(_) => Err("the name has no address".to_owned()),
        Err(error) => {
            // The prefix of the system's message contains no information.
            let said = error.to_string();
            Err(said.rsplit_once("information: ").map_or(said.as_str(), |(_, cause)| cause).to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinguished_from_addresses() {
        for (authority, name) in [
            ("a.test:80", Some("a.test")),
            ("localhost", Some("localhost")),
            ("10.0.0.1:80", None),
            ("[::1]:80", None),
        ] {
            assert_eq!(host_name(authority), name, "{authority}");
        }
    }

    #[test]
    fn each_name_is_resolved_once_and_reported_at_each_key() {
        let requirement = |key: &str, authority: &str, consequence| RequiredName {
            key: key.to_owned(),
            authority: authority.to_owned(),
            consequence,
        };
        let required_names = [
            requirement("a", "localhost:80", Consequence::NoStart),
            requirement("b", "no-such-host.invalid:80", Consequence::NoStart),
            requirement("c", "no-such-host.invalid:81", Consequence::Unreachable),
            requirement("d", "no-such-host.invalid:82", Consequence::Retried),
        ];
        let severities = |purpose| -> Vec<(String, &str)> {
            let found = check(&required_names, purpose).0.into_iter();
            found.map(|finding| (finding.fault.key().to_owned(), finding.severity.name())).collect()
        };
        let of = |pairs: &[(&str, &'static str)]| -> Vec<(String, &str)> {
            pairs.iter().map(|(key, severity)| ((*key).to_owned(), *severity)).collect()
        };
        assert_eq!(severities(Purpose::Start), of(&[("b", "error"), ("c", "warning")]));
        assert_eq!(severities(Purpose::Check), of(&[("b", "error"), ("c", "warning"), ("d", "warning")]));
    }

    #[test]
    fn a_name_without_an_answer_in_time_is_missing() {
        let names = BTreeSet::from(["a.invalid".to_owned()]);
        let names = ResolvedNames(resolve(names, Duration::ZERO));
        assert!(names.0.is_empty());
        let late = names.addresses("a.invalid:80").unwrap_err();
        assert_eq!(late, "cannot resolve 'a.invalid': no answer within 5 s");
    }

    #[test]
    fn addresses_come_from_the_resolution() {
        let found = Ok(vec!["10.0.0.1".parse().unwrap(), "::1".parse().unwrap()]);
        let names = ResolvedNames(BTreeMap::from([("a.test".to_owned(), found)]));
        let of = |authority: &str| -> Vec<String> {
            names.addresses(authority).unwrap().iter().map(ToString::to_string).collect()
        };
        assert_eq!(of("a.test:80"), ["10.0.0.1:80", "[::1]:80"]);
        assert_eq!(of("[::1]:443"), ["[::1]:443"]);
        assert_eq!(of("10.0.0.2:1"), ["10.0.0.2:1"]);
        assert!(names.addresses("a.test").is_err());
    }
}
