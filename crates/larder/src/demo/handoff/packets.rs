//! The packets of one connection, as the hub between the hosts sees them.

use larder_kernel::frame::TcpFrame;
use larder_kernel::frame::tcp_flag::{ACK, FIN, RST, SYN};
use larder_kernel::netns::CapturedFrame;
use schemars::JsonSchema;
use serde::Serialize;

/// Most lines of a trace. The packets in the middle of a longer connection are counted only.
const LINES_MAX: usize = 16;
const HEAD_LINES: usize = 11;

/// A host of the topology.
#[derive(Clone, Debug)]
pub(super) struct PacketHost {
    pub(super) name: String,
    pub(super) mac: [u8; 6],
    pub(super) kind: HostKind,
}

/// Kind of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostKind {
    Client,
    Front,
    Node,
}

/// A line of the trace.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Line")]
pub(crate) struct PacketLine {
    /// Microseconds since the first packet.
    pub(crate) us: f64,
    /// The host that sent the packet.
    pub(crate) from: String,
    /// The host of the destination hardware address.
    pub(crate) to: String,
    /// TCP flags and number of payload bytes.
    pub(crate) what: String,
    /// Explanation of the packet.
    pub(crate) note: String,
}

/// Packets of one connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Trace")]
pub(crate) struct PacketTrace {
    /// The lines.
    pub(crate) lines: Vec<PacketLine>,
    /// Number of packets that are left out; 0 if the trace is complete.
    pub(crate) left_out: usize,
    /// Number of lines before the packets that are left out.
    pub(crate) left_out_after: usize,
    /// Packets of the connection, including those of the switch's connection to a node.
    pub(crate) packets: usize,
    /// Bytes that the switch sent.
    pub(crate) front_bytes: u64,
    /// Bytes that nodes sent directly to the client.
    pub(crate) direct_bytes: u64,
}

/// A TCP packet over IPv4.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TcpPacket<'f> {
    tcp: TcpFrame<'f>,
    /// Length of the packet, with the Ethernet header.
    bytes: usize,
}

impl<'f> TcpPacket<'f> {
    /// Parses a frame. Returns `None` if it is not TCP over IPv4, or is truncated before its payload.
    fn parse(frame: &'f [u8]) -> Option<Self> {
        let (tcp, bytes) = TcpFrame::parse_truncated(frame).filter(|(tcp, _)| tcp.from.is_ipv4())?;
        Some(Self { tcp, bytes })
    }

    fn describe(&self) -> String {
        let TcpFrame { flags, payload, .. } = self.tcp;
        let names = [(SYN, "SYN"), (FIN, "FIN"), (RST, "RST"), (ACK, "ACK")];
        let mut set: Vec<&str> =
            names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
        // Nearly all packets have ACK set, so ACK is shown only for packets that do nothing else.
        if set.len() > 1 && !set.contains(&"SYN") || !payload.is_empty() && set == ["ACK"] {
            set.retain(|name| *name != "ACK");
        }
        let mut text = set.join("-");
        if !payload.is_empty() {
            let gap = if text.is_empty() { "" } else { ", " };
            text = format!("{text}{gap}{} bytes", payload.len());
        }
        text
    }
}

