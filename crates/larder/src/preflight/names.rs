//! Whether the host names of a config resolve.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Finding, Purpose};
use crate::config::Fault;

/// Time for all names together.
const PATIENCE: Duration = Duration::from_secs(5);
/// Names resolved at once.
const THREADS_MAX: usize = 16;

/// The consequence of a name that does not resolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Without {
    /// The role does not start.
    NoStart,
    /// The role starts, and requests that need the host fail.
    Unreachable,
    /// The role starts, logs the failure, and tries again.
    Retried,
}

/// A host that a role connects to.
#[derive(Clone, Debug)]
pub(super) struct NameNeed {
    pub(super) key: String,
    /// Host and port.
    pub(super) authority: String,
    pub(super) without: Without,
}

/// The host names of a config with their addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(BTreeMap<String, Resolved>);

/// The addresses of a name, or the reason why there are none.
type Resolved = Result<Vec<IpAddr>, String>;

impl Names {
    /// The addresses of a host and port of the config.
    ///
    /// # Errors
    /// The name did not resolve, or not in time.
    pub(crate) fn addresses(&self, authority: &str) -> Result<Vec<SocketAddr>, String> {
        if let Ok(address) = authority.parse() {
            return Ok(vec![address]);
        }
        let parts = authority.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (name, port) = parts.ok_or("the address has no port")?;
        let late = || Err(format!("no answer within {} s", PATIENCE.as_secs()));
        let found = self.0.get(name).cloned().unwrap_or_else(late);
        let at = |ip: IpAddr| SocketAddr::new(ip, port);
        found
            .map(|ips| ips.into_iter().map(at).collect())
            .map_err(|error| format!("cannot resolve '{name}': {error}"))
    }
}

/// Resolves the names that are needed; the findings on them. Names that the role itself reports at its start are left to it then.
pub(super) fn check(needs: &[NameNeed], purpose: Purpose) -> (Vec<Finding>, Names) {
    let asked = needs.iter().filter(|need| purpose == Purpose::Check || need.without != Without::Retried);
    let asked: Vec<(&NameNeed, &str)> =
        asked.filter_map(|need| Some((need, name_in(&need.authority)?))).collect();
    let resolved = resolve(asked.iter().map(|(_, name)| (*name).to_owned()).collect(), PATIENCE);
    let found =
        asked.into_iter().filter_map(|(need, name)| finding(need, name, resolved.get(name))).collect();
    (found, Names(resolved))
}

fn finding(need: &NameNeed, name: &str, resolved: Option<&Resolved>) -> Option<Finding> {
    let consequence = match need.without {
        Without::NoStart => "",
        Without::Unreachable => "; until it resolves, requests that need this host get 502",
        Without::Retried => "; larder starts and tries again",
    };
    let (what, slow) = match resolved {
        Some(Ok(_)) => return None,
        Some(Err(error)) => (format!("cannot resolve '{name}': {error}{consequence}"), false),
        None => (format!("'{name}' did not resolve within {} s{consequence}", PATIENCE.as_secs()), true),
    };
    let hint = format!("correct the name, or write an IP address; `getent hosts {name}` asks as larder does");
    let fault = Fault::new(&need.key, what).hint(hint);
    // A start waits longer than this check.
    Some(if need.without == Without::NoStart && !slow {
        Finding::error(fault)
    } else {
        Finding::warning(fault)
    })
}

/// The host of `host:port` if it is a name.
fn name_in(authority: &str) -> Option<&str> {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().is_err().then_some(host)
}

/// Resolves names at once; those that take longer than `patience` are missing from the result.
fn resolve(names: BTreeSet<String>, patience: Duration) -> BTreeMap<String, Resolved> {
    let (until, count) = (Instant::now() + patience, names.len());
    let queue = Arc::new(Mutex::new(names));
    let (sender, results) = mpsc::channel();
    for _ in 0..count.min(THREADS_MAX) {
        let (queue, sender) = (Arc::clone(&queue), sender.clone());
        // A thread that the resolver holds up ends with the process or when it answers. Without a thread, names are missing.
        let _ = std::thread::Builder::new().name("resolve".to_owned()).spawn(move || {
            while let Some(name) = next(&queue) {
                let found = look(&name);
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
    // Threads begin no more names.
    queue.lock().unwrap_or_else(PoisonError::into_inner).clear();
    resolved
}

fn next(queue: &Mutex<BTreeSet<String>>) -> Option<String> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop_first()
}

fn look(name: &str) -> Resolved {
    match (name, 0).to_socket_addrs() {
        Ok(found) if found.len() > 0 => Ok(found.map(|address| address.ip()).collect()),
        Ok(_) => Err("the name has no address".to_owned()),
        Err(error) => {
            // The prefix says nothing that the sentence does not.
            let said = error.to_string();
            Err(said.rsplit_once("information: ").map_or(said.as_str(), |(_, cause)| cause).to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_addresses() {
        for (authority, name) in [
            ("a.test:80", Some("a.test")),
            ("localhost", Some("localhost")),
            ("10.0.0.1:80", None),
            ("[::1]:80", None),
        ] {
            assert_eq!(name_in(authority), name, "{authority}");
        }
    }

    #[test]
    fn each_name_is_resolved_once_and_reported_at_each_key() {
        let need = |key: &str, authority: &str, without| NameNeed {
            key: key.to_owned(),
            authority: authority.to_owned(),
            without,
        };
        let needs = [
            need("a", "localhost:80", Without::NoStart),
            need("b", "no-such-host.invalid:80", Without::NoStart),
            need("c", "no-such-host.invalid:81", Without::Unreachable),
            need("d", "no-such-host.invalid:82", Without::Retried),
        ];
        let severities = |purpose| -> Vec<(String, &str)> {
            let found = check(&needs, purpose).0.into_iter();
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
        let names = Names(resolve(names, Duration::ZERO));
        assert!(names.0.is_empty());
        let late = names.addresses("a.invalid:80").unwrap_err();
        assert_eq!(late, "cannot resolve 'a.invalid': no answer within 5 s");
    }

    #[test]
    fn addresses_are_those_of_the_one_look_up() {
        let found = Ok(vec!["10.0.0.1".parse().unwrap(), "::1".parse().unwrap()]);
        let names = Names(BTreeMap::from([("a.test".to_owned(), found)]));
        let of = |authority: &str| -> Vec<String> {
            names.addresses(authority).unwrap().iter().map(ToString::to_string).collect()
        };
        assert_eq!(of("a.test:80"), ["10.0.0.1:80", "[::1]:80"]);
        assert_eq!(of("[::1]:443"), ["[::1]:443"]);
        assert_eq!(of("10.0.0.2:1"), ["10.0.0.2:1"]);
        assert!(names.addresses("a.test").is_err());
    }
}
