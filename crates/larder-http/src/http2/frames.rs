//! A limit on frames of HTTP/2 that cost work and carry nothing.
//!
//! Each PING, SETTINGS, PRIORITY, WINDOW_UPDATE, unknown or empty DATA frame of the client takes one from an [`Allowance`]. Useful work
//! gives it back, as honest clients send such frames because of it: gRPC clients send a PING and a WINDOW_UPDATE for a DATA frame that
//! they have received, and browsers send a PRIORITY frame with a request. A connection whose allowance is spent is ended.
//!
//! | event | effect on the allowance |
//! |---|---|
//! | a frame that carries nothing | -1 |
//! | a HEADERS frame from the client | +10 |
//! | a DATA frame to the client | +2, and +1 for each 256 bytes |
//! | a DATA frame from the client | +1 for each 256 bytes |
//! | each second | +100, to 1,000 at most |

use super::Allowance;
use std::io::{self, IoSlice};
use tokio::time::Instant;

/// Length of the connection preface, which a client sends before its first frame (RFC 9113 section 3.4). Bytes.
const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;

/// Frames without content that a client may send at once.
const CONTROL_MAX: f64 = 1_000.0;
/// Frames without content that a client may send in the long run, per second.
const CONTROL_PER_S: f64 = 100.0;
const EARNED_BY_REQUEST: f64 = 10.0;
const EARNED_BY_REPLY_FRAME: f64 = 2.0;
const BYTES_PER_EARNED: f64 = 256.0;

/// The limit that a client has exceeded. The connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flood {
    /// It has reset too many streams.
    #[error("too many streams reset")]
    Resets,
    /// It has sent too many frames that carry nothing.
    #[error("too many frames without content")]
    Control,
}

impl Flood {
    /// The limit in an error of the connection, if that is the cause.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

/// The first bytes of a frame.
#[derive(Clone, Copy, Debug)]
struct Frame {
    length: u32,
    kind: u8,
    flags: u8,
}

/// Finds the frames in a stream of bytes that comes in any pieces.
#[derive(Debug)]
struct Scanner {
    /// Bytes that are skipped before the next frame header.
    skip: usize,
    header: [u8; FRAME_HEADER_BYTES],
    header_len: usize,
}

impl Scanner {
    const fn new(skip: usize) -> Self {
        Self { skip, header: [0; FRAME_HEADER_BYTES], header_len: 0 }
    }

    fn scan<E>(&mut self, mut bytes: &[u8], mut seen: impl FnMut(Frame) -> Result<(), E>) -> Result<(), E> {
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
            seen(Frame { length, kind, flags })?;
        }
    }
}

/// The frames of a connection, held against their limits.
#[derive(Debug)]
pub struct FrameLimits {
    received: Scanner,
    sent: Scanner,
    control: Allowance,
    /// `None` if somebody else counts resets.
    resets: Option<Allowance>,
}

impl FrameLimits {
    /// The limits of a new connection, without that on resets.
    pub const fn new(now: Instant) -> Self {
        Self {
            received: Scanner::new(PREFACE_BYTES),
            sent: Scanner::new(0),
            control: Allowance::new(CONTROL_MAX, CONTROL_PER_S, now),
            resets: None,
        }
    }

    /// The same limits, and that on resets.
    #[must_use]
    pub const fn with_resets(self, now: Instant) -> Self {
        Self { resets: Some(Allowance::resets(now)), ..self }
    }

    /// Counts the frames in bytes that the client has sent.
    ///
    /// # Errors
    /// The client has exceeded a limit, and the connection must end.
    pub fn receive(&mut self, bytes: &[u8], now: Instant) -> Result<(), Flood> {
        let Self { received, control, resets, .. } = self;
        received.scan(bytes, |frame| {
            match (frame.kind, &mut *resets) {
                (HEADERS, _) => control.earn(EARNED_BY_REQUEST),
                (DATA, _) if frame.length > 0 || frame.flags & END_STREAM != 0 => {
                    control.earn(f64::from(frame.length) / BYTES_PER_EARNED);
                }
                // h2 limits them for each header list.
                (CONTINUATION, _) => {}
                (RST_STREAM, Some(resets)) => return resets.take(now).then_some(()).ok_or(Flood::Resets),
                _ => return control.take(now).then_some(()).ok_or(Flood::Control),
            }
            Ok(())
        })
    }

