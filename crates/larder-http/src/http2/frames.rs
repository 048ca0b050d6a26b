//! A limit on HTTP/2 frames that cause work and carry no content.
//!
//! Each PING, SETTINGS, PRIORITY, WINDOW_UPDATE, unknown or empty DATA frame of the client takes one token
//! from a [`TokenBucket`]. Requests, bodies and replies add tokens, because well-behaved clients send control
//! frames in response to them. For example, gRPC clients send a PING and a WINDOW_UPDATE for each DATA frame.
//! Browsers send a PRIORITY frame with each request. If the bucket is empty, the connection is ended.
//!
//! | event | tokens |
//! |---|---|
//! | a frame without content from the client | -1 |
//! | a HEADERS frame from the client | +10 |
//! | a DATA frame to the client | +2, and +1 for each 256 bytes |
//! | a DATA frame from the client | +1 for each 256 bytes |
//! | each second | +100, up to 1,000 |

use super::TokenBucket;
use tokio::time::Instant;

/// Length of the connection preface, in bytes. A client sends it before its first frame (RFC 9113 section
/// 3.4).
const PREFACE_BYTES: usize = 24;
/// Length of a frame header, in bytes (RFC 9113 section 4.1).
const FRAME_HEADER_BYTES: usize = 9;

// Frame types and flags (RFC 9113 section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;

/// Frames without content that a client may send in one burst.
const CONTROL_MAX: f64 = 1_000.0;
/// Frames without content that a client may send in the long run, per second.
const CONTROL_PER_S: f64 = 100.0;
/// Tokens that a HEADERS frame from the client adds.
const TOKENS_PER_REQUEST: f64 = 10.0;
/// Tokens that a DATA frame to the client adds, besides those for its length.
const TOKENS_PER_REPLY_FRAME: f64 = 2.0;
/// Bytes of a DATA frame that add one token.
const BYTES_PER_TOKEN: f64 = 256.0;

/// A limit on frames that a client has exceeded. The connection must be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flood {
    /// The client has reset too many streams.
    #[error("too many streams reset")]
    Resets,
    /// The client has sent too many frames without content.
    #[error("too many frames without content")]
    Control,
}

impl Flood {}

/// The part of a frame header that the limits depend on (RFC 9113 section 4.1).
#[derive(Clone, Copy, Debug)]
struct FrameHeader {
    length: u32,
    kind: u8,
    flags: u8,
}

/// A parser that finds frame headers in a byte stream. The bytes may arrive in pieces of any size.
#[derive(Debug)]
struct FrameScanner {
    /// Bytes to skip before the next frame header.
    skip: usize,
    header: [u8; FRAME_HEADER_BYTES],
    header_len: usize,
}

impl FrameScanner {
    const fn new(skip: usize) -> Self {
        Self { skip, header: [0; FRAME_HEADER_BYTES], header_len: 0 }
    }

    /// Calls `on_frame` for each frame header that ends in `bytes`. Stops at the first error of `on_frame`.
    fn scan<E>(
        &mut self,
        mut bytes: &[u8],
        mut on_frame: impl FnMut(FrameHeader) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return Ok(());
            }
            let taken = (FRAME_HEADER_BYTES - self.header_len).min(bytes.len());
            self.header[self.header_len..self.header_len + taken].copy_from_slice(&bytes[..taken]);
            self.header_len += taken;
            bytes = &bytes[taken..];
            if self.header_len < FRAME_HEADER_BYTES {
                return Ok(());
            }
            self.header_len = 0;
            let [a, b, c, kind, flags, ..] = self.header;
            let length = u32::from_be_bytes([0, a, b, c]);
            self.skip = length as usize;
            on_frame(FrameHeader { length, kind, flags })?;
        }
    }
}

/// The limits on the frames of one connection.
#[derive(Debug)]
pub struct FrameLimits {
    received: FrameScanner,
    sent: FrameScanner,
    control: TokenBucket,
    /// `None` if another part of the program counts resets.
    resets: Option<TokenBucket>,
}

impl FrameLimits {
    /// Creates the limits of a new connection, without the limit on resets.
    pub const fn new(now: Instant) -> Self {
        Self {
            received: FrameScanner::new(PREFACE_BYTES),
            sent: FrameScanner::new(0),
            control: TokenBucket::new(CONTROL_MAX, CONTROL_PER_S, now),
            resets: None,
        }
    }

    /// Adds the limit on resets.
    #[must_use]
    pub const fn with_resets(self, now: Instant) -> Self {
        Self { resets: Some(TokenBucket::resets(now)), ..self }
    }

    /// Counts the frames in bytes that were received from the client.
    ///
    /// # Errors
    /// The client has exceeded a limit. The connection must be ended.
    pub fn receive(&mut self, bytes: &[u8], now: Instant) -> Result<(), Flood> {
        let Self { received, control, resets, .. } = self;
        received.scan(bytes, |frame| {
            match (frame.kind, &mut *resets) {
                (HEADERS, _) => control.add(TOKENS_PER_REQUEST),
                (DATA, _) if frame.length > 0 || frame.flags & END_STREAM != 0 => {
                    control.add(f64::from(frame.length) / BYTES_PER_TOKEN);
                }
                // The h2 crate limits these frames for each header list.
                (CONTINUATION, _) => {}
                (RST_STREAM, Some(resets)) => return resets.take(now).then_some(()).ok_or(Flood::Resets),
                _ => return control.take(now).then_some(()).ok_or(Flood::Control),
            }
            Ok(())
        })
    }

