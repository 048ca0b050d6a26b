//! Packets into this host's own stack, as if they had come by an interface.
//!
//! A [`Tap`] is a TAP device of ours with one program (`bpf/inject.bpf.c`) that passes all that is written to it on to
//! the way in of the real interface. So a frame goes through what any received frame goes through: the programs on the
//! interface (the guard), `rp_filter`, netfilter, the routing decision, all with the real interface as where it came
//! by; nothing has to be allowed for the TAP device, which has no address. Frames written by one thread arrive in
//! order.
//!
//! The device is called `larder<number>`, has IPv6 off, and goes with the [`Tap`] or its process. What the host itself
//! sends by it is never read: after 500 frames the kernel drops them.
//!
//! Needs `CAP_NET_ADMIN`, `CAP_BPF` and `/dev/net/tun`. Kernel: drivers/net/tun.c, Documentation/networking/tuntap.rst.

mod checksum;
mod tun;

use crate::guard::attach::Attached;
use crate::guard::{GuardError, interface_index};
use crate::plane::syscalls::{Hook, interface_mac};
use libbpf_rs::{Object, ObjectBuilder};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;

static INJECT: &[u8] = include_bytes!("../bpf/prebuilt/inject.bpf.o");

const ETHERNET_BYTES: usize = 14;
/// The largest IP packet.
const PACKET_BYTES_MAX: usize = 65_535;
/// Source address of frames made here: locally administered, nobody's.
const NOBODY: [u8; 6] = [0x02, 0, 0, 0, 0, 0];

/// Writes packets into the stack.
#[derive(Debug)]
pub struct Tap {
    file: File,
    name: String,
    mac: [u8; 6],
    attached: Attached,
    // Its program is what `attached` holds.
    _object: Object,
}

impl Tap {
    /// Makes a device whose packets are received by `interface`, in this thread's network namespace.
    ///
    /// # Errors
    /// [`GuardError`]: no such interface, no `/dev/net/tun`, no rights.
    pub fn open(interface: &str) -> Result<Self, GuardError> {
        let ifindex = interface_index(interface)?;
        let wrong = |source| GuardError::Interface { interface: interface.to_owned(), source };
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).map_err(wrong)?;
        let mac = interface_mac(socket.as_fd(), interface).map_err(wrong)?;
        let (file, name) = tun::make().map_err(GuardError::io("make a TAP device"))?;
        // Without IPv6 there is nothing to turn off.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        let object = load(ifindex)?;
        let attached = {
            let program =
                object.progs_mut().next().ok_or(GuardError::Config("the object lacks a program"))?;
            Attached::hold(program.as_fd(), interface_index(&name)?, Hook::TcIngress)?
        };
        // Up only now, so that nothing written ever reaches the stack by the device itself.
        tun::up(socket.as_fd(), &name).map_err(GuardError::io("bring a TAP device up"))?;
        Ok(Self { file, name, mac, attached, _object: object })
    }

    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Has the stack receive an Ethernet frame. Its destination becomes the interface's address. A TCP checksum that
    /// was left to the interface to complete is completed; any other is left as it is, and wrong ones are dropped by
    /// the stack.
    ///
    /// # Errors
    /// A frame of 14 bytes or less, or more than 65,549; what the kernel says.
    pub fn write_frame(&self, frame: &[u8]) -> io::Result<()> {
        if !(ETHERNET_BYTES + 1..=ETHERNET_BYTES + PACKET_BYTES_MAX).contains(&frame.len()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut frame = frame.to_vec();
        frame[..6].copy_from_slice(&self.mac);
        checksum::complete(&mut frame);
        let written = (&self.file).write(&frame)?;
        if written == frame.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Has the stack receive an IP packet.
    ///
    /// # Errors
    /// Neither IPv4 nor IPv6; as [`Self::write_frame`].
    pub fn write_packet(&self, packet: &[u8]) -> io::Result<()> {
        let protocol: [u8; 2] = match packet.first().map(|byte| byte >> 4) {
            Some(4) => [0x08, 0x00],
            Some(6) => [0x86, 0xdd],
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        self.write_frame(&[&self.mac[..], &NOBODY, &protocol, packet].concat())
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // The device takes its filters along; this is for the order: first deaf, then gone.
        self.attached.remove(self.file.as_fd());
    }
}

fn load(ifindex: u32) -> Result<Object, GuardError> {
    let mut open = ObjectBuilder::default()
        .open_memory(INJECT)
        .map_err(GuardError::bpf("read the injector's program"))?;
    let mut constants = open
        .maps_mut()
        .find(|map| map.name().as_encoded_bytes().ends_with(b"rodata"))
        .ok_or(GuardError::Config("the object lacks its constants"))?;
    constants.set_initial_value(&ifindex.to_ne_bytes()).map_err(GuardError::bpf("set the interface"))?;
    open.load().map_err(GuardError::bpf("load the injector's program"))
}