/// Builds the trace of the client's connection from port `port`, and of the switch's connections to a node.
pub(super) fn build_trace(frames: &[CapturedFrame], names: &[PacketHost], port: u16) -> PacketTrace {
    let all: Vec<(f64, TcpPacket<'_>)> = frames
        .iter()
        .filter_map(|captured| Some((captured.at.as_secs_f64() * 1e6, TcpPacket::parse(&captured.frame)?)))
        .collect();
    let kind = |mac: [u8; 6]| names.iter().find(|name| name.mac == mac).map(|name| name.kind);
    let is_of_client =
        |packet: &TcpPacket<'_>| packet.tcp.from.port() == port || packet.tcp.to.port() == port;
    // A relay opens connections from the switch to a node. Control channels and health checks are excluded.
    let is_relayed = |packet: &TcpPacket<'_>| {
        let ends = packet.tcp.macs.map(kind);
        !ends.contains(&Some(HostKind::Client))
            && (packet.tcp.from.port() == 80 || packet.tcp.to.port() == 80)
    };
    let mine: Vec<&(f64, TcpPacket<'_>)> =
        all.iter().filter(|(_, packet)| is_of_client(packet) || is_relayed(packet)).collect();
    let Some(first) = mine.iter().find(|(_, packet)| packet.tcp.from.port() == port).map(|(at, _)| *at)
    else {
        return PacketTrace::default();
    };
    let mine: Vec<&(f64, TcpPacket<'_>)> = mine.into_iter().filter(|(at, _)| *at >= first).collect();
    let bytes = |wanted: &dyn Fn(&TcpPacket<'_>) -> bool| {
        mine.iter().filter(|(_, packet)| wanted(packet)).map(|(_, packet)| packet.bytes as u64).sum()
    };
    let mut trace = PacketTrace {
        packets: mine.len(),
        front_bytes: bytes(&|packet| kind(packet.tcp.macs[0]) == Some(HostKind::Front)),
        direct_bytes: bytes(&|packet| {
            packet.tcp.macs.map(kind) == [Some(HostKind::Node), Some(HostKind::Client)]
        }),
        ..PacketTrace::default()
    };
    for (index, (at, packet)) in mine.iter().enumerate() {
        let rest = mine.len() - index;
        if mine.len() > LINES_MAX && index >= HEAD_LINES && rest > LINES_MAX - HEAD_LINES {
            trace.left_out += 1;
            trace.left_out_after = HEAD_LINES;
            continue;
        }
        let name = |mac: [u8; 6]| {
            names.iter().find(|name| name.mac == mac).map_or_else(|| "?".to_owned(), |n| n.name.clone())
        };
        trace.lines.push(PacketLine {
            us: at - first,
            from: name(packet.tcp.macs[0]),
            to: name(packet.tcp.macs[1]),
            what: packet.describe(),
            note: explain(packet, packet.tcp.macs.map(kind), mine[..index].iter().map(|(_, before)| before)),
        });
    }
    trace
}

/// Explains a packet, as far as its bytes show.
fn explain<'p, 'f: 'p>(
    packet: &TcpPacket<'_>,
    ends: [Option<HostKind>; 2],
    mut before: impl Iterator<Item = &'p TcpPacket<'f>>,
) -> String {
    use HostKind::{Client, Front, Node};
    let is_rewritten = before.any(|earlier| {
        let (earlier, packet) = (&earlier.tcp, &packet.tcp);
        (earlier.from, earlier.to, earlier.seq, earlier.flags, earlier.payload)
            == (packet.from, packet.to, packet.seq, packet.flags, packet.payload)
            && earlier.macs != packet.macs
    });
    let TcpFrame { flags, payload, .. } = packet.tcp;
    let text = String::from_utf8_lossy(payload);
    let line = text.lines().next().filter(|_| text.is_ascii() && !text.is_empty());
    let quoted = line.filter(|line| line.contains("HTTP/")).map(|line| format!("\"{}\" ", clip(line, 40)));
    let quoted = quoted.unwrap_or_default();
    let said = match ends {
        [Some(Front), Some(Node)] if is_rewritten => "the same packet with new MAC addresses",
        [Some(Front), Some(Client)] if flags & SYN != 0 => "the switch replies",
        [Some(Node), Some(Client)] if !payload.is_empty() => {
            "directly to the client, from the service address"
        }
        [Some(Node), Some(Client)] => "directly to the client",
        [Some(Front), Some(Node)] if flags & SYN != 0 => "a second connection",
        [Some(Front), Some(Client)] if !payload.is_empty() => "relayed by the switch",
        _ => "",
    };
    format!("{quoted}{said}").trim_end().to_owned()
}

fn clip(line: &str, max: usize) -> String {
    let mut text: String = line.chars().take(max).collect();
    if text.len() < line.len() {
        text.push_str("..");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const CLIENT: [u8; 6] = [2, 0, 0, 9, 0, 120];
    const FRONT: [u8; 6] = [2, 0, 0, 9, 0, 3];
    const NODE: [u8; 6] = [2, 0, 0, 9, 0, 11];

    fn names() -> Vec<PacketHost> {
        let name = |name: &str, mac, kind| PacketHost { name: name.to_owned(), mac, kind };
        vec![
            name("client", CLIENT, HostKind::Client),
            name("switch", FRONT, HostKind::Front),
            name("node0", NODE, HostKind::Node),
        ]
    }

    fn captured(us: u64, macs: [[u8; 6]; 2], up: bool, seq: u32, flags: u8, payload: &[u8]) -> CapturedFrame {
        let ends = [([10, 9, 0, 120], 4711).into(), ([10, 9, 0, 100], 80).into()];
        let [from, to] = if up { ends } else { [ends[1], ends[0]] };
        let frame = TcpFrame { macs, from, to, seq, ack: 1, flags, window: 9, options: &[], payload };
        CapturedFrame { at: Duration::from_micros(us), frame: frame.bytes().expect("a frame") }
    }

    #[test]
    fn the_packets_of_a_handed_off_connection_are_explained() {
        let get = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
        let frames = [
            captured(100, [CLIENT, FRONT], true, 1, SYN, b""),
            captured(110, [FRONT, CLIENT], false, 7, SYN | ACK, b""),
            captured(120, [CLIENT, FRONT], true, 2, ACK, get),
            captured(125, [FRONT, NODE], true, 2, ACK, get),
            captured(150, [NODE, CLIENT], false, 8, ACK, b"HTTP/1.1 200 OK\r\n\r\n"),
            captured(160, [NODE, CLIENT], false, 27, FIN | ACK, b""),
            CapturedFrame { at: Duration::ZERO, frame: vec![0; 60] },
        ];
        let trace = build_trace(&frames, &names(), 4711);
        let lines: Vec<(f64, &str, &str, &str)> =
            trace.lines.iter().map(|l| (l.us.round(), &*l.from, &*l.to, &*l.what)).collect();
        assert_eq!(
            lines,
            [
                (0.0, "client", "switch", "SYN"),
                (10.0, "switch", "client", "SYN-ACK"),
                (20.0, "client", "switch", "28 bytes"),
                (25.0, "switch", "node0", "28 bytes"),
                (50.0, "node0", "client", "19 bytes"),
                (60.0, "node0", "client", "FIN"),
            ]
        );
        assert!(trace.lines[3].note.contains("the same packet with new MAC addresses"), "{trace:?}");
        assert!(trace.lines[4].note.starts_with("\"HTTP/1.1 200 OK\" directly"), "{trace:?}");
        assert_eq!((trace.packets, trace.left_out), (6, 0));
        assert_eq!((trace.front_bytes, trace.direct_bytes), (54 + 54 + 28, 54 + 19 + 54));
    }

    #[test]
    fn the_middle_of_a_long_connection_is_left_out() {
        let frames: Vec<CapturedFrame> =
            (0..50).map(|i| captured(u64::from(i), [CLIENT, FRONT], true, i, ACK, b"")).collect();
        let trace = build_trace(&frames, &names(), 4711);
        assert_eq!((trace.lines.len(), trace.left_out, trace.left_out_after), (16, 34, 11));
        assert_eq!(trace.lines.last().map(|line| line.us.round()), Some(49.0));
        assert_eq!(super::build_trace(&frames, &names(), 1), PacketTrace::default());
    }

    #[test]
    fn truncated_frames_are_ignored() {
        let whole = captured(0, [CLIENT, FRONT], true, 1, SYN, b"").frame;
        assert!(TcpPacket::parse(&whole).is_some());
        for end in 0..whole.len() {
            assert_eq!(TcpPacket::parse(&whole[..end]), None, "{end}");
        }
    }
}
