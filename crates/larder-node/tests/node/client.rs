//! An HTTP client that sends the given bytes, valid or not, and reads the replies.

use super::PATIENCE;
use larder_testkit::http::{header, read_head_async, status};
use std::net::SocketAddr;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// A reply of the node.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
    /// Whether the connection ended before the announced length.
    pub(crate) truncated: bool,
}

impl Reply {
    /// Returns the value of a header field, or "".
    pub(crate) fn header(&self, name: &str) -> &str {
        header(&self.head, name).unwrap_or("")
    }

    pub(crate) fn cache_status(&self) -> &str {
        self.header("cache-status")
    }
}

/// One connection to a node.
pub(crate) struct Client {
    pub(crate) stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self { stream: BufReader::new(TcpStream::connect(address).await.unwrap()) }
    }

    /// Connects from another loopback address.
    pub(crate) async fn connect_from(source: [u8; 4], address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((source, 0).into()).unwrap();
        Self { stream: BufReader::new(socket.connect(address).await.unwrap()) }
    }

    pub(crate) async fn get(&mut self, path: &str) -> Reply {
        self.request("GET", path, "").await
    }

    /// Sends a GET. `fields` are header lines, each with its line end.
    pub(crate) async fn get_with(&mut self, path: &str, fields: &str) -> Reply {
        self.request("GET", path, fields).await
    }

    pub(crate) async fn request(&mut self, method: &str, path: &str, fields: &str) -> Reply {
        self.send(format!("{method} {path} HTTP/1.1\r\nHost: n\r\n{fields}\r\n").as_bytes()).await;
        self.read_reply(method == "HEAD").await
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Reads a reply. With `without_body`, the reply has no body, whatever its length says.
    pub(crate) async fn read_reply(&mut self, without_body: bool) -> Reply {
        timeout(PATIENCE, self.read_reply_unbounded(without_body)).await.expect("a reply comes")
    }

    async fn read_reply_unbounded(&mut self, without_body: bool) -> Reply {
        let head = read_head_async(&mut self.stream).await.unwrap();
        let status = status(&head).unwrap_or_else(|| panic!("{head:?}"));
        let mut reply = Reply { status, head, body: Vec::new(), truncated: false };
        if reply.header("transfer-encoding") == "chunked" && !without_body {
            reply.truncated = !self.read_chunks(&mut reply.body).await;
            return reply;
        }
        let length: usize = reply.header("content-length").parse().unwrap_or(0);
        if !without_body && status != 304 {
            // A reset in the middle ends the body as an early end of stream does.
            let _ = (&mut self.stream).take(length as u64).read_to_end(&mut reply.body).await;
            reply.truncated = reply.body.len() < length;
        }
        reply
    }

    /// Reads a chunked body. Returns false if it ends before its last chunk.
    async fn read_chunks(&mut self, body: &mut Vec<u8>) -> bool {
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return false;
            }
            let len = usize::from_str_radix(line.trim(), 16).unwrap();
            let mut chunk = vec![0; len + 2];
            if self.stream.read_exact(&mut chunk).await.is_err() {
                return false;
            }
            body.extend_from_slice(&chunk[..len]);
            if len == 0 {
                return true;
            }
        }
    }

    /// Waits until the node closes the connection.
    pub(crate) async fn wait_for_close(&mut self) {
        let mut rest = Vec::new();
        let reading = self.stream.read_to_end(&mut rest);
        let _ = timeout(PATIENCE, reading).await.expect("the connection is closed");
    }
}
