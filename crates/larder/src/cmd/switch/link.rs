//! The link between a switch's master and a worker: messages in both directions, with files along.
//!
//! A socket of type SEQPACKET keeps messages apart; open files travel beside them (SCM_RIGHTS). What may be large is put into
//! a file in memory and sent as such. The worker has its end for stdin, so that nothing has to be said about numbers of
//! files. The end of the link is the end of the other process.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read as _, Seek as _, SeekFrom, Write as _};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use super::status::ReloadStatus;

/// Raised when messages change their meaning. A master and a worker of different binaries meet at an upgrade.
pub(crate) const PROTOCOL: u32 = 1;

/// Longest message, bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Most files with a message: what the kernel allows.
const FILES_MAX: usize = 253;
/// Largest file in memory that is read.
const BLOB_BYTES_MAX: u64 = 4 << 30;

/// The time on `CLOCK_MONOTONIC`, which all processes share; ns.
pub(super) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// What a worker is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "snake_case")]
pub(crate) enum ToWorker {
    /// Its beginning. Files: the config's text, the listeners, the admin interface's if it has one, and how the nodes
    /// stood if somebody served before.
    Start(Box<Start>),
    /// Says how the nodes stand ([`FromWorker::Told`]).
    Tell,
    /// Another is ready to serve: lets go of the forwarding plane and says what it has learned ([`FromWorker::Yielded`]).
    Yield,
    /// That one did not come up after all.
    Resume,
    /// Begins to serve. Files, if somebody served before: those of [`FromWorker::Yielded`].
    Go,
    /// Another serves: accepts no more, and ends once its clients have gone.
    Retire,
    /// Drains and ends.
    Drain,
    /// How the last reload went, and the questions that are answered by it.
    Status {
        /// For the admin interface.
        status: Box<ReloadStatus>,
        /// Numbers of [`FromWorker::Reload`].
        asks: Vec<u64>,
    },
}

/// What a worker begins with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    /// [`PROTOCOL`] of the master.
    pub(crate) protocol: u32,
    /// Names the config in errors.
    pub(crate) origin: String,
    /// When the first worker began, on `CLOCK_MONOTONIC`, ns: all count from then.
    pub(crate) since_ns: u64,
    /// Number of listeners.
    pub(crate) listeners: usize,
    /// Where the admin interface is, if there is one.
    pub(crate) admin: Option<SocketAddr>,
    /// Whether somebody served before.
    pub(crate) takes_over: bool,
    pub(crate) status: ReloadStatus,
}

/// What a worker says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "snake_case")]
pub(crate) enum FromWorker {
    /// It could serve, and waits for [`ToWorker::Go`].
    Prepared,
    /// It cannot serve, and ends.
    Failed { error: String, code: u8 },
    /// It serves.
    Ready,
    /// Files: how the nodes stand.
    Told,
    /// Files: how the nodes stand, what the policies have learned, which shares routes have.
    Yielded,
    /// The admin interface was asked to reload.
    Reload {
        ask: u64,
        /// The policies of routes that the admin interface has chosen, instead of those of the config.
        #[serde(default)]
        policies: BTreeMap<String, String>,
    },
}

/// One end.
#[derive(Debug)]
pub(crate) struct Link(UnixDatagram);

/// A message and its files.
pub(crate) type Packet<W> = (W, Vec<OwnedFd>);

/// Two ends; both are closed when another program is started.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

impl Link {
    /// Needs a runtime.
    pub(crate) fn new(end: OwnedFd) -> io::Result<Self> {
        UnixDatagram::from_std(end.into()).map(Self)
    }

    /// Sends a message, waiting for room.
    pub(crate) async fn send(&self, word: &impl Serialize, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let message = encode(word)?;
        self.0.async_io(Interest::WRITABLE, || send_bytes(self.0.as_fd(), &message, files)).await
    }

    /// Sends a message now.
    ///
    /// # Errors
    /// As the socket's; `WouldBlock` if the other end has let many pile up.
    pub(crate) fn send_now(&self, word: &impl Serialize) -> io::Result<()> {
        send_bytes(self.0.as_fd(), &encode(word)?, &[])
    }

