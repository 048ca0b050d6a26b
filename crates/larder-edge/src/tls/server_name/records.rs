//! The first records of a client, processed before rustls reads them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// Length of a record's header: type, version and length (RFC 8446 section 5.1).
const RECORD_HEAD: usize = 5;
/// Maximum content of an unencrypted record (RFC 8446 section 5.1).
const CONTENT_MAX: usize = 1 << 14;
const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;
/// A ClientHello, a second one after a HelloRetryRequest, and a change_cipher_spec between them (RFC 8446 appendix
/// D.4).
const RECORDS_MAX: u8 = 3;
/// Number of bytes read from the socket at once.
const READ: usize = 4 * 1024;

/// Holds back a record until it is complete, and removes the port from the server name in it. Ends with the first
/// record that cannot be a ClientHello: later bytes pass unread. Holds at most one record and one read (20 KiB).
#[derive(Debug, Default)]
pub(crate) struct FirstRecords {
    held: Vec<u8>,
    /// Number of bytes of `held` that may be read.
    ready: usize,
    records: u8,
    ended: bool,
}

impl FirstRecords {
    /// Checks whether the socket can be read directly from now on.
    pub(crate) const fn is_over(&self) -> bool {
        self.ended && self.held.is_empty()
    }

    /// Like [`AsyncRead::poll_read`], from `tcp`.
    pub(crate) fn poll_read<T: AsyncRead + Unpin>(
        &mut self,
        tcp: &mut T,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.ready == 0 {
            let mut chunk = [0; READ];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut *tcp).poll_read(cx, &mut chunk))?;
            self.held.extend_from_slice(chunk.filled());
            if chunk.filled().is_empty() {
                self.end();
                break;
            }
            self.release();
        }
        let given = self.ready.min(buf.remaining());
        buf.put_slice(&self.held[..given]);
        self.held.drain(..given);
        self.ready -= given;
        Poll::Ready(Ok(()))
    }

    fn end(&mut self) {
        self.ended = true;
        self.ready = self.held.len();
    }

    /// Releases the complete records.
    fn release(&mut self) {
        loop {
            let record = &mut self.held[self.ready..];
            let [kind, _, _, high, low, content @ ..] = record else { return };
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            let may_be_hello = match *kind {
                HANDSHAKE => content.first().is_none_or(|&kind| kind == super::CLIENT_HELLO),
                kind => kind == CHANGE_CIPHER_SPEC,
            };
            if !may_be_hello || length > CONTENT_MAX || self.records == RECORDS_MAX {
                return self.end();
            }
            let Some(content) = content.get_mut(..length) else { return };
            if *kind == HANDSHAKE {
                super::hide_port(content);
            }
            self.records += 1;
            self.ready += RECORD_HEAD + length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{client_hello, entry};
    use super::*;
    use std::collections::VecDeque;
    use tokio::io::AsyncReadExt;

    fn record(kind: u8, content: &[u8]) -> Vec<u8> {
        let length = u16::try_from(content.len()).expect("short");
        [&[kind, 3, 1][..], &length.to_be_bytes(), content].concat()
    }

    /// A client's stream that arrives in pieces, and the records before it.
    struct Client {
        pieces: VecDeque<Vec<u8>>,
        first: Option<FirstRecords>,
    }

    impl AsyncRead for Client {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if let Some(mut first) = self.first.take() {
                let read = first.poll_read(&mut *self, cx, buf);
                self.first = (!first.is_over()).then_some(first);
                return read;
            }
            if let Some(piece) = self.pieces.front_mut() {
                let length = piece.len().min(buf.remaining());
                buf.put_slice(&piece[..length]);
                piece.drain(..length);
                self.pieces.retain(|piece| !piece.is_empty());
            }
            Poll::Ready(Ok(()))
        }
    }

    /// Reads `sent`, which arrives in pieces of `piece` bytes.
    async fn read(sent: &[u8], piece: usize) -> Vec<u8> {
        let pieces = sent.chunks(piece).map(<[u8]>::to_vec).collect();
        let mut client = Client { pieces, first: Some(FirstRecords::default()) };
        let mut read = Vec::new();
        client.read_to_end(&mut read).await.expect("reads");
        read
    }

    #[tokio::test]
    async fn only_client_hellos_are_rewritten() {
        let hello = client_hello(&entry(b"a.test:8443"));
        let mut hidden = hello.clone();
        super::super::hide_port(&mut hidden);
        assert_ne!(hidden, hello);
        let change = record(CHANGE_CIPHER_SPEC, &[1]);
        let data = record(23, &[5; 9_000]);
        let stream = |hello: &[u8]| {
            let hello = record(HANDSHAKE, hello);
            [&hello[..], &change, &hello, &data, &record(HANDSHAKE, &client_hello(&entry(b"b.test:1")))]
                .concat()
        };
        for piece in [1, 3, 100, 5_000, 100_000] {
            assert_eq!(read(&stream(&hello), piece).await, stream(&hidden), "{piece}");
        }
    }

    #[tokio::test]
    async fn other_or_truncated_streams_pass_unchanged() {
        let whole = record(HANDSHAKE, &client_hello(&entry(b"a.test:8443")));
        let long = [&[HANDSHAKE, 3, 1, 0xff, 0xff, 1][..], &[0; 70_000]].concat();
        let other = record(HANDSHAKE, &[16, 0, 0, 0]);
        for sent in
            [&b"GET / HTTP/1.1\r\n\r\n"[..], &whole[..whole.len() - 1], &whole[..3], &long, &other, b""]
        {
            assert_eq!(read(sent, 1_000).await, sent);
        }
    }

    #[tokio::test]
    async fn number_of_records_is_limited() {
        let changes = record(CHANGE_CIPHER_SPEC, &[1]).repeat(usize::from(RECORDS_MAX));
        let hello = record(HANDSHAKE, &client_hello(&entry(b"a.test:8443")));
        let sent = [changes, hello].concat();
        assert_eq!(read(&sent, 7).await, sent);
    }
}
