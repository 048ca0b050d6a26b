//! An HTTP/2 client that writes frames byte by byte, and can therefore violate the protocol.

use crate::kit::{TIMEOUT, TestRelay};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// An HTTP/2 frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes fields in HPACK (RFC 7541 section 6.2.2). Names and values must be shorter than 127 bytes.
pub(crate) fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).expect("short")], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// Encodes a request for `/` with further fields.
pub(crate) fn get(stream: u32, further: &[(&str, &str)], flags: u8) -> Vec<u8> {
    let pseudo = [(":method", "GET"), (":scheme", "https"), (":authority", "h"), (":path", "/")];
    frame(HEADERS, END_HEADERS | flags, stream, &fields(&[&pseudo, further].concat()))
}

pub(crate) struct Frames {
    stream: DuplexStream,
}

impl Frames {
    /// Opens a connection, and sends the preface.
    pub(crate) async fn connect(relay: &TestRelay) -> Self {
        let mut frames = Self { stream: relay.http2() };
        frames.send(PREFACE).await;
        frames.send(&frame(SETTINGS, 0, 0, &[])).await;
        frames
    }

    /// Sends bytes. Returns whether the proxy has accepted all of them.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// Reads the next frame. Returns `None` at the end of the connection.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        timeout(TIMEOUT, self.stream.read_exact(&mut head)).await.expect("a frame or the end").ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).await.ok()?;
        Some(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }

    /// Reads up to the first frame that replies to a stream or closes the connection.
    pub(crate) async fn reply(&mut self, stream: u32) -> Frame {
        self.try_reply(stream).await.expect("the connection goes on")
    }

    /// Reads as [`Self::reply`] does. Returns `None` if the connection ends without GOAWAY.
    pub(crate) async fn try_reply(&mut self, stream: u32) -> Option<Frame> {
        loop {
            let frame = self.next().await?;
            if frame.kind == GOAWAY || frame.stream == stream && matches!(frame.kind, HEADERS | RST_STREAM) {
                return Some(frame);
            }
        }
    }

    /// Reads all frames up to the end of the connection.
    pub(crate) async fn read_to_end(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        frames
    }
}
