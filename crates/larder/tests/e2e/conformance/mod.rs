//! Malformed, ambiguous and unusual requests to the switch and the node: all HTTP/1 cases of
//! bench/conformance.

mod corpus;
mod origin;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use corpus::{Case, bytes, text};
use origin::Origin;

use crate::process::Process;

/// Number of cases that run at the same time.
const AT_ONCE: usize = 16;
/// Longest wait for a reply, and the wait for further bytes.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);
const QUIET_TIME: Duration = Duration::from_millis(150);

struct CaseReply {
    raw: String,
    closed: bool,
}

impl CaseReply {
    /// Returns the status of the first final reply.
    fn status(&self) -> Option<u16> {
        let lines = self.raw.split("\r\n").filter_map(|line| line.strip_prefix("HTTP/1.1 "));
        let mut statuses = lines.filter_map(|line| line.get(..3)?.parse::<u16>().ok());
        statuses.find(|status| *status >= 200 || *status == 101)
    }
}

fn ask(address: SocketAddr, case: &Case) -> CaseReply {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    // A server may close early, which loses the rest of the request.
    let _ = stream.write_all(&bytes(&case.send));
    if case.ends {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let (mut raw, mut closed, mut then) = (Vec::new(), false, !case.then.is_empty());
    let end = Instant::now() + REPLY_TIMEOUT;
    let mut buffer = [0; 1 << 16];
    while Instant::now() < end {
        let answered = CaseReply { raw: text(&raw), closed }.status().is_some();
        let wait = if answered {
            QUIET_TIME
        } else if then {
            QUIET_TIME * 4
        } else {
            REPLY_TIMEOUT
        };
        stream.set_read_timeout(Some(wait)).unwrap();
        let read = stream.read(&mut buffer);
        if then {
            then = false;
            let _ = stream.write_all(&bytes(&case.then));
            if read.is_err() {
                continue;
            }
        }
        match read {
            Ok(0) => {
                closed = true;
                break;
            }
            Ok(count) => raw.extend_from_slice(&buffer[..count]),
            Err(error) => {
                closed = error.kind() == std::io::ErrorKind::ConnectionReset;
                break;
            }
        }
    }
    CaseReply { raw: text(&raw), closed }
}

/// Checks the reply and the requests that the origin received.
fn judge(case: &Case, answer: &CaseReply, origin: &Origin) -> Result<(), String> {
    let log = origin.log.lock().unwrap();
    if let Some(what) = log.ambiguous.iter().find(|what| case.is_named_in(what)) {
        return Err(format!("the origin was sent {what:?}"));
    }
    let seen: Vec<_> = log.requests.iter().filter(|seen| case.is_named_in(&seen.head)).collect();
    if let Some(other) = seen.iter().find(|seen| !case.sees.contains(&seen.what)) {
        return Err(format!("the origin has seen {:?}", other.what));
    }
    let status = answer.status();
    let outcome = match status {
        _ if !seen.is_empty() => "relayed",
        Some(status) if status < 400 => "answered",
        _ => "refused",
    };
    let named = |outcome: &str| case.right.iter().any(|right| right == outcome);
    if !(named(outcome) || outcome == "refused" && status.is_none() && named("closed")) {
        return Err(format!("it was {outcome} with {status:?}"));
    }
    if outcome == "refused" {
        let right = status.is_none_or(|status| case.status.is_empty() || case.status.contains(&status));
        return if right { Ok(()) } else { Err(format!("it was refused with {status:?}")) };
    }
    if outcome == "answered" {
        return Ok(());
    }
    if !case.any && case.reply.is_none() && case.sees.iter().any(|sees| !seen.iter().any(|s| s.what == *sees))
    {
        return Err("not all of it has come to the origin".to_owned());
    }
    if let Some(first) = seen.first().filter(|_| case.reply.is_none()) {
        fields(case, &first.head)?;
    }
    reply(case, answer, status)
}

fn fields(case: &Case, head: &str) -> Result<(), String> {
    let fields: Vec<(String, String)> = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        .collect();
    let held = |line: &str| match line.split_once(": ") {
        None => fields.iter().any(|(name, _)| name == line),
        Some((name, value)) => fields.iter().any(|(key, held)| {
            let held = if key == "host" { held.to_lowercase() } else { held.clone() };
            key == name && (held == value || held.starts_with(&format!("{value},")))
        }),
    };
    if let Some(missing) = case.has.iter().find(|line| !held(line)) {
        return Err(format!("the origin has not got {missing:?}: {head:?}"));
    }
    match case.lacks.iter().find(|line| held(line)) {
        Some(extra) => Err(format!("the origin has got {extra:?}")),
        None => Ok(()),
    }
}

fn reply(case: &Case, answer: &CaseReply, status: Option<u16>) -> Result<(), String> {
    let raw = answer.raw.to_lowercase();
    if let Some(text) = case.misses.iter().find(|text| raw.contains(&text.to_lowercase())) {
        return Err(format!("the client has got {text:?}"));
    }
    for text in &case.gets {
        let got = match text.strip_prefix("status ") {
            Some(begin) => status.is_some_and(|status| status.to_string().starts_with(begin)),
            None => raw.contains(&text.to_lowercase()),
        };
        if !got {
            return Err(format!("the client has not got {text:?} but {:?}", answer.raw));
        }
    }
    if case.closed && !answer.closed { Err("it was not closed".to_owned()) } else { Ok(()) }
}

/// Sends every case to a server before an origin, several at the same time.
fn all(server: impl Fn(SocketAddr) -> Process) {
    let cases = Arc::new(corpus::read());
    let origin = Origin::start(Arc::clone(&cases));
    let server = server(origin.address);
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Relaxed)) {
                    let answer = ask(server.address, case);
                    if let Err(what) = judge(case, &answer, &origin) {
                        wrong.lock().unwrap().push(format!("{}: {what}", case.id));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    let log = origin.log.lock().unwrap();
    let nobody = log.ambiguous.iter().find(|what| !cases.iter().any(|case| case.is_named_in(what)));
    assert_eq!(nobody, None, "bytes of no case");
    assert!(server.terminate().success());
}

fn config(folder: &tempfile::TempDir, text: &str) -> String {
    let path = folder.path().join("larder.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_switch_forwards_only_unambiguous_requests() {
    let folder = tempfile::tempdir().unwrap();
    all(|origin| {
        let text = format!(
            "[switch]\nlisten = \"127.0.0.1:0\"\nh2c = true\nnodes = [\"{origin}\"]\n[admin]\nlisten = \"off\"\n"
        );
        Process::start(&["switch", "--one-process", "--config", &config(&folder, &text)])
    });
}

#[test]
fn the_node_forwards_only_unambiguous_requests() {
    let folder = tempfile::tempdir().unwrap();
    all(|origin| {
        let text = format!(
            "[node]\nname = \"n\"\nlisten = \"127.0.0.1:0\"\n[node.origin]\nurl = \"http://{origin}\"\n"
        );
        Process::start(&["node", "--config", &config(&folder, &text)])
    });
}