    /// Counts the frames in the first `count` bytes of these parts, which are sent to the client.
    pub fn send_vectored(&mut self, parts: &[IoSlice<'_>], count: usize) {
        let mut left = count;
        for part in parts {
            let taken = left.min(part.len());
            self.send(&part[..taken]);
            left -= taken;
        }
    }

    /// Counts the frames in bytes that are sent to the client.
    pub fn send(&mut self, bytes: &[u8]) {
        let Self { sent, control, .. } = self;
        let Ok(()) = sent.scan(bytes, |frame| {
            if frame.kind == DATA {
                control.earn(EARNED_BY_REPLY_FRAME + f64::from(frame.length) / BYTES_PER_EARNED);
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

    fn begun(now: Instant) -> FrameLimits {
        let mut limits = FrameLimits::new(now).with_resets(now);
        limits.receive(&[b'x'; PREFACE_BYTES], now).unwrap();
        limits
    }

    /// Frames that are let through, of so many that come at once; and the limit that the next frame exceeds.
    fn passed(limits: &mut FrameLimits, frame: &[u8], count: usize, now: Instant) -> (usize, Option<Flood>) {
        let failed = (0..count).find_map(|at| Some((at, limits.receive(frame, now).err()?)));
        failed.map_or((count, None), |(passed, flood)| (passed, Some(flood)))
    }

    #[test]
    fn frames_that_carry_nothing_are_limited() {
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
            let mut limits = begun(now);
            let frame = frame(kind, flags, payload);
            assert_eq!(passed(&mut limits, &frame, 5_000, now), (1_000, Some(Flood::Control)), "kind {kind}");
            let later = now + Duration::from_secs(3);
            let mut limits = begun(now);
            passed(&mut limits, &frame, 1_000, now);
            assert_eq!(passed(&mut limits, &frame, 5_000, later).0, 300, "kind {kind}");
        }
    }

    #[test]
    fn resets_have_a_limit_of_their_own() {
        let now = Instant::now();
        let mut limits = begun(now);
        let reset = frame(RST_STREAM, 0, &[0, 0, 0, 8]);
        assert_eq!(passed(&mut limits, &reset, 5_000, now), (500, Some(Flood::Resets)));
    }

    #[test]
    fn bodies_and_requests_are_free() {
        let now = Instant::now();
        let mut limits = begun(now);
        for kind in [DATA, HEADERS, CONTINUATION] {
            let passed = passed(&mut limits, &frame(kind, 0, &[0; 300]), 50_000, now);
            assert_eq!(passed, (50_000, None), "kind {kind}");
        }
        assert_eq!(passed(&mut limits, &frame(DATA, END_STREAM, &[]), 50_000, now), (50_000, None));
    }

    /// A gRPC client answers each small message with a PING and a WINDOW_UPDATE.
    #[test]
    fn what_replies_cause_is_allowed() {
        let now = Instant::now();
        let mut limits = begun(now);
        let caused = [frame(PING, 0, &[0; 8]), frame(WINDOW_UPDATE, 0, &[0, 0, 0, 1])].concat();
        for _ in 0..10_000 {
            limits.send(&frame(DATA, 0, &[0; 20]));
            limits.receive(&caused, now).unwrap();
        }
    }

    /// An answer to a PING is no reason for another.
    #[test]
    fn answers_to_control_frames_earn_nothing() {
        let now = Instant::now();
        let mut limits = begun(now);
        let ping = frame(PING, 0, &[0; 8]);
        let passed = (0..5_000)
            .take_while(|_| {
                limits.send(&frame(PING, 1, &[0; 8]));
                limits.receive(&ping, now).is_ok()
            })
            .count();
        assert_eq!(passed, 1_000);
    }

    #[test]
    fn frames_are_found_in_any_pieces() {
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
