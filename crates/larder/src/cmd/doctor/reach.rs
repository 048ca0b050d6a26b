//! Checks whether roles can reach the nodes and the origin of a config, and whether the clocks agree.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use larder_edge::{LoadedTls, OutboundTls, TlsFault};
use larder_kernel::probe::{Finding, FindingState};
use larder_node::{OriginConfig, StoreConfig};
use larder_switch::{HealthCheck, NodeTls, ProxyVersion, SwitchConfig};

use super::clock::{self, ClockComparison, Tolerance};
use super::exchange::{self, Reply, TlsClient};
use crate::config::Config;
use crate::preflight::{ResolvedNames, origin_authority, origin_urls};

/// Most hosts that are probed at the same time.
const THREADS_MAX: usize = 16;
/// Most hosts that are probed.
const HOSTS_MAX: usize = 256;

/// A host that a role connects to.
#[derive(Clone, Debug)]
struct Host {
    /// Description, such as "node a" or "origin".
    what: String,
    authority: String,
    probe: Probe,
    /// Bytes at the start of a connection: the PROXY protocol.
    announcement: Vec<u8>,
    tls: Option<HostTls>,
    tolerance: Tolerance,
}

/// TLS to a host.
#[derive(Clone, Debug)]
struct HostTls {
    /// Table of the config, such as "switch.connect.tls".
    table: String,
    /// The TLS settings, or the fault that prevents TLS.
    to: Result<TlsClient, TlsFault>,
}

/// The request of a probe.
#[derive(Clone, Debug)]
enum Probe {
    /// Only a connection is opened, because the host does not speak HTTP/1.1.
    Connect,
    /// `OPTIONS *`, which asks whether the host answers HTTP at all.
    Ping,
    /// The health check of the config.
    Get(String),
}

/// The result for one host.
#[derive(Debug)]
struct HostResult {
    finding: Finding,
    /// Seconds by which the host's clock is ahead.
    ahead_s: Option<f64>,
}

/// Probes the hosts of a config, and returns the findings on hosts and clocks.
pub(super) fn check_hosts(config: &Config, names: &ResolvedNames) -> Vec<Finding> {
    let mut hosts = hosts(config);
    let left_out = hosts.len().saturating_sub(HOSTS_MAX);
    hosts.truncate(HOSTS_MAX);
    if hosts.is_empty() {
        return Vec::new();
    }
    let answers = probe_all(&hosts, names);
    let compared: Vec<ClockComparison<'_>> = hosts
        .iter()
        .zip(&answers)
        .filter_map(|(host, answer)| {
            Some(ClockComparison { host: &host.what, tolerance: host.tolerance, ahead_s: answer.ahead_s? })
        })
        .collect();
    let clock = clock::finding(&compared);
    let mut findings: Vec<Finding> = answers.into_iter().map(|answer| answer.finding).collect();
    if left_out > 0 {
        findings.push(Finding {
            what: "other nodes".to_owned(),
            state: FindingState::Unknown,
            found: format!("{left_out} more nodes were not checked: the limit is {HOSTS_MAX}"),
            why: "the switch sends requests to every node of the config",
            remedy: Some("start larder, and read /nodes of the admin interface".to_owned()),
            needed_for: &[],
        });
    }
    findings.push(clock);
    findings
}

fn hosts(config: &Config) -> Vec<Host> {
    let mut hosts = config.switch.as_ref().map(|role| node_hosts(&role.switch)).unwrap_or_default();
    if let Some(StoreConfig::Origin(origin)) = config.node.as_ref().map(|role| &role.node.store) {
        hosts.extend(origin_hosts(origin));
    }
    hosts
}

fn node_hosts(switch: &SwitchConfig) -> Vec<Host> {
    // Files are loaded once for all nodes with the same settings.
    let mut loaded: Vec<(OutboundTls, Result<Arc<LoadedTls>, TlsFault>)> = Vec::new();
    let mut load = |tls: OutboundTls| {
        if let Some((_, found)) = loaded.iter().find(|(known, _)| *known == tls) {
            return found.clone();
        }
        let found = tls.load().map(Arc::new).map_err(|fault| TlsFault::Other(fault.to_string()));
        loaded.push((tls, found.clone()));
        found
    };
    let mut hosts = Vec::new();
    for (i, node) in switch.nodes.iter().enumerate() {
        let tls = node.tls_by(&switch.reach).map(|tls| HostTls {
            table: match node.tls {
                NodeTls::Own(_) => format!("switch.nodes[{i}].tls"),
                NodeTls::Default | NodeTls::On | NodeTls::Off => "switch.connect.tls".to_owned(),
            },
            to: load(tls).and_then(|files| tls_client(files, &node.address, node.http2)),
        });
        let probe = match &switch.health.active {
            // Without TLS the HTTP version cannot be negotiated.
            _ if node.http2 && tls.is_none() => Probe::Connect,
            Some(HealthCheck::Http { path }) => Probe::Get(path.clone()),
            _ => Probe::Ping,
        };
        hosts.push(Host {
            what: format!("node {}", node.spec.name),
            authority: node.address.clone(),
            probe,
            announcement: node
                .announce_by(&switch.reach)
                .map(ProxyVersion::own_announcement)
                .unwrap_or_default(),
            tls,
            tolerance: Tolerance::Seconds,
        });
    }
    hosts
}

