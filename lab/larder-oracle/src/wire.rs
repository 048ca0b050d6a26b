//! HTTP/1.1 over a socket, with full control of the bytes.

use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Maximum size of a head. Bytes.
const HEAD_MAX: usize = 64 * 1024;
/// Maximum size of a body. Bytes.
const BODY_MAX: usize = 4 * 1024 * 1024;
/// Maximum number of header fields.
const FIELDS_MAX: usize = 100;

/// Header fields in order of arrival. Names are in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    /// Appends a field.
    pub fn push(&mut self, name: &str, value: impl Into<String>) {
        self.0.push((name.to_ascii_lowercase(), value.into()));
    }

    /// Parses lines of the form `Name: value`.
    pub fn of_lines(lines: &str) -> Self {
        let mut fields = Self::default();
        for (name, value) in lines.lines().filter_map(|line| line.split_once(':')) {
            fields.push(name, value.trim());
        }
        fields
    }

    /// Appends all fields of another list.
    pub fn extend(&mut self, other: &Self) {
        self.0.extend(other.0.iter().cloned());
    }

    /// The values of every field with this name, in order.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The first value of a field.
    pub fn first<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).next()
    }

    /// Whether there is such a field.
    pub fn has(&self, name: &str) -> bool {
        self.first(name).is_some()
    }

    /// The values of every field with this name, joined by commas. `None` if there is no such field.
    pub fn joined(&self, name: &str) -> Option<String> {
        self.has(name).then(|| self.all(name).collect::<Vec<_>>().join(","))
    }

    /// Removes every field with this name.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(known, _)| known != name);
    }

    /// Name and value of every field.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Writes the fields as header lines.
    pub fn write(&self, out: &mut String) {
        for (name, value) in self.iter() {
            out.extend([name, ": ", value, "\r\n"]);
        }
    }
}

/// Start line and fields of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Method of a request.
    pub method: String,
    /// Target of a request.
    pub target: String,
    /// Status of a reply.
    pub status: u16,
    /// Fields.
    pub fields: Fields,
}

/// A received body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether the body is complete by its framing.
    pub whole: bool,
    /// Whether the connection can carry another message.
    pub kept_alive: bool,
}

/// A connection that reads and writes messages.
#[derive(Debug)]
pub struct Wire {
    tcp: TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    /// Takes a connected socket.
    pub fn new(tcp: TcpStream) -> Self {
        // Nagle's algorithm would delay small messages.
        let _ = tcp.set_nodelay(true);
        Self { tcp, buffer: Vec::with_capacity(4_096) }
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// If the connection is broken.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tcp.write_all(bytes).await
    }

    /// Reads the head of a request. `None` if the connection ended before its first byte.
    ///
    /// # Errors
    /// If the connection is broken or the bytes are not a request.
    pub async fn request(&mut self) -> io::Result<Option<Head>> {
        let Some(bytes) = self.head().await? else { return Ok(None) };
        let mut lines = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut parsed = httparse::Request::new(&mut lines);
        parsed.parse(&bytes).map_err(io::Error::other)?;
        Ok(Some(Head {
            method: parsed.method.unwrap_or_default().to_owned(),
            target: parsed.path.unwrap_or_default().to_owned(),
            status: 0,
            fields: fields(parsed.headers),
        }))
    }

    /// Reads the head of a reply. `None` if the connection ended before its first byte.
    ///
    /// # Errors
    /// If the connection is broken or the bytes are not a reply.
    pub async fn reply(&mut self) -> io::Result<Option<Head>> {
        let Some(bytes) = self.head().await? else { return Ok(None) };
        let mut lines = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut parsed = httparse::Response::new(&mut lines);
        parsed.parse(&bytes).map_err(io::Error::other)?;
        let status = parsed.code.unwrap_or_default();
        Ok(Some(Head { status, fields: fields(parsed.headers), ..Head::default() }))
    }

    /// Reads the body of a request.
    ///
    /// # Errors
    /// If the connection is broken or the framing is invalid.
    pub async fn request_body(&mut self, head: &Head) -> io::Result<Body> {
        if head.fields.has("transfer-encoding") || head.fields.has("content-length") {
            self.body(&head.fields).await
        } else {
            Ok(Body { bytes: Vec::new(), whole: true, kept_alive: true })
        }
    }

