//! One HTTP exchange with a host: connection, TLS as the role uses it, request, and head of the reply. Each
//! step has a timeout.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use larder_edge::{LoadedTls, TlsFault};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

/// Timeout of a connection attempt, of a handshake, and of the head of a reply.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(2);
/// Most addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;
/// Longest head that is read, bytes.
const HEADER_MAX: usize = 16 << 10;
const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";

/// TLS settings for a host, as the connecting role uses them.
#[derive(Clone, Debug)]
pub(super) struct TlsClient {
    pub(super) files: Arc<LoadedTls>,
    pub(super) name: ServerName<'static>,
    /// Whether the role offers HTTP/2.
    pub(super) http2: bool,
}

/// The checked parts of a reply's head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reply {
    pub(super) status: u16,
    /// Seconds by which the host's clock is ahead.
    pub(super) ahead_s: Option<f64>,
}

/// A connection whose reads and writes have a deadline.
#[derive(Debug)]
pub(super) struct TimedStream {
    stream: TcpStream,
    until: Instant,
}

impl TimedStream {
    fn remaining(&self) -> io::Result<Duration> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(timeout_error()),
            remaining => Ok(remaining),
        }
    }
}

fn timeout_error() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, format!("no answer within {} s", STEP_TIMEOUT.as_secs()))
}

/// Maps `WouldBlock`, which the system reports when a socket's timeout expires.
fn map_timeout(done: io::Result<usize>) -> io::Result<usize> {
    done.map_err(|error| if error.kind() == ErrorKind::WouldBlock { timeout_error() } else { error })
}

impl Read for TimedStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.remaining()?))?;
        map_timeout(self.stream.read(buf))
    }
}

impl Write for TimedStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.remaining()?))?;
        map_timeout(self.stream.write(buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Connects to the first address that accepts.
pub(super) fn connect(addresses: &[SocketAddr]) -> io::Result<(SocketAddr, TimedStream)> {
    let mut failure = io::Error::other("the name has no address");
    for address in addresses.iter().take(ADDRESSES_MAX) {
        match TcpStream::connect_timeout(address, STEP_TIMEOUT) {
            Ok(stream) => {
                return Ok((*address, TimedStream { stream, until: Instant::now() + STEP_TIMEOUT }));
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// A connection with TLS.
pub(super) type TlsConnection = StreamOwned<ClientConnection, TimedStream>;

impl TlsClient {
    /// Does a handshake, and verifies the certificate as the role does. If the server does not speak HTTP/1.1
    /// and the role offers HTTP/2, opens a second connection for HTTP/2.
    pub(super) fn open(
        &self,
        stream: TimedStream,
        again: impl FnOnce() -> io::Result<TimedStream>,
    ) -> Result<TlsConnection, TlsFault> {
        match self.handshake(stream, HTTP1) {
            Err(TlsFault::NoProtocol) if self.http2 => {
                self.handshake(again().map_err(|error| TlsFault::of(&error))?, HTTP2)
            }
            done => done,
        }
    }

    fn handshake(&self, mut stream: TimedStream, protocol: &[u8]) -> Result<TlsConnection, TlsFault> {
        stream.until = Instant::now() + STEP_TIMEOUT;
        let mut client = self.files.client.clone();
        client.alpn_protocols = vec![protocol.to_vec()];
        let mut connection = ClientConnection::new(Arc::new(client), self.name.clone())
            .map_err(|error| TlsFault::of_tls(&error))?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).map_err(|error| match error.kind() {
                ErrorKind::TimedOut => TlsFault::Timeout,
                _ => TlsFault::of(&error),
            })?;
        }
        Ok(StreamOwned::new(connection, stream))
    }
}

/// Whether the connection speaks HTTP/2.
pub(super) fn is_http2(stream: &TlsConnection) -> bool {
    stream.conn.alpn_protocol() == Some(HTTP2)
}

/// Sends the announcement at the start of a connection.
pub(super) fn send_announcement(stream: &mut TimedStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)
}

/// Sends a request without TLS.
pub(super) fn exchange_clear(mut stream: TimedStream, request: &str) -> io::Result<Reply> {
    stream.until = Instant::now() + STEP_TIMEOUT;
    exchange(&mut stream, request)
}

/// Sends a request over TLS.
pub(super) fn exchange_tls(mut stream: TlsConnection, request: &str) -> io::Result<Reply> {
    stream.sock.until = Instant::now() + STEP_TIMEOUT;
    exchange(&mut stream, request)
}

fn exchange(stream: &mut (impl Read + Write), request: &str) -> io::Result<Reply> {
    let sent = SystemTime::now();
    stream
        .write_all(format!("{request}user-agent: larder-doctor\r\nconnection: close\r\n\r\n").as_bytes())?;
    stream.flush()?;
    let (mut header, mut part) = (Vec::new(), [0; 4096]);
    while !header.windows(4).any(|end| end == b"\r\n\r\n") && header.len() < HEADER_MAX {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(read) => header.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Some servers close TLS connections without close_notify.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
    }
    let text = String::from_utf8_lossy(&header);
    let status = parse_status(&text).ok_or_else(|| {
        let what = if header.is_empty() { "the connection was closed" } else { "the reply is not HTTP/1.1" };
        io::Error::new(ErrorKind::InvalidData, what)
    })?;
    Ok(Reply { status, ahead_s: ahead_s(&text, sent) })
}

fn parse_status(header: &str) -> Option<u16> {
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
