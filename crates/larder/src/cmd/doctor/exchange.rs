//! A question to a host: a connection, TLS as the roles do it, a request, and the head of the reply. Each step has a limit of time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use larder_edge::{LoadedTls, TlsFault};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

/// Time to connect, time for a handshake, and time for the head of a reply.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;
/// The longest header that is read.
const HEADER_MAX: usize = 16 << 10;
const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";

/// TLS to a host, as the role that connects does it.
#[derive(Clone, Debug)]
pub(super) struct TlsTo {
    pub(super) files: Arc<LoadedTls>,
    pub(super) name: ServerName<'static>,
    /// Whether the role offers HTTP/2.
    pub(super) http2: bool,
}

/// The head of a reply, as far as it is looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reply {
    pub(super) status: u16,
    /// Seconds by which the host's clock is ahead.
    pub(super) ahead_s: Option<f64>,
}

/// A connection whose reads and writes end at a time.
#[derive(Debug)]
pub(super) struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Duration> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(late()),
            left => Ok(left),
        }
    }
}

fn late() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, format!("none within {} s", PATIENCE.as_secs()))
}

/// The system reports the end of a socket's time as `WouldBlock`.
fn in_time(done: io::Result<usize>) -> io::Result<usize> {
    done.map_err(|error| if error.kind() == ErrorKind::WouldBlock { late() } else { error })
}

impl Read for Timed {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        in_time(self.stream.read(buf))
    }
}

impl Write for Timed {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        in_time(self.stream.write(buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Connects to the first of the addresses that accepts.
pub(super) fn connect(addresses: &[SocketAddr]) -> io::Result<(SocketAddr, Timed)> {
    let mut failure = io::Error::other("the name has no address");
    for address in addresses.iter().take(ADDRESSES_MAX) {
        match TcpStream::connect_timeout(address, PATIENCE) {
            Ok(stream) => return Ok((*address, Timed { stream, until: Instant::now() + PATIENCE })),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// A connection with TLS.
pub(super) type TlsConnection = StreamOwned<ClientConnection, Timed>;

impl TlsTo {
    /// Shakes hands, and verifies the certificate as the role does. A server that does not speak HTTP/1.1 is connected to again
    /// for HTTP/2 if the role offers it.
    pub(super) fn open(
        &self,
        stream: Timed,
        again: impl FnOnce() -> io::Result<Timed>,
    ) -> Result<TlsConnection, TlsFault> {
        match self.shake(stream, HTTP1) {
            Err(TlsFault::NoProtocol) if self.http2 => {
                self.shake(again().map_err(|error| TlsFault::of(&error))?, HTTP2)
            }
            done => done,
        }
    }

    fn shake(&self, mut stream: Timed, protocol: &[u8]) -> Result<TlsConnection, TlsFault> {
        stream.until = Instant::now() + PATIENCE;
        let mut client = self.files.client.clone();
        client.alpn_protocols = vec![protocol.to_vec()];
        let mut shaking = ClientConnection::new(Arc::new(client), self.name.clone())
            .map_err(|error| TlsFault::of_tls(&error))?;
        while shaking.is_handshaking() {
            shaking.complete_io(&mut stream).map_err(|error| match error.kind() {
                ErrorKind::TimedOut => TlsFault::Timeout,
                _ => TlsFault::of(&error),
            })?;
        }
        Ok(StreamOwned::new(shaking, stream))
    }
}

/// Whether requests on the connection are of HTTP/2.
pub(super) fn is_http2(stream: &TlsConnection) -> bool {
    stream.conn.alpn_protocol() == Some(HTTP2)
}

/// Sends the bytes that a connection begins with.
pub(super) fn announce(stream: &mut Timed, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)
}

/// Sends a request without TLS.
pub(super) fn in_clear(mut stream: Timed, request: &str) -> io::Result<Reply> {
    stream.until = Instant::now() + PATIENCE;
    exchange(&mut stream, request)
}

/// Sends a request over TLS.
pub(super) fn over_tls(mut stream: TlsConnection, request: &str) -> io::Result<Reply> {
    stream.sock.until = Instant::now() + PATIENCE;
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
            // Some servers end TLS without saying so.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
    }
    let text = String::from_utf8_lossy(&header);
    let status = status_of(&text).ok_or_else(|| {
        let what = if header.is_empty() { "the connection was closed" } else { "the reply is not HTTP/1.1" };
        io::Error::new(ErrorKind::InvalidData, what)
    })?;
    Ok(Reply { status, ahead_s: ahead_s(&text, sent) })
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
