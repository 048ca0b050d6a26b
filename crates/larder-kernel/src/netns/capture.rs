//! Capture of the frames in a namespace, each once: on ingress.

#![expect(unsafe_code, reason = "the option that leaves out sent frames has no safe wrapper")]

use super::{Namespace, NetnsError};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Maximum length of a captured frame; longer ones are truncated. Bytes.
pub const FRAME_BYTES_MAX: usize = 2_048;
/// Size of the socket's buffer. If it is full, the kernel drops frames. Bytes.
const BUFFER_BYTES: usize = 4 << 20;

/// A received frame, starting with its Ethernet header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedFrame {
    /// Time of the read, since the capture was opened.
    pub at: Duration,
    /// At most [`FRAME_BYTES_MAX`] of its bytes.
    pub frame: Vec<u8>,
}

/// A raw socket that receives a copy of every frame that enters by any interface of one network namespace. On a hub,
/// this is each frame between hosts once, at the port of the sending host.
#[derive(Debug)]
pub struct Capture {
    socket: Socket,
    opened: Instant,
}

impl Capture {
    /// Opens a capture in a namespace.
    ///
    /// # Errors
    ///
    /// Without `CAP_NET_RAW`.
    pub fn open(namespace: &Namespace) -> Result<Self, NetnsError> {
        let socket = namespace.run(Self::socket)?;
        let socket =
            socket.map_err(|e| NetnsError::io(format!("opening a raw socket in {}", namespace.name()), e))?;
        Ok(Self { socket, opened: Instant::now() })
    }

    fn socket() -> io::Result<Socket> {
        let all = Protocol::from(i32::from((libc::ETH_P_ALL as u16).to_be()));
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(all))?;
        let on: libc::c_int = 1;
        // SAFETY: the value is an int that lives through the call, and its size is given.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_IGNORE_OUTGOING,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if set != 0 {
            return Err(io::Error::last_os_error());
        }
        socket.set_recv_buffer_size(BUFFER_BYTES)?;
        Ok(socket)
    }

    /// Reads frames until none arrives for `quiet`, or `max` have arrived.
    ///
    /// # Errors
    ///
    /// If the socket fails.
    pub fn read(&mut self, max: usize, quiet: Duration) -> io::Result<Vec<CapturedFrame>> {
        self.socket.set_read_timeout(Some(quiet.max(Duration::from_millis(1))))?;
        let mut frames = Vec::new();
        let mut bytes = [0; FRAME_BYTES_MAX];
        while frames.len() < max {
            match self.socket.read(&mut bytes) {
                Ok(length) => {
                    frames.push(CapturedFrame { at: self.opened.elapsed(), frame: bytes[..length].to_vec() });
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::TcpFrame;
    use crate::netns::{INTERFACE, Topology, TopologySpec, Wire};
    use larder_testkit::or_skip;

    /// A frame from one host to another is captured once at the hub, although it passes two ports.
    #[test]
    fn each_frame_is_captured_once() {
        let spec = TopologySpec { nodes: 1, ..TopologySpec::default() };
        let Some(topology) = or_skip(Topology::new(&spec)) else { return };
        let (from, to) = (topology.client(), &topology.nodes[0]);
        let mut capture = Capture::open(&topology.hub).expect("opened");
        let wire = Wire::open(&from.namespace).expect("opened");
        let index = from.namespace.ifindex(INTERFACE).expect("there");
        let frames: Vec<Vec<u8>> = (0..5)
            .map(|seq| {
                // Without any flag no host answers.
                let empty = TcpFrame::new((from.v4, 999).into(), (to.v4, 998).into(), 0);
                let frame = TcpFrame { macs: [from.mac, to.mac], seq, payload: b"seen", ..empty };
                frame.bytes().expect("a frame")
            })
            .collect();
        for frame in &frames {
            wire.send(index, frame).expect("sent");
        }
        let seen = capture.read(100, Duration::from_millis(300)).expect("read");
        let ours: Vec<&Vec<u8>> =
            seen.iter().map(|c| &c.frame).filter(|frame| frame.ends_with(b"seen")).collect();
        assert_eq!(ours, frames.iter().collect::<Vec<_>>());
        assert!(seen.windows(2).all(|pair| pair[0].at <= pair[1].at));
        let few = capture.read(1, Duration::from_millis(1)).expect("read");
        assert!(few.len() <= 1);
    }
}
