//! The programs, run by the kernel on test packets (`BPF_PROG_TEST_RUN`), at both hooks.

mod again;
mod ends;
mod filter;
mod first;
mod forged;
mod known;
mod malformed;
mod packet;
mod reply;
mod sources;
mod speed;
mod stray;
mod tunnel;
mod uncommon;

use super::{AttachMode, NodeRoute, Plane, PlaneConfig, PlaneEvent, ServiceSpec};
use crate::{CookieKey, FlowKey};
use libbpf_rs::ProgramInput;
use packet::Packet;
use std::net::SocketAddr;

pub(super) const KEYS: [CookieKey; 2] = [CookieKey([1, 2]), CookieKey([3, 4])];
pub(super) const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
pub(super) const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x03];
thread_local! {
    /// Bits of a cookie's hash that programs loaded by this thread compare.
    pub(super) static PROOF_MASK: std::cell::Cell<u64> = const { std::cell::Cell::new(u64::MAX) };
}

/// Test runs use the loopback interface.
const LOOPBACK: u32 = 1;

/// Result of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Passed,
    Dropped,
    Sent(Vec<u8>),
}

impl Fate {
    /// The frame that was sent.
    #[track_caller]
    pub(super) fn sent(self) -> Vec<u8> {
        match self {
            Self::Sent(frame) => frame,
            other => unreachable!("not sent: {other:?}"),
        }
    }
}

/// An event that owns its packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OwnedEvent {
    Punt { first: bool, head_hash: Option<u64>, packet: Vec<u8> },
    Opened { node: u16, route: u16, class: u8, target: u64 },
    Ended { node: u16, flags: u8 },
    Resumed { node: u16 },
}

/// A plane that is loaded, but not attached.
pub(super) struct Bench {
    pub(super) plane: Plane,
    pub(super) v6: bool,
}

pub(super) fn may_load() -> bool {
    larder_testkit::needs_root("CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW")
}

/// The clock of SYN-ACKs, with [`crate::plane::KEY_LIFE`].
pub(super) fn clock_now() -> u32 {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    (since_1970.as_millis() >> crate::cookie::clock_shift(crate::plane::KEY_LIFE)) as u32
}

pub(super) fn config(name: &str) -> PlaneConfig {
    PlaneConfig {
        name: name.to_owned(),
        interface: "lo".to_owned(),
        attach: AttachMode::Auto,
        flows_max: 1024,
        targets_max: 1024,
        ring_bytes: 1 << 16,
        hold_packets: 4,
        key_life: crate::plane::KEY_LIFE,
    }
}

pub(super) fn full_service() -> ServiceSpec {
    ServiceSpec { cookie: true, fast: true, tags: true, grace: true, mss: 1400, ..ServiceSpec::default() }
}

impl Bench {
    fn new(attach: AttachMode, v6: bool, spec: ServiceSpec) -> Self {
        let plane = Plane::load(&config("bench"), attach, None).expect("the verifier takes the programs");
        plane.set_keys(&KEYS, 0).expect("keys");
        let bench = Self { plane, v6 };
        bench.plane.set_service(5, bench.server(), spec).expect("a service");
        let link =
            NodeRoute { tag: 9, ifindex: LOOPBACK, source_mac: OUR_MAC, next_hop: NODE_MAC, tunnel: None };
        bench.plane.set_link(7, Some(&link)).expect("a link");
        bench
    }

    pub(super) fn client(&self) -> SocketAddr {
        if self.v6 { "[2001:db8::7]:40000" } else { "192.0.2.7:40000" }.parse().expect("an address")
    }

    pub(super) fn server(&self) -> SocketAddr {
        if self.v6 { "[2001:db8::64]:80" } else { "10.9.0.100:80" }.parse().expect("an address")
    }

    pub(super) fn key(&self) -> FlowKey {
        FlowKey::new(self.client(), 5)
    }

    /// A packet from the client.
    pub(super) fn packet(&self) -> Packet {
        Packet::new(self.client(), self.server())
    }

    pub(super) fn run(&self, frame: &[u8]) -> Fate {
        let tc = self.plane.attached() == AttachMode::Tc;
        self.run_program(if tc { "front_tc" } else { "front_xdp" }, tc, frame)
    }

    /// Runs it this often on a frame, as fast as the kernel can.
    pub(super) fn run_often(&self, frame: &[u8], times: u32) {
        let name = if self.plane.attached() == AttachMode::Tc { "front_tc" } else { "front_xdp" };
        let input = ProgramInput { data_in: Some(frame), repeat: times, ..Default::default() };
        let program = self.plane.programs.program(name).expect("a program");
        program.test_run(input).expect("it runs");
    }

    pub(super) fn run_egress(&self, frame: &[u8]) -> Fate {
        self.run_program("front_egress", true, frame)
    }

    fn run_program(&self, program: &'static str, tc: bool, frame: &[u8]) -> Fate {
        let mut out = vec![0; frame.len() + 256];
        let room = out.len();
        let input = ProgramInput { data_in: Some(frame), data_out: Some(&mut out), ..Default::default() };
        let program = self.plane.programs.program(program).expect("a program");
        let ran = program.test_run(input).expect("it runs");
        let bytes = ran.data.map_or(0, |data| data.len()).min(room);
        match (tc, ran.return_value.cast_signed()) {
            (true, -1) | (false, 2) => Fate::Passed,
            (true, 2) | (false, 1) => Fate::Dropped,
            (true, 7) | (false, 3 | 4) => Fate::Sent(out[..bytes].to_vec()),
            other => unreachable!("no verdict of ours: {other:?}"),
        }
    }

    pub(super) fn events(&self) -> Vec<OwnedEvent> {
        let mut events = Vec::new();
        self.plane.read_events(|event| {
            events.push(match event {
                PlaneEvent::Punt { first, head_hash, packet, key, .. } => {
                    assert_eq!(key, self.key());
                    OwnedEvent::Punt { first, head_hash, packet: packet.to_vec() }
                }
                PlaneEvent::Opened { node, route, class, target, .. } => {
                    OwnedEvent::Opened { node, route, class, target }
                }
                PlaneEvent::Ended { node, flags, .. } => OwnedEvent::Ended { node, flags },
                PlaneEvent::Sample { .. } => return,
                PlaneEvent::Resumed { node, .. } => OwnedEvent::Resumed { node },
            });
        });
        events
    }

    pub(super) fn counter(&self, name: &str) -> u64 {
        let at = crate::abi::COUNTERS.iter().position(|&known| known == name).expect("a counter");
        self.plane.counters()[at]
    }
}

/// Runs `test` on XDP and tc, with IPv4 and IPv6.
pub(super) fn for_each_setup(spec: ServiceSpec, test: impl Fn(&Bench)) {
    if !may_load() {
        return;
    }
    for attach in [AttachMode::Native, AttachMode::Tc] {
        for v6 in [false, true] {
            eprintln!("{attach:?}, IPv{}", if v6 { 6 } else { 4 });
            test(&Bench::new(attach, v6, spec));
        }
    }
}
