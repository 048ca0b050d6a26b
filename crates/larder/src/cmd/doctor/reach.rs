//! Whether the nodes and the origin of a config can be reached, and whether their clocks agree with this machine's.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use larder_front::Check;
use larder_handoff::probe::{Finding, State};
use larder_node::StoreConfig;

use crate::config::Config;
use crate::preflight::{origin_of, origins};

/// Time to connect, and time for the header of a reply.
const PATIENCE: Duration = Duration::from_secs(2);
/// Hosts asked at once.
const THREADS_MAX: usize = 16;
/// Hosts asked at all.
const HOSTS_MAX: usize = 256;
/// The longest header that is read.
const HEADER_MAX: usize = 16 << 10;
/// A clock that differs by this much is wrong: a `Date` counts whole seconds, and a reply is on its way for a while.
const CLOCK_MAX_S: f64 = 3.0;

/// A host that a role connects to.
#[derive(Clone, Debug)]
struct Host {
    /// Such as "node a" or "origin".
    what: String,
    authority: String,
    question: Question,
}

/// The question to a host.
#[derive(Clone, Debug)]
enum Question {
    /// Only a connection is opened: the host does not speak HTTP/1.1 in clear.
    Connect,
    /// Whether it answers at all: `OPTIONS *` is HTTP's own ping.
    Ping,
    /// The health check of the config.
    Get(String),
}

/// The result for one host.
#[derive(Debug)]
struct Answer {
    finding: Finding,
    /// Seconds by which the host's clock is ahead.
    ahead_s: Option<f64>,
}

/// The findings on hosts, and on clocks, of the roles of a config.
pub(super) fn look(config: &Config) -> Vec<Finding> {
    let mut hosts = hosts(config);
    let left_out = hosts.len().saturating_sub(HOSTS_MAX);
    hosts.truncate(HOSTS_MAX);
    if hosts.is_empty() {
        return Vec::new();
    }
    let answers = ask_all(&hosts);
    let clock = clock(&hosts, &answers);
    let mut findings: Vec<Finding> = answers.into_iter().map(|answer| answer.finding).collect();
    if left_out > 0 {
        findings.push(Finding {
            what: "other nodes".to_owned(),
            state: State::Unknown,
            found: format!("{left_out} more nodes were not asked: at most {HOSTS_MAX} are"),
            why: "requests go to every node of the config",
            remedy: Some("start larder and look at /nodes of the admin interface".to_owned()),
            needed_for: &[],
        });
    }
    findings.push(clock);
    findings
}

fn hosts(config: &Config) -> Vec<Host> {
    let mut hosts = Vec::new();
    if let Some(role) = &config.switch {
        let switch = &role.switch;
        for node in &switch.nodes {
            let clear =
                switch.reach.tls(node).is_none() && switch.reach.announce(node).is_none() && !node.http2;
            let question = match &switch.health.active {
                Some(Check::Http { path }) if clear => Question::Get(path.clone()),
                _ if clear => Question::Ping,
                _ => Question::Connect,
            };
            hosts.push(Host {
                what: format!("node {}", node.spec.name),
                authority: node.address.clone(),
                question,
            });
        }
    }
    if let Some(StoreConfig::Origin(origin)) = config.node.as_ref().map(|role| &role.node.store) {
        for (nth, (_, url)) in origins(origin).enumerate() {
            let Some(authority) = origin_of(url) else { continue };
            let question = match url.scheme_str() {
                Some("https") => Question::Connect,
                _ => Question::Ping,
            };
            let what = if nth == 0 { "origin".to_owned() } else { format!("origin {authority}") };
            hosts.push(Host { what, authority, question });
        }
    }
    hosts
}

fn ask_all(hosts: &[Host]) -> Vec<Answer> {
    let (next, answers) = (Mutex::new(0..hosts.len()), Mutex::new(Vec::new()));
    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..hosts.len().min(THREADS_MAX) {
            let work = || {
                while let Some(i) = take() {
                    let answer = ask(&hosts[i]);
                    answers.lock().unwrap_or_else(PoisonError::into_inner).push((i, answer));
                }
            };
            // Without a thread the others ask.
            let _ = std::thread::Builder::new().name("reach".to_owned()).spawn_scoped(scope, work);
        }
    });
    let mut answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    answers.sort_unstable_by_key(|(i, _)| *i);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