    /// Counts the frames in bytes that are sent to the client.
    pub fn send(&mut self, bytes: &[u8]) {
        let Self { sent, control, .. } = self;
        let Ok(()) = sent.scan(bytes, |frame| {
            if frame.kind == DATA {
                control.add(TOKENS_PER_REPLY_FRAME + f64::from(frame.length) / BYTES_PER_TOKEN);
            }
            Ok::<_, std::convert::Infallible>(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const PING: u8 = 6;
    const WINDOW_UPDATE: u8 = 8;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn limits_after_preface(now: Instant) -> FrameLimits {
        let mut limits = FrameLimits::new(now).with_resets(now);
        limits.receive(&[b'x'; PREFACE_BYTES], now).unwrap();
        limits
    }

    /// Sends up to `count` frames at once. Returns the number of accepted frames, and the limit that the next
    /// frame exceeded.
    fn send_frames(
        limits: &mut FrameLimits,
        frame: &[u8],
        count: usize,
        now: Instant,
    ) -> (usize, Option<Flood>) {
        let failed = (0..count).find_map(|at| Some((at, limits.receive(frame, now).err()?)));
        failed.map_or((count, None), |(accepted, flood)| (accepted, Some(flood)))
    }

    #[test]
    fn frames_without_content_are_limited() {
        let now = Instant::now();
        for (kind, flags, payload) in [
            (PING, 0, &[0; 8][..]),
            (PING, 1, &[0; 8]),
            (4, 0, &[]),
            (2, 0, &[0; 5]),
            (WINDOW_UPDATE, 0, &[0, 0, 0, 1]),
            (DATA, 0, &[]),
            (0xfa, 0, &[1, 2, 3]),
        ] {
            let mut limits = limits_after_preface(now);
            let frame = frame(kind, flags, payload);
            assert_eq!(
                send_frames(&mut limits, &frame, 5_000, now),
                (1_000, Some(Flood::Control)),
                "kind {kind}"
            );
            let later = now + Duration::from_secs(3);
            let mut limits = limits_after_preface(now);
            send_frames(&mut limits, &frame, 1_000, now);
            assert_eq!(send_frames(&mut limits, &frame, 5_000, later).0, 300, "kind {kind}");
        }
    }

    #[test]
    fn resets_have_a_separate_limit() {
        let now = Instant::now();
        let mut limits = limits_after_preface(now);
        let reset = frame(RST_STREAM, 0, &[0, 0, 0, 8]);
        assert_eq!(send_frames(&mut limits, &reset, 5_000, now), (500, Some(Flood::Resets)));
    }

    #[test]
    fn bodies_and_requests_take_no_tokens() {
        let now = Instant::now();
        let mut limits = limits_after_preface(now);
        for kind in [DATA, HEADERS, CONTINUATION] {
            let result = send_frames(&mut limits, &frame(kind, 0, &[0; 300]), 50_000, now);
            assert_eq!(result, (50_000, None), "kind {kind}");
        }
        assert_eq!(send_frames(&mut limits, &frame(DATA, END_STREAM, &[]), 50_000, now), (50_000, None));
    }

    /// A gRPC client responds to each small message with a PING and a WINDOW_UPDATE.
    #[test]
    fn frames_caused_by_replies_are_allowed() {
        let now = Instant::now();
        let mut limits = limits_after_preface(now);
        let caused = [frame(PING, 0, &[0; 8]), frame(WINDOW_UPDATE, 0, &[0, 0, 0, 1])].concat();
        for _ in 0..10_000 {
            limits.send(&frame(DATA, 0, &[0; 20]));
            limits.receive(&caused, now).unwrap();
        }
    }

    /// An acknowledged PING does not allow another PING.
    #[test]
    fn acknowledgements_add_no_tokens() {
        let now = Instant::now();
        let mut limits = limits_after_preface(now);
        let ping = frame(PING, 0, &[0; 8]);
        let accepted = (0..5_000)
            .take_while(|_| {
                limits.send(&frame(PING, 1, &[0; 8]));
                limits.receive(&ping, now).is_ok()
            })
            .count();
        assert_eq!(accepted, 1_000);
    }

    #[test]
    fn frames_are_found_in_pieces_of_any_size() {
        let now = Instant::now();
        let bytes = [vec![b'x'; PREFACE_BYTES], frame(RST_STREAM, 0, &[0, 0, 0, 8]).repeat(501)].concat();
        for size in [1, 2, 7, 9, 13, 1_000] {
            let mut limits = FrameLimits::new(now).with_resets(now);
            let mut pieces = bytes.chunks(size);
            assert_eq!(
                pieces.find_map(|piece| limits.receive(piece, now).err()),
                Some(Flood::Resets),
                "{size}"
            );
            assert!(pieces.len() * size < 13 + size, "{size}: at the last frame");
        }
    }
}
