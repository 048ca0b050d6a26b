//! What both sides of a link say first: who they are, and what the link is for.
//!
//! ```text
//! kind (1)  incarnation (8)  length (1)  from  length (1)  to      the side that has connected
//! answer (1)  incarnation (8)                                      the side that has accepted
//! ```

use crate::member::Peer;
use crate::name::Name;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// What a link carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Forwarded requests: HTTP/2.
    Data = 1,
    /// Messages.
    Control = 2,
}

/// Said by the side that has connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) kind: Kind,
    pub(crate) from: Peer,
    /// Whom it means to reach.
    pub(crate) to: Name,
}

/// What the side that has accepted makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Welcome = 0,
    /// It has another name.
    Another = 1,
    /// It is leaving.
    Leaving = 2,
}

fn foreign() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a link begins with what it could not")
}

async fn name(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Name> {
    let mut text = vec![0; usize::from(io.read_u8().await?)];
    io.read_exact(&mut text).await?;
    String::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(foreign)
}

impl Hello {
    pub(crate) async fn send(&self, io: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let mut bytes = vec![self.kind as u8];
        bytes.extend_from_slice(&self.from.incarnation.to_be_bytes());
        for name in [&self.from.name, &self.to] {
            // A name has at most 100 bytes.
            bytes.push(u8::try_from(name.as_str().len()).unwrap_or(u8::MAX));
            bytes.extend_from_slice(name.as_str().as_bytes());
        }
        io.write_all(&bytes).await?;
        io.flush().await
    }

    pub(crate) async fn receive(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let kind = match io.read_u8().await? {
            1 => Kind::Data,
            2 => Kind::Control,
            _ => return Err(foreign()),
        };
        let incarnation = io.read_u64().await?;
        let from = Peer { name: name(io).await?, incarnation };
        Ok(Self { kind, from, to: name(io).await? })
    }
}

impl Answer {
    pub(crate) async fn send(self, io: &mut (impl AsyncWrite + Unpin), incarnation: u64) -> io::Result<()> {
        let mut bytes = [self as u8; 9];
        bytes[1..].copy_from_slice(&incarnation.to_be_bytes());
        io.write_all(&bytes).await?;
        io.flush().await
    }

    pub(crate) async fn receive(io: &mut (impl AsyncRead + Unpin)) -> io::Result<(Self, u64)> {
        let answer = match io.read_u8().await? {
            0 => Self::Welcome,
            1 => Self::Another,
            2 => Self::Leaving,
            _ => return Err(foreign()),
        };
        Ok((answer, io.read_u64().await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_said_is_heard() {
        let name = |text: &str| text.parse::<Name>().expect("a name");
        let from = Peer { name: name("a"), incarnation: u64::MAX - 1 };
        for kind in [Kind::Data, Kind::Control] {
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
        for answer in [Answer::Welcome, Answer::Another, Answer::Leaving] {
            let mut bytes = Vec::new();
            answer.send(&mut bytes, 7).await.expect("written");
            assert_eq!(Answer::receive(&mut &bytes[..]).await.expect("read"), (answer, 7));
        }
    }
}
