//! A client `c`, a switch `f` and a node `n` on a bridge, each in a namespace that is removed when dropped.

use larder_kernel::frame::TcpFrame;
use larder_kernel::plane::Plane;
use larder_testkit::needs_root;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use socket2::{Domain, Protocol, Socket, Type};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The namespaces of one test.
pub(crate) struct Lab {
    prefix: String,
}

pub(crate) use larder_testkit::eventually as wait_for;

fn output(command: &str) -> String {
    let ran = Command::new("sh").args(["-c", command]).output().expect("a shell");
    assert!(ran.status.success(), "{command}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).expect("text")
}

impl Lab {
    /// Returns `None`, and skips the test, if the rights are missing.
    pub(crate) fn new() -> Option<Self> {
        if !needs_root("namespaces, CAP_BPF, CAP_NET_ADMIN") {
            return None;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let lab = Self { prefix: format!("ld{}-{number}", std::process::id()) };
        let hub = lab.name("h");
        output(&format!(
            "ip netns add {hub} && ip -n {hub} link add br0 type bridge && ip -n {hub} link set br0 up"
        ));
        for (end, (host, device)) in [("c", "wc"), ("f", "wf"), ("n", "wn")].into_iter().enumerate() {
            let name = lab.name(host);
            let end = end + 2;
            output(&format!(
                "set -e; ip netns add {name}
                ip link add {device} netns {name} type veth peer name p{device} netns {hub}
                ip -n {hub} link set p{device} master br0; ip -n {hub} link set p{device} up
                ip -n {name} link set lo up
                ip netns exec {name} ethtool -K {device} tx off tso off gso off gro on >/dev/null 2>&1
                ip -n {name} link set {device} address 02:00:00:00:00:0{end}; ip -n {name} link set {device} up
                ip -n {name} addr add 10.9.0.{end}/24 dev {device}
                ip -n {name} addr add fd09::{end}/64 dev {device} nodad"
            ));
        }
        let (client, front) = (lab.name("c"), lab.name("f"));
        output(&format!(
            "set -e; ip -n {front} addr add 10.9.0.100/32 dev lo; ip -n {front} addr add fd09::100/128 dev lo nodad
            ip -n {client} neigh replace 10.9.0.100 lladdr 02:00:00:00:00:03 dev wc nud permanent
            ip -n {client} neigh replace fd09::100 lladdr 02:00:00:00:00:03 dev wc nud permanent
            ip -n {front} neigh replace 10.9.0.2 lladdr 02:00:00:00:00:02 dev wf nud permanent
            ip -n {front} neigh replace fd09::2 lladdr 02:00:00:00:00:02 dev wf nud permanent"
        ));
        lab.veth_wants_xdp_on_both_ends();
        Some(lab)
    }

    /// Packets that XDP_TX sends into a veth are delivered only if the other end has an XDP program, so the bridge's
    /// end gets one that passes everything.
    fn veth_wants_xdp_on_both_ends(&self) {
        self.inside("h", || {
            let object = libbpf_rs::ObjectBuilder::default()
                .open_memory(include_bytes!("../../bpf/prebuilt/front.bpf.o"))
                .and_then(libbpf_rs::OpenObject::load)
                .expect("loaded");
            let program =
                object.progs_mut().find(|program| program.name() == "front_xdp").expect("front_xdp");
            let ifindex: i32 = output(&format!("ip -n {} -o link show pwf", self.name("h")))
                .split(':')
                .next()
                .and_then(|number| number.parse().ok())
                .expect("a number");
            // It has no services, so it passes everything. The link lives until the namespace is removed.
            std::mem::forget(program.attach_xdp(ifindex).expect("attached"));
        });
    }

    /// Returns a name that no other process or test has.
    pub(crate) fn name(&self, of: &str) -> String {
        format!("{}-{of}", self.prefix)
    }

    /// Runs `work` in a thread in the namespace of `host`; sockets and programs created there stay there.
    pub(crate) fn inside<T: Send>(&self, host: &str, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.name(host))).expect("the namespace");
        std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("setns");
                work()
            });
            run.join().expect("it runs")
        })
    }

    pub(crate) fn mac(&self, device: &str) -> [u8; 6] {
        [
            2,
            0,
            0,
            0,
            0,
            match device {
                "wc" => 2,
                "wf" => 3,
                _ => 4,
            },
        ]
    }

    /// Whether a device has an XDP program.
    pub(crate) fn has_xdp(&self, host: &str, device: &str) -> bool {
        output(&format!("ip -n {} -d link show {device}", self.name(host))).contains("prog/xdp")
    }

    /// Runs a command in which CLIENT, FRONT and NODE stand for the namespaces. Returns whether it succeeded.
    pub(crate) fn can(&self, command: &str) -> bool {
        let hosts = [("CLIENT", "c"), ("FRONT", "f"), ("NODE", "n")];
        let named = |command: String, (word, host): (&str, &str)| command.replace(word, &self.name(host));
        let command = hosts.into_iter().fold(command.to_owned(), named);
        Command::new("sh").args(["-c", &command]).status().is_ok_and(|status| status.success())
    }

    /// Captures every TCP packet that arrives at `host`, including those in a tunnel.
    pub(crate) fn sniffer(&self, host: &str) -> Sniffer {
        let socket = self.inside(host, || {
            const ALL: i32 = 0x0300; // ETH_P_ALL in network order
            Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(ALL))).expect("a packet socket")
        });
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
        socket.set_recv_buffer_size(1 << 20).expect("a buffer");
        Sniffer { socket: RefCell::new(socket) }
    }
}