fn ask(host: &Host) -> Answer {
    let began = Instant::now();
    let connected = connect(&host.authority);
    let (address, stream) = match connected {
        Ok(connected) => connected,
        Err(error) => return failed(host, &format!("cannot connect to {}: {error}", host.authority)),
    };
    let took = began.elapsed();
    let place = if address.to_string() == host.authority {
        host.authority.clone()
    } else {
        format!("{} ({address})", host.authority)
    };
    let connected = format!("connected to {place} in {:.1} ms", took.as_secs_f64() * 1000.0);
    let asked = match &host.question {
        Question::Connect => return works(host, connected, None),
        Question::Ping => exchange(stream, &format!("OPTIONS * HTTP/1.1\r\nhost: {}\r\n", host.authority)),
        Question::Get(path) => {
            exchange(stream, &format!("GET {path} HTTP/1.1\r\nhost: {}\r\n", host.authority))
        }
    };
    let (status, ahead_s) = match asked {
        Ok(reply) => reply,
        Err(error) => return failed(host, &format!("{connected}, but there is no HTTP reply: {error}")),
    };
    match &host.question {
        Question::Get(path) if !(200..400).contains(&status) => {
            let mut answer = failed(host, &format!("{connected}; the health check GET {path} gets {status}"));
            answer.ahead_s = ahead_s;
            answer
        }
        Question::Get(path) => works(host, format!("{connected}; GET {path} gets {status}"), ahead_s),
        Question::Connect | Question::Ping => works(host, format!("{connected}; it speaks HTTP"), ahead_s),
    }
}

fn works(host: &Host, found: String, ahead_s: Option<f64>) -> Answer {
    Answer { finding: finding(host, State::Works, found, None), ahead_s }
}

fn failed(host: &Host, found: &str) -> Answer {
    let remedy =
        "start the server, correct its address or port, or let the firewall between pass the connection";
    Answer { finding: finding(host, State::Missing, found.to_owned(), Some(remedy)), ahead_s: None }
}

fn finding(host: &Host, state: State, found: String, remedy: Option<&str>) -> Finding {
    let why = match host.what.as_str() {
        what if what.starts_with("origin") => {
            "content that is not in memory comes from the origin; without it requests get 502"
        }
        _ => "requests go to the nodes; a node that does not answer counts as down",
    };
    let remedy = remedy.map(str::to_owned);
    Finding { what: host.what.clone(), state, found, why, remedy, needed_for: &[] }
}

fn connect(authority: &str) -> io::Result<(SocketAddr, TcpStream)> {
    let mut failure = io::Error::other("the name has no address");
    for address in authority.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok((address, stream)),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Sends a request; returns the status of the reply, and how far its `Date` is ahead.
fn exchange(mut stream: TcpStream, request: &str) -> io::Result<(u16, Option<f64>)> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let sent = SystemTime::now();
    let until = Instant::now() + PATIENCE;
    stream
        .write_all(format!("{request}user-agent: larder-doctor\r\nconnection: close\r\n\r\n").as_bytes())?;
    let (mut header, mut part) = (Vec::new(), [0; 4096]);
    while !header.windows(4).any(|end| end == b"\r\n\r\n") && header.len() < HEADER_MAX {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, format!("none within {} s", PATIENCE.as_secs())));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(read) => header.extend_from_slice(&part[..read]),
            // The limit of time is told above.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    let text = String::from_utf8_lossy(&header);
    let status = status_of(&text).ok_or_else(|| {
        let what = if header.is_empty() { "the connection was closed" } else { "the reply is not HTTP/1.1" };
        io::Error::new(ErrorKind::InvalidData, what)
    })?;
    Ok((status, ahead_s(&text, sent)))
}

fn status_of(header: &str) -> Option<u16> {
    let mut words = header.lines().next()?.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    words.next()?.parse().ok()
}

/// Seconds by which the reply's `Date` is ahead of the time at which the request was sent.
fn ahead_s(header: &str, sent: SystemTime) -> Option<f64> {
    let date = header.lines().skip(1).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("date").then(|| httpdate::parse_http_date(value.trim()).ok())?
    })?;
    Some(match date.duration_since(sent) {
        Ok(ahead) => ahead.as_secs_f64(),
        Err(behind) => -behind.duration().as_secs_f64(),
    })
}

