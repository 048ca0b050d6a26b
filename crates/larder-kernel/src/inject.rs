//! Injects packets into this host's stack, as if an interface had received them.
//!
//! A [`Tap`] is a TAP device with one program (`bpf/inject.bpf.c`), which redirects everything written to the device to
//! the ingress of the real interface. A frame therefore passes everything that a received frame passes: the programs on
//! the interface (the guard), `rp_filter`, netfilter and the routing decision, all with the real interface as its
//! input. No rules are needed for the TAP device, which has no address. Frames written by one thread arrive in order.
//!
//! The device is called `larder<number>`, has IPv6 turned off, and disappears with the [`Tap`] or its process. What the
//! host itself sends through it is never read; after 500 frames the kernel drops them.
//!
//! Needs `CAP_NET_ADMIN`, `CAP_BPF` and `/dev/net/tun`. Kernel: drivers/net/tun.c, Documentation/networking/tuntap.rst.

mod tun;

use crate::frame::complete_checksum;
use crate::guard::attach::Attachment;
use crate::guard::{GuardError, interface_index};
use crate::plane::syscalls::{Hook, interface_mac};
use libbpf_rs::{Object, ObjectBuilder};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;

static INJECT: &[u8] = include_bytes!("../bpf/prebuilt/inject.bpf.o");

const ETHERNET_BYTES: usize = 14;
/// Maximum length of an IP packet. Bytes.
const PACKET_BYTES_MAX: usize = 65_535;
/// Source MAC address of frames made here: locally administered and unused.
const DUMMY_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0];

/// A device that injects packets into the stack.
#[derive(Debug)]
pub struct Tap {
    file: File,
    name: String,
    mac: [u8; 6],
    attached: Attachment,
    // Keeps the attached program alive.
    _object: Object,
}

impl Tap {
    /// Creates a device whose packets are received by `interface`, in this thread's network namespace.
    ///
    /// # Errors
    ///
    /// If there is no such interface or no `/dev/net/tun`, or the process lacks the rights.
    pub fn open(interface: &str) -> Result<Self, GuardError> {
        let ifindex = interface_index(interface)?;
        let wrong = |source| GuardError::Interface { interface: interface.to_owned(), source };
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).map_err(wrong)?;
        let mac = interface_mac(socket.as_fd(), interface).map_err(wrong)?;
        let (file, name) = tun::make().map_err(GuardError::io("make a TAP device"))?;
        // Fails on a kernel without IPv6, where it is not needed.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        let object = load(ifindex)?;
        let attached = {
            let program =
                object.progs_mut().next().ok_or(GuardError::Config("the object lacks a program"))?;
            Attachment::hold(program.as_fd(), interface_index(&name)?, Hook::TcIngress)?
        };
        // Brought up only now, so that nothing written can reach the stack through the device itself.
        tun::set_up(socket.as_fd(), &name).map_err(GuardError::io("bring a TAP device up"))?;
        Ok(Self { file, name, mac, attached, _object: object })
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes the stack receive an Ethernet frame. Its destination is set to the interface's MAC address. A partial TCP
    /// checksum is completed; any other is left as it is, and the stack drops wrong ones.
    ///
    /// # Errors
    ///
    /// A frame of 14 bytes or less, or more than 65,549; or an error of the kernel.
    pub fn write_frame(&self, frame: &[u8]) -> io::Result<()> {
        if !(ETHERNET_BYTES + 1..=ETHERNET_BYTES + PACKET_BYTES_MAX).contains(&frame.len()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut frame = frame.to_vec();
        frame[..6].copy_from_slice(&self.mac);
        complete_checksum(&mut frame);
        let written = (&self.file).write(&frame)?;
        if written == frame.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Makes the stack receive an IP packet.
    ///
    /// # Errors
    ///
    /// If it is neither IPv4 nor IPv6, and the errors of [`Self::write_frame`].
    pub fn write_packet(&self, packet: &[u8]) -> io::Result<()> {
        let protocol: [u8; 2] = match packet.first().map(|byte| byte >> 4) {
            Some(4) => [0x08, 0x00],
            Some(6) => [0x86, 0xdd],
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        self.write_frame(&[&self.mac[..], &DUMMY_MAC, &protocol, packet].concat())
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // The device takes its filters along. This defines the order: the program is detached before the device
        // disappears.
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