fn origin_hosts(origin: &OriginConfig) -> Vec<Host> {
    let tolerance = match (&origin.sign, &origin.tls) {
        (Some(_), _) => Tolerance::Signatures,
        (None, Some(_)) => Tolerance::Certificates,
        (None, None) => Tolerance::Seconds,
    };
    let mut hosts = Vec::new();
    for (nth, (_, url)) in origin_urls(origin).enumerate() {
        let Some(authority) = origin_authority(url) else { continue };
        let tls = origin.tls.as_ref().map(|tls| HostTls {
            table: "node.origin.tls".to_owned(),
            to: tls_client(Arc::clone(&tls.files), &authority, tls.http2),
        });
        let what = if nth == 0 { "origin".to_owned() } else { format!("origin {authority}") };
        let announcement = Vec::new();
        hosts.push(Host { what, authority, probe: Probe::Ping, announcement, tls, tolerance });
    }
    hosts
}

fn tls_client(files: Arc<LoadedTls>, authority: &str, http2: bool) -> Result<TlsClient, TlsFault> {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let name = files.server_name(host).map_err(|_| TlsFault::Name)?;
    Ok(TlsClient { files, name, http2 })
}

fn probe_all(hosts: &[Host], names: &ResolvedNames) -> Vec<HostResult> {
    let (next, answers) = (Mutex::new(0..hosts.len()), Mutex::new(Vec::new()));
    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..hosts.len().min(THREADS_MAX) {
            let work = || {
                while let Some(i) = take() {
                    let answer = probe_host(&hosts[i], names);
                    answers.lock().unwrap_or_else(PoisonError::into_inner).push((i, answer));
                }
            };
            // If a thread cannot be started, the other threads do its work.
            let _ = std::thread::Builder::new().name("reach".to_owned()).spawn_scoped(scope, work);
        }
    });
    let mut answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    answers.sort_unstable_by_key(|(i, _)| *i);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

fn probe_host(host: &Host, names: &ResolvedNames) -> HostResult {
    let cannot = |error: &dyn std::fmt::Display| {
        unreachable_host(host, &format!("cannot connect to {}: {error}", host.authority))
    };
    let addresses = match names.addresses(&host.authority) {
        Ok(addresses) => addresses,
        Err(error) => return cannot(&error),
    };
    let open = || {
        let (address, mut stream) = exchange::connect(&addresses)?;
        exchange::send_announcement(&mut stream, &host.announcement)?;
        std::io::Result::Ok((address, stream))
    };
    let began = Instant::now();
    let (address, stream) = match open() {
        Ok(opened) => opened,
        Err(error) => return cannot(&error),
    };
    let took = began.elapsed();
    let place = if address.to_string() == host.authority {
        host.authority.clone()
    } else {
        format!("{} ({address})", host.authority)
    };
    let mut connected = format!("connected to {place} in {:.1} ms", took.as_secs_f64() * 1000.0);
    let request = match &host.probe {
        Probe::Connect => return reachable(host, connected, None),
        Probe::Ping => format!("OPTIONS * HTTP/1.1\r\nhost: {}\r\n", host.authority),
        Probe::Get(path) => format!("GET {path} HTTP/1.1\r\nhost: {}\r\n", host.authority),
    };
    let Some(secure) = &host.tls else {
        return evaluate(host, &connected, exchange::exchange_clear(stream, &request));
    };
    let again = || open().map(|(_, stream)| stream);
    let opened = secure.to.clone().and_then(|to| to.open(stream, again).map(|stream| (to, stream)));
    let (to, stream) = match opened {
        Ok(opened) => opened,
        Err(fault) => return tls_failure(host, secure, &connected, &fault),
    };
    let verified = if to.files.authorities.is_empty() { "is not verified" } else { "is valid" };
    connected += &format!("; its certificate for {} {verified}", to.name.to_str());
    if exchange::is_http2(&stream) {
        return reachable(host, format!("{connected}; it speaks HTTP/2"), None);
    }
    let reply = exchange::exchange_tls(stream, &request);
    // With TLS 1.3 a server refuses a client's certificate after the handshake.
    match reply.as_ref().map_err(TlsFault::of) {
        Err(fault @ TlsFault::CertificateRequired) => tls_failure(host, secure, &connected, &fault),
        _ => evaluate(host, &connected, reply),
    }
}

