//! A client: one request at a time on a connection that stays open.

use crate::http::{header, read_head, status};
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

/// A reply.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The port of the node that has replied.
    pub node: Option<u16>,
    /// The body.
    pub body: Vec<u8>,
    /// Whether the server closes the connection after it.
    pub is_last: bool,
}

impl Reply {
    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A connection.
#[derive(Debug)]
pub struct Client(TcpStream);

impl Client {
    /// Connects to a port of this machine.
    ///
    /// # Errors
    /// No one listens there.
    pub fn connect(port: u16) -> io::Result<Self> {
        Ok(Self(TcpStream::connect(("127.0.0.1", port))?))
    }

    /// Sends a GET and reads the reply.
    ///
    /// # Errors
    /// The connection has ended before the end of the reply.
    pub fn get(&mut self, path: &str) -> io::Result<Reply> {
        self.send("GET", path, b"")
    }

    /// Sends a POST and reads the reply.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn post(&mut self, path: &str, body: &[u8]) -> io::Result<Reply> {
        self.send("POST", path, body)
    }

    fn send(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<Reply> {
        let length = body.len();
        write!(self.0, "{method} {path} HTTP/1.1\r\nHost: tier.example\r\nContent-Length: {length}\r\n\r\n")?;
        self.0.write_all(body)?;
        let head = read_head(&mut self.0)?;
        let mut body = Vec::new();
        match header(&head, "content-length").and_then(|length| length.parse().ok()) {
            Some(length) => {
                body.resize(length, 0);
                self.0.read_exact(&mut body)?;
            }
            None => read_chunks(&mut self.0, &mut body)?,
        }
        let node = header(&head, "node").and_then(|port| port.parse().ok());
        let is_last = header(&head, "connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        Ok(Reply { status: status(&head).unwrap_or_default(), node, body, is_last })
    }
}

/// Sends a single GET.
///
/// # Errors
/// As [`Client::connect`] and [`Client::get`].
pub fn get(port: u16, path: &str) -> io::Result<Reply> {
    Client::connect(port)?.get(path)
}

/// Sends a single POST without a body.
///
/// # Errors
/// As [`Client::connect`] and [`Client::get`].
pub fn post(port: u16, path: &str) -> io::Result<Reply> {
    Client::connect(port)?.post(path, b"")
}

fn read_chunks(stream: &mut TcpStream, body: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        let size = String::from_utf8_lossy(&line);
        let size = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
        let mut chunk = vec![0; size + 2];
        stream.read_exact(&mut chunk)?;
        if size == 0 {
            return Ok(());
        }
        body.extend_from_slice(&chunk[..size]);
    }
}