/// The finding on this machine's clock, compared with the hosts'.
fn clock(hosts: &[Host], answers: &[Answer]) -> Finding {
    let compared: Vec<(&Host, f64)> =
        hosts.iter().zip(answers).filter_map(|(host, answer)| Some((host, answer.ahead_s?))).collect();
    let wrong = compared.iter().filter(|(_, ahead)| ahead.abs() > CLOCK_MAX_S);
    let wrong = wrong.max_by(|(_, a), (_, b)| a.abs().total_cmp(&b.abs()));
    let (state, found, remedy) = match (wrong, compared.len()) {
        (Some((host, ahead)), _) => {
            let way = if *ahead > 0.0 { "behind" } else { "ahead of" };
            let found = format!("this machine's clock is {:.0} s {way} that of {}", ahead.abs(), host.what);
            (State::Degraded, found, Some("run chrony or systemd-timesyncd on both machines"))
        }
        (None, 0) => {
            let remedy = "`timedatectl` says whether this machine's clock is synchronized";
            (
                State::Unknown,
                "no host replied with a Date: there is no clock to compare".to_owned(),
                Some(remedy),
            )
        }
        (None, count) => {
            let hosts = if count == 1 { "1 host".to_owned() } else { format!("{count} hosts") };
            (State::Works, format!("within {CLOCK_MAX_S:.0} s of {hosts}"), None)
        }
    };
    Finding {
        what: "clock".to_owned(),
        state,
        found,
        why: "certificates, the age of content and logs go by the clock",
        remedy: remedy.map(str::to_owned),
        needed_for: &[],
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A server that answers one request on a connection with this text.
    fn server(reply: String) -> (SocketAddr, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 1024];
            let read = stream.read(&mut asked).unwrap();
            stream.write_all(reply.as_bytes()).unwrap();
            String::from_utf8_lossy(&asked[..read]).into_owned()
        });
        (address, thread)
    }

    fn asked(reply: &str, question: Question) -> (Answer, String) {
        let (address, thread) = server(reply.to_owned());
        let host = Host { what: "node a".to_owned(), authority: address.to_string(), question };
        (ask(&host), thread.join().unwrap())
    }

    #[test]
    fn a_host_is_asked_as_the_health_check_asks_or_pinged() {
        let get = Question::Get("/health".to_owned());
        let (answer, request) = asked("HTTP/1.1 204 No Content\r\n\r\n", get.clone());
        assert_eq!(answer.finding.state, State::Works, "{answer:?}");
        assert!(request.starts_with("GET /health HTTP/1.1\r\nhost: 127.0.0.1:"), "{request}");
        let (answer, _) = asked("HTTP/1.1 503 x\r\n\r\n", get);
        assert_eq!(answer.finding.state, State::Missing);
        assert!(answer.finding.found.ends_with("GET /health gets 503"), "{answer:?}");
        // Any reply shows that the host speaks HTTP.
        let (answer, request) = asked("HTTP/1.1 405 Method Not Allowed\r\n\r\n", Question::Ping);
        assert_eq!(answer.finding.state, State::Works, "{answer:?}");
        assert!(request.starts_with("OPTIONS * HTTP/1.1\r\n"), "{request}");
        for (reply, says) in [("SSH-2.0-x\r\n\r\n", "not HTTP/1.1"), ("", "was closed")] {
            let (answer, _) = asked(reply, Question::Ping);
            assert_eq!(answer.finding.state, State::Missing);
            assert!(answer.finding.found.contains(says), "{answer:?}");
        }
    }

    #[test]
    fn a_host_that_does_not_listen_is_missing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        drop(listener);
        let answer = ask(&Host { what: "origin".to_owned(), authority, question: Question::Connect });
        assert_eq!(answer.finding.state, State::Missing);
        assert!(answer.finding.found.contains("refused"), "{answer:?}");
    }

    #[test]
    fn a_clock_that_differs_is_reported() {
        let date = |ahead_s: u64| httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(ahead_s));
        let of = |ahead_s: u64| {
            let reply = format!("HTTP/1.1 200 OK\r\nDate: {}\r\n\r\n", date(ahead_s));
            let (answer, _) = asked(&reply, Question::Ping);
            let host = Host { what: "node a".to_owned(), authority: String::new(), question: Question::Ping };
            clock(&[host], &[answer])
        };
        let (right, wrong) = (of(0), of(600));
        assert_eq!((right.state, right.found.as_str()), (State::Works, "within 3 s of 1 host"));
        assert_eq!(wrong.state, State::Degraded);
        assert!(wrong.found.contains("s behind that of node a"), "{wrong:?}");
        assert_eq!(clock(&[], &[]).state, State::Unknown);
    }
}