/// Evaluates a reply.
fn evaluate(host: &Host, connected: &str, reply: std::io::Result<Reply>) -> HostResult {
    let Reply { status, ahead_s } = match reply {
        Ok(reply) => reply,
        Err(error) => {
            return unreachable_host(host, &format!("{connected}, but no HTTP reply: {error}"));
        }
    };
    match &host.probe {
        Probe::Get(path) if !(200..400).contains(&status) => {
            let mut answer =
                unreachable_host(host, &format!("{connected}; the health check GET {path} gets {status}"));
            answer.ahead_s = ahead_s;
            answer
        }
        Probe::Get(path) => reachable(host, format!("{connected}; GET {path} gets {status}"), ahead_s),
        Probe::Connect | Probe::Ping => reachable(host, format!("{connected}; it speaks HTTP"), ahead_s),
    }
}

fn reachable(host: &Host, found: String, ahead_s: Option<f64>) -> HostResult {
    HostResult { finding: finding(host, FindingState::Works, found, None), ahead_s }
}

fn unreachable_host(host: &Host, found: &str) -> HostResult {
    let remedy = "start the server, correct its address or port, or allow the connection in the firewall";
    let finding = finding(host, FindingState::Missing, found.to_owned(), Some(remedy.to_owned()));
    HostResult { finding, ahead_s: None }
}

/// Returns the finding on a host with which TLS failed.
fn tls_failure(host: &Host, secure: &HostTls, connected: &str, fault: &TlsFault) -> HostResult {
    let (what, remedy) = describe_fault(fault, secure, &host.authority);
    let finding = finding(host, FindingState::Missing, format!("{connected}, but {what}"), Some(remedy));
    HostResult { finding, ahead_s: None }
}

/// Describes a TLS fault and its remedy.
fn describe_fault(fault: &TlsFault, secure: &HostTls, authority: &str) -> (String, String) {
    let table = &secure.table;
    let name = secure.to.as_ref().map_or_else(|_| authority.into(), |to| to.name.to_str());
    let date = |at: &Option<SystemTime>, word: &str| {
        at.map(|at| format!(" {word} {}", httpdate::fmt_http_date(at))).unwrap_or_default()
    };
    let own =
        "renew the certificate on the server; if the certificate is valid, correct this machine's clock";
    match fault {
        TlsFault::NameMismatch(names) => {
            let (of, right) = match &names[..] {
                [] => ("another name".to_owned(), "NAME"),
                [first, ..] => (names.join(", "), first.as_str()),
            };
            (
                format!("its certificate is for {of}, not for {name}"),
                format!(
                    "write name = \"{right}\" in [{table}] if this is the right server, or install a certificate for {name}"
                ),
            )
        }
        TlsFault::Expired(at) => (format!("its certificate has expired{}", date(at, "on")), own.to_owned()),
        TlsFault::NotYetValid(at) => {
            (format!("its certificate is not valid{}", date(at, "before")), own.to_owned())
        }
        TlsFault::UnknownIssuer => (
            "the issuer of its certificate is unknown: no trusted authority has signed it".to_owned(),
            format!("write ca = \"FILE\" in [{table}], with the certificate of the server's authority"),
        ),
        TlsFault::CertificateRequired => (
            "it requires a client certificate".to_owned(),
            format!("write certificate = \"FILE\" in [{table}], with a certificate that the server trusts"),
        ),
        TlsFault::Name => (
            format!("no certificate can be issued for {authority}"),
            format!("write name = \"NAME\" in [{table}], with the name that the server's certificate is for"),
        ),
        TlsFault::NotTls => (
            "this port does not speak TLS".to_owned(),
            match table.strip_suffix(".tls") {
                Some("node.origin") => "correct the port, or write http:// in the URL".to_owned(),
                _ => "correct the port, or write tls = false for this node".to_owned(),
            },
        ),
        other => {
            (format!("TLS fails: {other}"), format!("check the server's TLS settings and log, and [{table}]"))
        }
    }
}

fn finding(host: &Host, state: FindingState, found: String, remedy: Option<String>) -> Finding {
    let why = match host.what.as_str() {
        what if what.starts_with("origin") => {
            "content that is not in memory is fetched from the origin; if it is unreachable, requests get 502"
        }
        _ => "the switch sends requests to its nodes; a node that does not answer is marked down",
    };
    Finding { what: host.what.clone(), state, found, why, remedy, needed_for: &[] }
}

#[cfg(test)]
#[path = "reach_tests.rs"]
mod tests;
