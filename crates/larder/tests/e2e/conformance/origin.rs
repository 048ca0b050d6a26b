//! An origin that records its requests, and whether they are ambiguous.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use larder_http::h1::Framing;
use larder_testkit::http::header;

use super::corpus::{Case, bytes, text};

/// A complete request.
#[derive(Clone)]
pub struct RecordedRequest {
    /// Method and target, followed by a space and the body if there is one.
    pub what: String,
    pub head: String,
}

/// The records of an origin.
#[derive(Default)]
pub struct Log {
    pub requests: Vec<RecordedRequest>,
    /// Bytes that another origin could parse differently.
    pub ambiguous: Vec<String>,
}

pub struct Origin {
    pub address: SocketAddr,
    pub log: Arc<Mutex<Log>>,
}

impl Origin {
    pub fn start(cases: Arc<Vec<Case>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, log) = (listener.local_addr().unwrap(), Arc::<Mutex<Log>>::default());
        let shared = Arc::clone(&log);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (cases, log) = (Arc::clone(&cases), Arc::clone(&shared));
                // The relay may close the connection at any time.
                thread::spawn(move || drop(serve(stream, &cases, &log)));
            }
        });
        Self { address, log }
    }
}

fn serve(mut stream: TcpStream, cases: &[Case], log: &Mutex<Log>) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_nodelay(true)?;
    let (mut framing, mut read) = (Framing::without_upgrades(), Vec::new());
    loop {
        let Some(head_end) = find(&read, b"\r\n\r\n") else {
            more(&mut stream, &mut framing, &mut read, log)?;
            continue;
        };
        let head = text(&read[..head_end]);
        if head.to_lowercase().contains("\r\nexpect: 100-continue") {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let (body, end) = loop {
            match body(&head, &read[head_end + 4..]) {
                Some((body, length)) => break (body, head_end + 4 + length),
                None => more(&mut stream, &mut framing, &mut read, log)?,
            }
        };
        read.drain(..end);
        let line: Vec<&str> = head.lines().next().unwrap_or_default().split(' ').collect();
        let (method, target) = (line[0], line.get(1).copied().unwrap_or_default());
        let what = format!("{method} {target}{}{body}", if body.is_empty() { "" } else { " " });
        log.lock().unwrap().requests.push(RecordedRequest { what, head: head.clone() });
        let scripted = cases.iter().find(|case| target == format!("/c/{}", case.id) && case.reply.is_some());
        if let Some(case) = scripted {
            stream.write_all(&bytes(case.reply.as_deref().unwrap()))?;
            if case.closes {
                return Ok(());
            }
            continue;
        }
        let reply = format!("{target}\n");
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", reply.len())?;
        if method != "HEAD" {
            stream.write_all(reply.as_bytes())?;
        }
    }
}

/// Reads more bytes and checks them.
fn more(
    stream: &mut TcpStream,
    framing: &mut Framing,
    read: &mut Vec<u8>,
    log: &Mutex<Log>,
) -> io::Result<()> {
    let mut buffer = [0; 1 << 16];
    let count = stream.read(&mut buffer)?;
    if count == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    read.extend_from_slice(&buffer[..count]);
    if let Err(broken) = framing.check(&buffer[..count]) {
        let what = format!("{:?}: {}", broken.fault, text(read));
        log.lock().unwrap().ambiguous.push(what);
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(())
}

/// Returns the body after a head, and its length with framing. `None` if it is incomplete.
fn body(head: &str, rest: &[u8]) -> Option<(String, usize)> {
    if header(head, "transfer-encoding").is_none() {
        let length = header(head, "content-length").map_or(0, |length| length.parse().unwrap());
        return rest.get(..length).map(|body| (text(body), length));
    }
    let (mut body, mut at) = (String::new(), 0);
    loop {
        let line = find(&rest[at..], b"\r\n")?;
        let size = usize::from_str_radix(&text(&rest[at..at + line]), 16).ok()?;
        at += line + 2;
        if size == 0 {
            // No relay here sends trailers.
            return rest.get(at..at + 2).map(|_| (body, at + 2));
        }
        body += &text(rest.get(at..at + size)?);
        at += size + 2;
        rest.get(..at)?;
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