    /// Reads the body of a reply to a request with this method (RFC 9112 section 6.3).
    ///
    /// # Errors
    /// If the framing is invalid. An incomplete body is not an error.
    pub async fn reply_body(&mut self, method: &str, head: &Head) -> io::Result<Body> {
        let close = head.fields.all("connection").any(|value| value.to_ascii_lowercase().contains("close"));
        if method == "HEAD" || matches!(head.status, 204 | 304) {
            return Ok(Body { bytes: Vec::new(), whole: true, kept_alive: !close });
        }
        let body = self.body(&head.fields).await?;
        Ok(Body { kept_alive: body.kept_alive && !close, ..body })
    }

    async fn body(&mut self, fields: &Fields) -> io::Result<Body> {
        let mut bytes = Vec::new();
        if fields.has("transfer-encoding") {
            let whole = self.chunks(&mut bytes).await?;
            return Ok(Body { bytes, whole, kept_alive: whole });
        }
        if let Some(text) = fields.first("content-length") {
            let len: usize = text.parse().map_err(io::Error::other)?;
            let whole = self.take(len, &mut bytes).await?;
            return Ok(Body { bytes, whole, kept_alive: whole });
        }
        while self.fill().await? {
            limit(self.buffer.len(), BODY_MAX, "body")?;
        }
        bytes.append(&mut self.buffer);
        Ok(Body { bytes, whole: true, kept_alive: false })
    }

    async fn chunks(&mut self, bytes: &mut Vec<u8>) -> io::Result<bool> {
        loop {
            let Some(line) = self.line().await? else { return Ok(false) };
            let text = String::from_utf8_lossy(&line).into_owned();
            let digits = text.split(';').next().unwrap_or_default().trim();
            let len = usize::from_str_radix(digits, 16).map_err(io::Error::other)?;
            if len == 0 {
                while let Some(line) = self.line().await? {
                    if line.is_empty() {
                        return Ok(true);
                    }
                }
                return Ok(false);
            }
            if !self.take(len, bytes).await? || self.line().await?.is_none() {
                return Ok(false);
            }
        }
    }

    /// Reads `len` bytes into `bytes`. Returns false if the connection ends before.
    async fn take(&mut self, len: usize, bytes: &mut Vec<u8>) -> io::Result<bool> {
        limit(bytes.len() + len, BODY_MAX, "body")?;
        while self.buffer.len() < len {
            if !self.fill().await? {
                bytes.append(&mut self.buffer);
                return Ok(false);
            }
        }
        bytes.extend(self.buffer.drain(..len));
        Ok(true)
    }

    async fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                let line = self.buffer.drain(..end + 2).take(end).collect();
                return Ok(Some(line));
            }
            limit(self.buffer.len(), BODY_MAX, "line")?;
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    async fn head(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut searched: usize = 0;
        loop {
            let from = searched.saturating_sub(3);
            if let Some(at) = self.buffer[from..].windows(4).position(|four| four == b"\r\n\r\n") {
                return Ok(Some(self.buffer.drain(..from + at + 4).collect()));
            }
            searched = self.buffer.len();
            limit(searched, HEAD_MAX, "head")?;
            if !self.fill().await? {
                return match searched {
                    0 => Ok(None),
                    _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "incomplete head")),
                };
            }
        }
    }

    /// Reads more bytes. Returns false at the end of the connection; a reset counts as an end.
    async fn fill(&mut self) -> io::Result<bool> {
        match self.tcp.read_buf(&mut self.buffer).await {
            Ok(count) => Ok(count > 0),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn limit(len: usize, max: usize, what: &str) -> io::Result<()> {
    if len > max { Err(io::Error::other(format!("{what} above {max} bytes"))) } else { Ok(()) }
}

fn fields(headers: &[httparse::Header<'_>]) -> Fields {
    let mut fields = Fields::default();
    for header in headers {
        fields.push(header.name, String::from_utf8_lossy(header.value));
    }
    fields
}
