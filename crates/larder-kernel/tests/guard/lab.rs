//! A client, a node, and between them a switch that is a thread of the test. It answers SYNs with cookies and forwards
//! everything else, wrapped or held back as the test says.

use crate::frame::{ACK, Encapsulation, FIN, SYN, Segment, encapsulate};
use crate::wire::{Wire, wait};
use larder_kernel::netns::{Namespace, NamespaceThread, veth};
use larder_kernel::{CookieKey, SynAckCookie, SynOptions};
use larder_testkit::or_skip;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub(crate) const KEY: CookieKey = CookieKey([0x0123_4567_89ab_cdef, 0x1122_3344_5566_7788]);
pub(crate) const OLD_KEY: CookieKey = CookieKey([0x2222, 0x3333]);
pub(crate) const NO_KEY: CookieKey = CookieKey([0, 0]);

pub(crate) const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(crate) const FRONT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 3];
pub(crate) const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
/// The interface of client and node.
pub(crate) const INTERFACE: &str = "eth0";

/// Timeout of every wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn vip(v6: bool) -> SocketAddr {
    if v6 { "[fd09::64]:80" } else { "10.9.0.100:80" }.parse().expect("an address")
}

pub(crate) fn address(v6: bool, host: u8) -> IpAddr {
    if v6 { format!("fd09::{host:x}") } else { format!("10.9.0.{host}") }.parse().expect("an address")
}

/// Behaviour of the switch; the test may change it at any time.
pub(crate) struct LabSettings {
    /// Key of the cookies.
    pub(crate) key: CookieKey,
    /// Encapsulation of packets to the node, and the outer addresses.
    pub(crate) encapsulation: Option<(Encapsulation, IpAddr, IpAddr)>,
    /// Packets of the client are not forwarded.
    pub(crate) deaf: bool,
    /// Packets of the node are not forwarded.
    pub(crate) mute: bool,
    /// The last packets of handshakes are forwarded too.
    pub(crate) pass_handshakes: bool,
    /// SYNs are forwarded instead of answered.
    pub(crate) pass_syns: bool,
    /// Segments sent to the node, unwrapped, and segments received from it.
    pub(crate) to_node: Vec<Segment>,
    pub(crate) from_node: Vec<Segment>,
    /// Segments that were not forwarded because of `deaf`.
    pub(crate) lost: Vec<Segment>,
    isns: HashMap<SocketAddr, (u32, u32)>,
    inject: Vec<Vec<u8>>,
}

pub(crate) struct Lab {
    settings: Arc<Mutex<LabSettings>>,
    stop: Arc<AtomicBool>,
    front: Option<NamespaceThread<()>>,
    pub(crate) client: Namespace,
    pub(crate) node: Namespace,
    _middle: Namespace,
}

