//! The first bytes on a link: both sides state their identity, and the initiator states the link's kind.
//!
//! ```text
//! kind (1)  incarnation (8)  length (1)  from  length (1)  to      initiator
//! reply (1)  incarnation (8)                                       responder
//! ```

use crate::member::PeerId;
use crate::name::Name;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Traffic that a link carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkKind {
    /// Forwarded requests: HTTP/2.
    Data = 1,
    /// Messages.
    Control = 2,
}

/// The message of the initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) kind: LinkKind,
    pub(crate) from: PeerId,
    /// The member that the initiator means to reach.
    pub(crate) to: Name,
}

/// The reply of the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelloReply {
    Welcome = 0,
    /// The responder has another name.
    WrongName = 1,
    /// The responder is leaving.
    Leaving = 2,
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "invalid hello")
}

async fn read_name(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Name> {
    let mut text = vec![0; usize::from(io.read_u8().await?)];
    io.read_exact(&mut text).await?;
    String::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(invalid)
}

impl Hello {
    pub(crate) async fn send(&self, io: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let mut bytes = vec![self.kind as u8];
        bytes.extend_from_slice(&self.from.incarnation.to_be_bytes());
        for name in [&self.from.name, &self.to] {
            // Cannot fail: `NAME_BYTES_MAX` is below 256.
            bytes.push(u8::try_from(name.as_str().len()).unwrap_or(u8::MAX));
            bytes.extend_from_slice(name.as_str().as_bytes());
        }
        io.write_all(&bytes).await?;
        io.flush().await
    }

    pub(crate) async fn receive(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let kind = match io.read_u8().await? {
            1 => LinkKind::Data,
            2 => LinkKind::Control,
            _ => return Err(invalid()),
        };
        let incarnation = io.read_u64().await?;
        let from = PeerId { name: read_name(io).await?, incarnation };
        Ok(Self { kind, from, to: read_name(io).await? })
    }
}

impl HelloReply {
    pub(crate) async fn send(self, io: &mut (impl AsyncWrite + Unpin), incarnation: u64) -> io::Result<()> {
        let mut bytes = [self as u8; 9];
        bytes[1..].copy_from_slice(&incarnation.to_be_bytes());
        io.write_all(&bytes).await?;
        io.flush().await
    }

    pub(crate) async fn receive(io: &mut (impl AsyncRead + Unpin)) -> io::Result<(Self, u64)> {
        let answer = match io.read_u8().await? {
            0 => Self::Welcome,
            1 => Self::WrongName,
            2 => Self::Leaving,
            _ => return Err(invalid()),
        };
        Ok((answer, io.read_u64().await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_survive_a_round_trip() {
        let name = |text: &str| text.parse::<Name>().expect("a name");
        let from = PeerId { name: name("a"), incarnation: u64::MAX - 1 };
        for kind in [LinkKind::Data, LinkKind::Control] {
            let hello = Hello { kind, from: from.clone(), to: name(&"b".repeat(100)) };
            let mut bytes = Vec::new();
            hello.send(&mut bytes).await.expect("written");
            assert_eq!(Hello::receive(&mut &bytes[..]).await.expect("read"), hello);
            for cut in 0..bytes.len() {
                assert!(Hello::receive(&mut &bytes[..cut]).await.is_err());
            }
            bytes[0] = 7;
            assert!(Hello::receive(&mut &bytes[..]).await.is_err());
        }
        for answer in [HelloReply::Welcome, HelloReply::WrongName, HelloReply::Leaving] {
            let mut bytes = Vec::new();
            answer.send(&mut bytes, 7).await.expect("written");
            assert_eq!(HelloReply::receive(&mut &bytes[..]).await.expect("read"), (answer, 7));
        }
    }
}
