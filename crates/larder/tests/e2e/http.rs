//! A blocking HTTP client with one kept-alive connection.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use larder_testkit::http::{header, read_head, status};
use serde_json::Value;

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    /// Returns the node named in `Cache-Status`, and whether it was a hit.
    pub fn node_and_hit(&self) -> (String, bool) {
        let status = self.header("cache-status").expect("every reply of a node says so");
        let (node, rest) = status.split_once(';').unwrap();
        (node.trim().to_owned(), rest.trim().starts_with("hit"))
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

pub struct Client<S = TcpStream>(BufReader<S>);

impl Client {
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.set_nodelay(true)?;
        Ok(Self::over(stream))
    }

    pub fn local(&self) -> SocketAddr {
        self.0.get_ref().local_addr().unwrap()
    }
}

impl<S: Read + Write> Client<S> {
    /// Creates a client on an existing connection.
    pub fn over(stream: S) -> Self {
        Self(BufReader::new(stream))
    }

    pub fn ask(&mut self, method: &str, target: &str, headers: &str) -> io::Result<Reply> {
        write!(self.0.get_mut(), "{method} {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")?;
        let (status, head) = loop {
            let (status, head) = self.head()?;
            // An interim reply precedes the final one (RFC 9110 section 15.2).
            if !matches!(status, 100 | 102..=199) {
                break (status, head);
            }
        };
        let mut reply = Reply { status, head, body: Vec::new() };
        let length = reply.header("content-length").and_then(|text| text.parse().ok());
        if method != "HEAD" && status != 304 && status != 204 {
            match length {
                Some(length) => {
                    reply.body.resize(length, 0);
                    self.0.read_exact(&mut reply.body)?;
                }
                None if reply.header("transfer-encoding") == Some("chunked") => {
                    self.chunks(&mut reply.body)?;
                }
                None => {
                    self.0.read_to_end(&mut reply.body)?;
                }
            }
        }
        Ok(reply)
    }

    /// Reads a chunked body without trailers.
    fn chunks(&mut self, body: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line)?;
            let size = usize::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
            let from = body.len();
            body.resize(from + size + 2, 0);
            self.0.read_exact(&mut body[from..])?;
            body.truncate(from + size);
            if size == 0 {
                return Ok(());
            }
        }
    }

    /// Reads the next head, and returns it with its status.
    fn head(&mut self) -> io::Result<(u16, String)> {
        let head = read_head(&mut self.0)?;
        Ok((status(&head).ok_or(io::ErrorKind::InvalidData)?, head))
    }
}

/// Sends one request on a new connection.
pub fn ask(address: SocketAddr, method: &str, target: &str, headers: &str) -> Reply {
    Client::connect(address).unwrap().ask(method, target, headers).unwrap()
}

pub fn post(address: SocketAddr, target: &str) -> Reply {
    ask(address, "POST", target, "")
}

pub fn get(address: SocketAddr, target: &str) -> Reply {
    ask(address, "GET", target, "")
}

/// Returns the page of metrics of an admin interface.
pub fn metrics(admin: SocketAddr) -> String {
    String::from_utf8(get(admin, "/metrics").body).unwrap()
}

/// Returns the sum of a metric over its lines that contain all of `labels`.
pub fn metric(admin: SocketAddr, name: &str, labels: &[&str]) -> Option<u64> {
    larder_testkit::metric(&metrics(admin), name, labels).map(|value| value as u64)
}