    /// The next message; `None` once the other process has ended. May be dropped while it waits.
    pub(crate) async fn recv<W: DeserializeOwned>(&self) -> io::Result<Option<Packet<W>>> {
        self.0.async_io(Interest::READABLE, || recv_now(self.0.as_fd())).await
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn encode(word: &impl Serialize) -> io::Result<Vec<u8>> {
    let message = serde_json::to_vec(word)?;
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(io::Error::other(format!("a message of {} bytes is too long", message.len())));
    }
    Ok(message)
}

/// Sends a message on a bare end.
pub(crate) fn send_on(
    end: BorrowedFd<'_>,
    word: &impl Serialize,
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_bytes(end, &encode(word)?, files)
}

fn send_bytes(end: BorrowedFd<'_>, message: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    if files.len() > FILES_MAX {
        let what = format!("{} files at once are more than the kernel passes on ({FILES_MAX})", files.len());
        return Err(io::Error::other(what));
    }
    let rights = SendAncillaryMessage::ScmRights(files);
    let mut space = vec![MaybeUninit::uninit(); rights.size()];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        control.push(rights);
    }
    rustix::net::sendmsg(end, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next message on a bare end; `None` once the other process has ended.
///
/// # Errors
/// `WouldBlock` if there is none yet; `InvalidData` if it means nothing here, as one of another version may.
pub(crate) fn recv_now<W: DeserializeOwned>(end: BorrowedFd<'_>) -> io::Result<Option<Packet<W>>> {
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = match rustix::net::recvmsg(end, &mut [IoSliceMut::new(&mut message)], &mut control, flags) {
        // The other end went while messages of ours were unread.
        Err(rustix::io::Errno::CONNRESET) => return Ok(None),
        got => got?,
    };
    if got.bytes == 0 {
        return Ok(None);
    }
    let mut files = Vec::new();
    for rights in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = rights {
            files.extend(fds);
        }
    }
    let word = serde_json::from_slice(&message[..got.bytes]);
    Ok(Some((word.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?, files)))
}

/// Waits for the next message on a bare end.
pub(crate) fn recv_blocking<W: DeserializeOwned>(end: BorrowedFd<'_>) -> io::Result<Option<Packet<W>>> {
    use rustix::event::{PollFd, PollFlags, poll};
    loop {
        match recv_now(end) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                match poll(&mut [PollFd::new(&end, PollFlags::IN)], None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            got => return got,
        }
    }
}

/// Bytes as a file in memory, to be sent.
pub(crate) fn blob(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("larder", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// What a file in memory holds, from its beginning, whoever has read it before.
pub(crate) fn read_blob(file: OwnedFd) -> io::Result<Vec<u8>> {
    let mut file = File::from(file);
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.take(BLOB_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_apart_and_carry_files() {
        let (here, there) = pair().unwrap();
        let text = blob(b"[switch]").unwrap();
        send_on(here.as_fd(), &FromWorker::Told, &[text.as_fd(), here.as_fd()]).unwrap();
        send_on(here.as_fd(), &FromWorker::Reload { ask: 7, policies: BTreeMap::new() }, &[]).unwrap();
        let (word, mut files) = recv_now::<FromWorker>(there.as_fd()).unwrap().unwrap();
        assert!(matches!(word, FromWorker::Told) && files.len() == 2, "{word:?}");
        assert_eq!(read_blob(files.swap_remove(0)).unwrap(), b"[switch]");
        let (word, _) = recv_now::<FromWorker>(there.as_fd()).unwrap().unwrap();
        assert!(matches!(word, FromWorker::Reload { ask: 7, .. }), "{word:?}");
        assert_eq!(recv_now::<FromWorker>(there.as_fd()).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn a_word_of_another_version_is_an_error_and_the_end_is_told() {
        let (here, there) = pair().unwrap();
        send_on(here.as_fd(), &serde_json::json!({"word": "dance"}), &[]).unwrap();
        let error = recv_now::<FromWorker>(there.as_fd()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        drop(here);
        assert!(recv_blocking::<FromWorker>(there.as_fd()).unwrap().is_none());
    }
}