impl Lab {
    /// Returns `None` if this is not possible here; the reason is printed.
    pub(crate) fn new() -> Option<Self> {
        let client = or_skip(Namespace::new("client"))?;
        let node = or_skip(Namespace::new("node"))?;
        let middle = or_skip(Namespace::new("front"))?;
        veth((&client, INTERFACE), (&middle, "wc")).expect("a wire");
        veth((&node, INTERFACE), (&middle, "wn")).expect("a wire");
        for (host, mac, number) in [(&client, "02:00:00:00:00:02", 2), (&node, "02:00:00:00:00:11", 17)] {
            // Later frames are made from captured ones, so the hosts compute checksums themselves.
            host.offloads(INTERFACE, &["tx", "off", "tso", "off", "gso", "off", "gro", "on"])
                .expect("ethtool");
            host.ip(&format!(
                "link set {INTERFACE} address {mac}\nlink set {INTERFACE} up\n\
                 addr add 10.9.0.{number}/24 dev {INTERFACE}\naddr add fd09::{number:x}/64 dev {INTERFACE} nodad"
            ))
            .expect("addresses");
        }
        // Room for outer headers.
        node.ip(&format!("link set {INTERFACE} mtu 2000")).expect("set");
        middle.ip("link set wn mtu 2000\nlink set wc up\nlink set wn up").expect("up");
        for wire in ["wc", "wn"] {
            // The node receives by NAPI, which merges segments, only if the sender cannot send long ones.
            middle.offloads(wire, &["gro", "off", "tso", "off"]).expect("ethtool");
        }
        node.ip("addr add 10.9.0.100/32 dev lo\naddr add fd09::64/128 dev lo nodad")
            .expect("the service address");
        let neighbour = |on: &Namespace, of: &str, mac: &str| {
            on.ip(&format!("neigh replace {of} lladdr {mac} dev {INTERFACE} nud permanent"))
                .expect("a neighbour");
        };
        for of in ["10.9.0.100", "fd09::64"] {
            neighbour(&client, of, "02:00:00:00:00:03");
        }
        for of in ["10.9.0.2", "fd09::2"] {
            neighbour(&node, of, "02:00:00:00:00:02");
        }
        let settings = Arc::new(Mutex::new(LabSettings {
            key: KEY,
            encapsulation: None,
            deaf: false,
            mute: false,
            pass_handshakes: false,
            pass_syns: false,
            to_node: Vec::new(),
            from_node: Vec::new(),
            lost: Vec::new(),
            isns: HashMap::new(),
            inject: Vec::new(),
        }));
        let stop = Arc::new(AtomicBool::new(false));
        let (c, n) = (middle.ifindex("wc").expect("there"), middle.ifindex("wn").expect("there"));
        let (theirs, until) = (Arc::clone(&settings), Arc::clone(&stop));
        let front = middle.thread(move || run_switch(c, n, &theirs, &until)).expect("a switch");
        Some(Self { settings, stop, front: Some(front), client, node, _middle: middle })
    }

    pub(crate) fn settings(&self) -> MutexGuard<'_, LabSettings> {
        self.settings.lock().expect("the switch is running")
    }

    /// Sends a segment to the node.
    pub(crate) fn inject(&self, segment: &Segment) {
        self.inject_all(std::slice::from_ref(segment));
    }

    /// Sends a segment on the node's link, but to another host's MAC address.
    pub(crate) fn inject_for_another(&self, segment: &Segment) {
        let frame = segment.frame([2, 0, 0, 0, 0, 0x12], FRONT_MAC);
        self.settings().inject.push(frame);
    }

    /// Sends an IP packet to the node.
    pub(crate) fn inject_packet(&self, packet: &[u8]) {
        let protocol: [u8; 2] = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
        let mut settings = self.settings();
        let frame = wrapped(&settings, &[&NODE_MAC[..], &FRONT_MAC, &protocol, packet].concat());
        settings.inject.push(frame);
    }

    /// Sends segments to the node without a pause.
    pub(crate) fn inject_all(&self, segments: &[Segment]) {
        let mut settings = self.settings();
        let frames: Vec<_> =
            segments.iter().map(|segment| wrapped(&settings, &segment.frame(NODE_MAC, FRONT_MAC))).collect();
        settings.inject.extend(frames);
    }

    /// Makes the node's interface wait a little for more segments to merge.
    pub(crate) fn merge_segments(&self) {
        self.set_interface("gro_flush_timeout", "3000000");
    }

    /// Makes a kernel thread receive on the node, which passes several packets at a time through each layer.
    pub(crate) fn receive_in_batches(&self) {
        self.set_interface("threaded", "1");
    }

    /// Under `ip netns exec`, because `/sys` must be that of the namespace.
    fn set_interface(&self, name: &str, value: &str) {
        let mut command = std::process::Command::new("ip");
        command.args(["netns", "exec", self.node.name(), "sh", "-c"]);
        let line = format!("echo {value} > /sys/class/net/{INTERFACE}/{name}");
        assert!(command.arg(line).status().expect("ip runs").success());
    }

    /// Returns the first segment with payload that a client has sent to the node.
    pub(crate) fn first_segment_from(&self, client: SocketAddr) -> Option<Segment> {
        let settings = self.settings();
        let first_segment = |segment: &&Segment| segment.from == client && !segment.payload.is_empty();
        settings.to_node.iter().find(first_segment).cloned()
    }

    /// Waits for a matching segment from the node.
    pub(crate) fn expect_from_node(&self, what: &str, suits: impl Fn(&Segment) -> bool) -> Segment {
        eventually(what, || self.settings().from_node.iter().find(|segment| suits(segment)).cloned())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(front) = self.front.take()
            && !std::thread::panicking()
        {
            front.join();
        }
    }
}

