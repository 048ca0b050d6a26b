//! The link between a switch's master and a worker, which carries messages and files in both directions.
//!
//! The link is a SEQPACKET socket pair, which preserves message boundaries. Open files are passed as
//! SCM_RIGHTS. Large data is passed as a memory file. The worker's end is its stdin, so that no file numbers
//! must be passed. The link closes when the other process ends.

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

/// Version of the messages, raised with each incompatible change. Different binaries communicate during an
/// upgrade.
pub(crate) const PROTOCOL: u32 = 1;

/// Longest message, bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Most files of one message, which is the kernel's limit.
const FILES_MAX: usize = 253;
/// Largest memory file that is read, bytes.
const BLOB_BYTES_MAX: u64 = 4 << 30;

/// Returns the time of `CLOCK_MONOTONIC`, which all processes share, in ns.
pub(super) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// A message from the master to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "snake_case")]
pub(crate) enum ToWorker {
    /// The first message. Its files are the config's text, the listeners, and the listener of the admin
    /// interface if there is one. A worker that replaces another one also gets the node states.
    Start(Box<WorkerStart>),
    /// Requests the node states ([`FromWorker::NodeStates`]).
    #[serde(rename = "tell")]
    SendNodeStates,
    /// Requests the release of the forwarding plane, and the state for the new worker
    /// ([`FromWorker::HandedOver`]).
    Yield,
    /// Resumes serving, because the new worker could not start.
    Resume,
    /// Starts serving. If there was a previous worker, its files are those of [`FromWorker::HandedOver`].
    #[serde(rename = "go")]
    Serve,
    /// Stops accepting, because another worker serves. The worker ends after its last connection.
    Retire,
    /// Drains and ends.
    Drain,
    /// Result of the last reload, with the requests that it answers.
    Status {
        /// For the admin interface.
        status: Box<ReloadStatus>,
        /// Numbers of the [`FromWorker::Reload`] requests.
        #[serde(rename = "asks")]
        requests: Vec<u64>,
    },
}

/// Settings of a new worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WorkerStart {
    /// [`PROTOCOL`] of the master.
    pub(crate) protocol: u32,
    /// Name of the config in errors.
    pub(crate) origin: String,
    /// Time of the first worker's start on `CLOCK_MONOTONIC`, ns. All uptimes count from this time.
    pub(crate) since_ns: u64,
    /// Number of listeners.
    pub(crate) listeners: usize,
    /// Address of the admin interface, if there is one.
    pub(crate) admin: Option<SocketAddr>,
    /// Whether the worker replaces another one.
    pub(crate) takes_over: bool,
    pub(crate) status: ReloadStatus,
}

/// A message from a worker to the master.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "snake_case")]
pub(crate) enum FromWorker {
    /// The worker is ready to serve, and waits for [`ToWorker::Serve`].
    Prepared,
    /// The worker cannot serve, and ends.
    Failed { error: String, code: u8 },
    /// The worker serves.
    Ready,
    /// Answer to [`ToWorker::SendNodeStates`]. Its file contains the node states.
    #[serde(rename = "told")]
    NodeStates,
    /// Answer to [`ToWorker::Yield`]. Its files contain the node states, the dispatcher's snapshot, and the
    /// shares of routes.
    #[serde(rename = "yielded")]
    HandedOver,
    /// The admin interface requests a reload.
    Reload {
        #[serde(rename = "ask")]
        request: u64,
        /// Policies of routes that the operator has chosen instead of the configured ones.
        #[serde(default)]
        policies: BTreeMap<String, String>,
    },
}

/// One end of the link.
#[derive(Debug)]
pub(crate) struct Link(UnixDatagram);

/// A message with its files.
pub(crate) type Packet<W> = (W, Vec<OwnedFd>);

/// Creates the two ends. Both are closed on exec.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

impl Link {
    /// Creates the link from one end. Needs a runtime.
    pub(crate) fn new(end: OwnedFd) -> io::Result<Self> {
        UnixDatagram::from_std(end.into()).map(Self)
    }

    /// Sends a message, and waits for buffer space.
    pub(crate) async fn send(&self, message: &impl Serialize, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let message = encode(message)?;
        self.0.async_io(Interest::WRITABLE, || send_bytes(self.0.as_fd(), &message, files)).await
    }

    /// Sends a message without waiting.
    ///
    /// # Errors
    /// Returns the socket's error, or `WouldBlock` if the buffer is full.
    pub(crate) fn send_now(&self, message: &impl Serialize) -> io::Result<()> {
        send_bytes(self.0.as_fd(), &encode(message)?, &[])
    }

    /// Receives the next message; `None` if the other process has ended. The future is cancel-safe.
    pub(crate) async fn recv<W: DeserializeOwned>(&self) -> io::Result<Option<Packet<W>>> {
        self.0.async_io(Interest::READABLE, || recv_now(self.0.as_fd())).await
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let message = serde_json::to_vec(message)?;
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(io::Error::other(format!("a message of {} bytes is too long", message.len())));
    }
    Ok(message)
}

/// Sends a message over a socket without a runtime.
pub(crate) fn send_on(
    end: BorrowedFd<'_>,
    message: &impl Serialize,
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_bytes(end, &encode(message)?, files)
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

/// Receives the next message over a socket without a runtime; `None` if the other process has ended.
///
/// # Errors
/// Returns `WouldBlock` if there is no message. Returns `InvalidData` if the message is unknown, as from
/// another version.
pub(crate) fn recv_now<W: DeserializeOwned>(end: BorrowedFd<'_>) -> io::Result<Option<Packet<W>>> {
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = match rustix::net::recvmsg(end, &mut [IoSliceMut::new(&mut message)], &mut control, flags) {
        // The other process ended before it read all messages.
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
    let message = serde_json::from_slice(&message[..got.bytes]);
    Ok(Some((message.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?, files)))
}

/// Waits for the next message over a socket without a runtime.
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

/// Writes bytes to a new memory file.
pub(crate) fn memory_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("larder", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// Reads a memory file from its beginning.
pub(crate) fn read_memory_file(file: OwnedFd) -> io::Result<Vec<u8>> {
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
    fn message_boundaries_are_preserved_and_files_are_passed() {
        let (here, there) = socket_pair().unwrap();
        let text = memory_file(b"[switch]").unwrap();
        send_on(here.as_fd(), &FromWorker::NodeStates, &[text.as_fd(), here.as_fd()]).unwrap();
        send_on(here.as_fd(), &FromWorker::Reload { request: 7, policies: BTreeMap::new() }, &[]).unwrap();
        let (message, mut files) = recv_now::<FromWorker>(there.as_fd()).unwrap().unwrap();
        assert!(matches!(message, FromWorker::NodeStates) && files.len() == 2, "{message:?}");
        assert_eq!(read_memory_file(files.swap_remove(0)).unwrap(), b"[switch]");
        let (message, _) = recv_now::<FromWorker>(there.as_fd()).unwrap().unwrap();
        assert!(matches!(message, FromWorker::Reload { request: 7, .. }), "{message:?}");
        assert_eq!(recv_now::<FromWorker>(there.as_fd()).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn an_unknown_message_is_an_error_and_the_end_is_detected() {
        let (here, there) = socket_pair().unwrap();
        send_on(here.as_fd(), &serde_json::json!({"word": "dance"}), &[]).unwrap();
        let error = recv_now::<FromWorker>(there.as_fd()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        drop(here);
        assert!(recv_blocking::<FromWorker>(there.as_fd()).unwrap().is_none());
    }
}