/// A packet socket.
pub(crate) struct Sniffer {
    socket: RefCell<Socket>,
}

impl Sniffer {
    /// Passes every TCP segment that arrives to `take`, until it returns true or a timeout.
    fn until(&self, mut take: impl FnMut(u32, &[u8]) -> bool) -> bool {
        let end = Instant::now() + Duration::from_secs(5);
        let mut frame = vec![0; 1 << 16];
        while Instant::now() < end {
            let Ok(bytes) = self.socket.borrow_mut().read(&mut frame) else { continue };
            if let Some(packet) = TcpFrame::parse(&frame[..bytes])
                && take(packet.seq, packet.payload)
            {
                return true;
            }
        }
        false
    }

    /// Whether a segment that ends with `payload` arrives.
    pub(crate) fn sees(&self, payload: &[u8]) -> bool {
        self.until(|_, seen| seen.ends_with(payload))
    }

    pub(crate) fn sees_one_of(&self, payloads: &[&[u8]]) -> bool {
        self.until(|_, seen| payloads.iter().any(|payload| seen.ends_with(payload)))
    }

    /// Whether all of `stream` arrives, in any order and number of segments.
    pub(crate) fn collects(&self, stream: &[u8]) -> bool {
        let mut seen = BTreeMap::new();
        let mut first = None;
        self.until(|seq, payload| {
            if payload.is_empty() {
                return false;
            }
            // Retransmissions may start before the stream: the bytes after its start count.
            let base = *first.get_or_insert(seq);
            for (i, &byte) in payload.iter().enumerate() {
                seen.insert(i64::from(seq.wrapping_sub(base).cast_signed()) + i as i64, byte);
            }
            let bytes: Vec<u8> = seen.values().copied().collect();
            let whole = seen.last_key_value().zip(seen.first_key_value());
            whole.is_some_and(|((last, _), (first, _))| last - first + 1 == bytes.len() as i64)
                && bytes.ends_with(stream)
        })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = Plane::clean(&self.name("p"));
        for host in ["c", "f", "n", "h"] {
            let _ = Command::new("ip").args(["netns", "del", &self.name(host)]).status();
        }
    }
}