pub(crate) use larder_testkit::eventually;

fn run_switch(client: u32, node: u32, settings: &Mutex<LabSettings>, stop: &AtomicBool) {
    let (client, node) = (Wire::open(client).expect("a wire"), Wire::open(node).expect("a wire"));
    while !stop.load(Ordering::Relaxed) {
        wait([client.raw(), node.raw()]);
        let mut settings = settings.lock().expect("the test is well");
        for frame in std::mem::take(&mut settings.inject) {
            node.send(&frame).expect("sent");
        }
        while let Some(frame) = client.receive() {
            from_client(&mut settings, frame, &client, &node);
        }
        while let Some(frame) = node.receive() {
            let Some(segment) = Segment::read(&frame) else { continue };
            settings.from_node.push(segment);
            if !settings.mute {
                client.send(&frame).expect("sent");
            }
        }
    }
}

fn wrapped(settings: &LabSettings, frame: &[u8]) -> Vec<u8> {
    match settings.encapsulation {
        Some((encapsulation, from, to)) => encapsulate(frame, encapsulation, from, to),
        None => frame.to_vec(),
    }
}

fn from_client(settings: &mut LabSettings, mut frame: Vec<u8>, client: &Wire, node: &Wire) {
    let Some(segment) = Segment::read(&frame) else { return };
    if segment.flags & (SYN | ACK) == SYN && !settings.pass_syns {
        let answer = answer(settings, &segment);
        client.send(&answer.frame(CLIENT_MAC, FRONT_MAC)).expect("sent");
        return;
    }
    let handshake = settings.isns.get(&segment.from).is_some_and(|&(isn, cookie)| {
        segment.seq == isn.wrapping_add(1) && segment.ack == cookie.wrapping_add(1)
    });
    let empty = segment.payload.is_empty() && segment.flags & FIN == 0;
    if settings.deaf {
        settings.lost.push(segment);
        return;
    }
    if handshake && empty && !settings.pass_handshakes {
        return;
    }
    frame[..6].copy_from_slice(&NODE_MAC);
    node.send(&wrapped(settings, &frame)).expect("sent");
    settings.to_node.push(segment);
}

/// Returns the SYN-ACK, with the options of the SYN.
fn answer(settings: &mut LabSettings, syn: &Segment) -> Segment {
    let mss = syn.option(2).map_or(536, |mss| u16::from_be_bytes([mss[0], mss[1]]));
    let offered = SynOptions {
        mss,
        sack: syn.option(4).is_some(),
        timestamps: syn.timestamps().is_some(),
        wscale: syn.option(3).map(|scale| scale[0]),
    };
    let SynAckCookie { cookie, echo } =
        SynAckCookie::make(settings.key, (syn.from, syn.to), syn.seq, offered, 0x123);
    settings.isns.insert(syn.from, (syn.seq, cookie.0));
    let mut options = vec![2, 4, 0x05, 0xa0];
    if let Some(((value, _), echo)) = syn.timestamps().zip(echo) {
        options.extend([1, 1, 8, 10]);
        options.extend(echo.to_be_bytes());
        options.extend(value.to_be_bytes());
    }
    if offered.sack {
        options.extend([1, 1, 4, 2]);
    }
    if offered.wscale.is_some() {
        options.extend([1, 3, 3, 7]);
    }
    let ack = syn.seq.wrapping_add(1);
    Segment { seq: cookie.0, ack, options, ..Segment::new(syn.to, syn.from, SYN | ACK) }
}
