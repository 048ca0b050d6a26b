//! A cluster in network namespaces.
//!
//! ```text
//!   client0 .. client<m>    front0 ..        node0 .. node<n>
//!        eth0                eth0                 eth0          10.9.0.0/24, fd09::/64
//!          \______________ hub: bridge ____________/
//!
//!   routed: the nodes are on a bridge of their own (10.9.1.0/24, fd09:0:0:1::/64) behind `router`
//! ```
//!
//! The service address is 10.9.0.100 and fd09::64. A switch (`front`) has it on its interface and answers for it. A
//! node has it on its loopback interface and does not answer (`arp_ignore=1`, `arp_announce=2`; IPv6 answers only for
//! the interface asked). All neighbour entries are static, so that no packet waits for resolution.
//!
//! The defaults compensate for the differences between a veth and a network card. XDP sees frames whose checksum the
//! sender has left to the card, so hosts compute it (`tx off`). Frames sent back by XDP arrive only if the far end has
//! a program, so the hub has one there. The hub does not merge segments, so that frames are no longer than the MTU.

use super::{Namespace, NetnsError, installed, succeeded, veth};
use libbpf_rs::{Link, ObjectBuilder};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;

/// Name of a host's only interface (the router's second one is `eth1`).
pub const INTERFACE: &str = "eth0";
/// Prefix lengths of the interfaces, IPv4 and IPv6. Bits.
const PREFIX: (u8, u8) = (24, 64);
const FRONTS_MAX: usize = 4;
const NODES_MAX: usize = 64;
const CLIENTS_MAX: usize = 64;
/// Last byte of the addresses.
const ROUTER: u8 = 1;
const FRONT: u8 = 3;
const NODE: u8 = 11;
const VIP: u8 = 100;
const CLIENT: u8 = 120;

static PASS: &[u8] = include_bytes!("../../bpf/prebuilt/pass.bpf.o");

/// Work that hosts leave to their interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// The interface computes checksums. Not compatible with XDP.
    pub tx_checksum: bool,
    /// Segments longer than the MTU, up to 64 KB, are sent on the link. Needs `tx_checksum`.
    pub segmentation: bool,
    /// Hosts merge received segments (and receive by NAPI).
    pub gro: bool,
}

/// Parameters of a [`Topology`].
#[derive(Clone, Debug)]
pub struct TopologySpec {
    /// Number of switches, 1 to 4. All have the service address; clients send to the first one until told otherwise.
    pub fronts: usize,
    /// Number of nodes, 0 to 64.
    pub nodes: usize,
    /// Number of clients, 1 to 64.
    pub clients: usize,
    /// Whether the nodes are behind a router.
    pub routed: bool,
    /// MTU of the clients' interfaces. Bytes, 1280 to 9000.
    pub mtu: u32,
    /// MTU of all other interfaces: more than `mtu` if packets are encapsulated. Bytes, `mtu` to 9000.
    pub backbone_mtu: u32,
    /// See [`Offloads`].
    pub offloads: Offloads,
    /// Attaches a program to the far end of the switches' links, without which XDP_TX does not work there.
    pub xdp_peer: bool,
    /// Congestion control. A namespace may use those of the machine's `net.ipv4.tcp_allowed_congestion_control`.
    pub congestion: String,
    /// First and last local port of the clients.
    pub port_range: (u16, u16),
}

impl Default for TopologySpec {
    fn default() -> Self {
        Self {
            fronts: 1,
            nodes: 2,
            clients: 1,
            routed: false,
            mtu: 1500,
            backbone_mtu: 1500,
            offloads: Offloads { tx_checksum: false, segmentation: false, gro: true },
            xdp_peer: true,
            congestion: "reno".to_owned(),
            port_range: (1024, 65535),
        }
    }
}

/// A host.
#[derive(Debug)]
pub struct Host {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its IPv4 address.
    pub v4: Ipv4Addr,
    /// Its IPv6 address.
    pub v6: Ipv6Addr,
    /// MAC address of [`INTERFACE`].
    pub mac: [u8; 6],
    /// Name of its port on the hub.
    pub port: String,
    /// Bridge: 0, or 1 behind the router.
    net: u8,
}

impl Host {
    /// Returns its MAC address as `ip` writes it.
    pub fn mac_text(&self) -> String {
        mac_text(self.mac)
    }
}

/// Hosts and the links between them; all are removed when dropped.
#[derive(Debug)]
pub struct Topology {
    // Programs are dropped before the interfaces to which they are attached.
    programs: Vec<Link>,
    /// The switches.
    pub fronts: Vec<Host>,
    /// The nodes.
    pub nodes: Vec<Host>,
    /// The clients.
    pub clients: Vec<Host>,
    /// The router between the bridges of a routed topology; its addresses are those on the clients' side.
    pub router: Option<Host>,
    /// The bridges, `br0` and (routed) `br1`, and the ports of all hosts.
    pub hub: Namespace,
    /// The service address.
    pub vip4: Ipv4Addr,
    /// The service address.
    pub vip6: Ipv6Addr,
}

impl Topology {
    /// Creates all hosts and links.
    ///
    /// # Errors
    ///
    /// [`NetnsError::Unable`] without the rights; [`NetnsError::Size`]; else the failed operation. Nothing is left
    /// behind.
    pub fn new(spec: &TopologySpec) -> Result<Self, NetnsError> {
        for (what, min, asked, max) in [
            ("switches", 1, spec.fronts, FRONTS_MAX),
            ("nodes", 0, spec.nodes, NODES_MAX),
            ("clients", 1, spec.clients, CLIENTS_MAX),
        ] {
            if !(min..=max).contains(&asked) {
                return Err(NetnsError::Size { what, min, max, asked });
            }
        }
        installed("ethtool", "--version", "ethtool")?;
        let hub = Namespace::new("hub")?;
        let mut lines = String::from("link add br0 type bridge mcast_snooping 0\n");
        if spec.routed {
            lines.push_str("link add br1 type bridge mcast_snooping 0\n");
        }
        hub.ip(&lines)?;
        let (vip4, vip6) = (v4(0, VIP), v6(0, VIP));
        let mut topology = Self {
            programs: Vec::new(),
            fronts: Vec::new(),
            nodes: Vec::new(),
            clients: Vec::new(),
            router: None,
            hub,
            vip4,
            vip6,
        };
        let nodes_net = u8::from(spec.routed);
        for index in 0..spec.fronts {
            topology.fronts.push(topology.host(spec, "front", index, (0, FRONT))?);
        }
        for index in 0..spec.nodes {
            topology.nodes.push(topology.host(spec, "node", index, (nodes_net, NODE))?);
        }
        for index in 0..spec.clients {
            topology.clients.push(topology.host(spec, "client", index, (0, CLIENT))?);
        }
        if spec.routed {
            topology.router = Some(topology.route(spec)?);
        }
        topology.add_bridge(spec)?;
        topology.set_services()?;
        topology.set_neighbours()?;
        if spec.xdp_peer {
            topology.attach_peers()?;
        }
        Ok(topology)
    }

    /// Returns the first switch.
    pub fn front(&self) -> &Host {
        &self.fronts[0]
    }

    /// Returns the first client.
    pub fn client(&self) -> &Host {
        &self.clients[0]
    }

    /// Returns all hosts except the router.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.fronts.iter().chain(&self.nodes).chain(&self.clients)
    }

    /// Makes clients (and the router) send packets for the service address to this host from now on.
    ///
    /// # Errors
    ///
    /// The error of `ip`.
    pub fn point_clients_at(&self, host: &Host) -> Result<(), NetnsError> {
        let mut lines = String::new();
        for vip in [IpAddr::V4(self.vip4), IpAddr::V6(self.vip6)] {
            neighbour(&mut lines, vip, host.mac, INTERFACE);
        }
        for from in self.clients.iter().chain(&self.router) {
            from.namespace.ip(&lines)?;
        }
        Ok(())
    }

    /// Creates a host and its link to the hub.
    fn host(
        &self,
        spec: &TopologySpec,
        role: &str,
        index: usize,
        (net, first): (u8, u8),
    ) -> Result<Host, NetnsError> {
        let label = format!("{role}{index}");
        let namespace = Namespace::new(&label)?;
        // Below 256, because the sizes are limited.
        let number = first + u8::try_from(index).unwrap_or(u8::MAX - first);
        let host = Host {
            namespace,
            v4: v4(net, number),
            v6: v6(net, number),
            mac: mac(net, number),
            port: label,
            net,
        };
        veth((&host.namespace, INTERFACE), (&self.hub, &host.port))?;
        for (name, value) in [("accept_dad", "0"), ("accept_ra", "0"), ("addr_gen_mode", "1")] {
            host.namespace.sysctl(&format!("net.ipv6.conf.{INTERFACE}.{name}"), value)?;
        }
        let client = role == "client";
        let mtu = if client { spec.mtu } else { spec.backbone_mtu };
        host.namespace.ip(&format!(
            "link set {INTERFACE} address {} mtu {mtu} up\naddr add {}/{} dev {INTERFACE}\naddr add {}/{} dev {INTERFACE} nodad",
            host.mac_text(),
            host.v4,
            PREFIX.0,
            host.v6,
            PREFIX.1
        ))?;
        set_offloads(&host.namespace, INTERFACE, spec.offloads)?;
        host.namespace.sysctl("net.ipv4.tcp_congestion_control", &spec.congestion)?;
        host.namespace.sysctl("net.core.somaxconn", "16384")?;
        host.namespace.sysctl("net.ipv4.tcp_max_syn_backlog", "16384")?;
        if client {
            let (low, high) = spec.port_range;
            host.namespace.sysctl("net.ipv4.ip_local_port_range", &format!("{low} {high}"))?;
        }
        Ok(host)
    }

    /// Creates the router and the routes through it.
    fn route(&self, spec: &TopologySpec) -> Result<Host, NetnsError> {
        let router = self.host(spec, "router", 0, (0, ROUTER))?;
        let second = "eth1";
        veth((&router.namespace, second), (&self.hub, "router0b"))?;
        router.namespace.sysctl(&format!("net.ipv6.conf.{second}.accept_dad"), "0")?;
        router.namespace.ip(&format!(
            "link set {second} address {} mtu {} up\naddr add {}/{} dev {second}\naddr add {}/{} dev {second} nodad",
            mac_text(mac(1, ROUTER)),
            spec.backbone_mtu,
            v4(1, ROUTER),
            PREFIX.0,
            v6(1, ROUTER),
            PREFIX.1
        ))?;
        set_offloads(&router.namespace, second, spec.offloads)?;
        for (name, value) in [
            ("net.ipv4.ip_forward", "1"),
            ("net.ipv6.conf.all.forwarding", "1"),
            // Replies come from the service address, through another interface than requests to it.
            ("net.ipv4.conf.all.rp_filter", "0"),
            ("net.ipv4.conf.eth0.rp_filter", "0"),
            ("net.ipv4.conf.eth1.rp_filter", "0"),
            // No redirects: neighbours and routes are fixed.
            ("net.ipv4.conf.all.send_redirects", "0"),
            ("net.ipv4.conf.eth0.send_redirects", "0"),
        ] {
            router.namespace.sysctl(name, value)?;
        }
        for host in self.hosts() {
            let lines = if host.net == 1 {
                format!("route add default via {}\nroute add default via {}", v4(1, ROUTER), v6(1, ROUTER))
            } else {
                format!(
                    "route add {}/{} via {}\nroute add {}/{} via {}",
                    v4(1, 0),
                    PREFIX.0,
                    v4(0, ROUTER),
                    v6(1, 0),
                    PREFIX.1,
                    v6(0, ROUTER)
                )
            };
            host.namespace.ip(&lines)?;
        }
        Ok(router)
    }

    /// Adds the ports to their bridges.
    fn add_bridge(&self, spec: &TopologySpec) -> Result<(), NetnsError> {
        let mut ports: Vec<(&str, u8)> = self.hosts().map(|h| (h.port.as_str(), h.net)).collect();
        if let Some(router) = &self.router {
            ports.extend([(router.port.as_str(), 0), ("router0b", 1)]);
        }
        let mut lines = String::new();
        for (port, net) in &ports {
            // Writing to a String does not fail.
            let _ = writeln!(lines, "link set {port} mtu {} master br{net} up", spec.backbone_mtu);
        }
        for net in 0..=u8::from(spec.routed) {
            let _ = writeln!(lines, "link set br{net} up");
        }
        self.hub.ip(&lines)?;
        for (port, _) in &ports {
            self.hub.offloads(port, &["gro", "off"])?;
        }
        self.preserve_packet_order()
    }

    /// Makes the hub handle all packets of a connection on one processor. Otherwise the packets of a host that sends
    /// from two processors wait in two queues and get reordered, which senders take for loss.
    fn preserve_packet_order(&self) -> Result<(), NetnsError> {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get().min(32));
        let mask = u32::MAX >> (32 - processors);
        // Only a separate process sees the interfaces of the namespace in `/sys`.
        let script = format!(
            "for queue in /sys/class/net/*/queues/rx-*/rps_cpus; do echo {mask:x} >$queue || exit 1; done"
        );
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.hub.name(), "sh", "-c", &script]);
        let output = command.output().map_err(|e| NetnsError::io(format!("running {command:?}"), e))?;
        succeeded(&format!("{command:?}"), &output)
    }

    /// Gives switches and nodes the service address.
    fn set_services(&self) -> Result<(), NetnsError> {
        for front in &self.fronts {
            front.namespace.ip(&self.vip_lines(INTERFACE))?;
        }
        for node in &self.nodes {
            node.namespace.sysctl("net.ipv4.conf.all.arp_ignore", "1")?;
            node.namespace.sysctl("net.ipv4.conf.all.arp_announce", "2")?;
            node.namespace.sysctl("net.ipv4.conf.all.rp_filter", "0")?;
            node.namespace.sysctl(&format!("net.ipv4.conf.{INTERFACE}.rp_filter"), "0")?;
            node.namespace.sysctl("net.ipv4.tcp_tw_reuse", "1")?;
            // Exists since 6.14; it frees an address in TIME_WAIT after a second.
            let _ = node.namespace.sysctl("net.ipv4.tcp_tw_reuse_delay", "1");
            node.namespace.ip(&self.vip_lines("lo"))?;
        }
        Ok(())
    }

    fn vip_lines(&self, interface: &str) -> String {
        format!(
            "addr add {}/32 dev {interface}\naddr add {}/128 dev {interface} nodad preferred_lft 0",
            self.vip4, self.vip6
        )
    }

    fn set_neighbours(&self) -> Result<(), NetnsError> {
        let router = self.router.iter();
        for from in self.hosts().chain(router.clone()) {
            let mut lines = String::new();
            for to in self.hosts().chain(router.clone()) {
                if to.net == from.net && to.mac != from.mac {
                    neighbour(&mut lines, to.v4.into(), to.mac, INTERFACE);
                    neighbour(&mut lines, to.v6.into(), to.mac, INTERFACE);
                }
            }
            if from.net == 1 {
                neighbour(&mut lines, v4(1, ROUTER).into(), mac(1, ROUTER), INTERFACE);
                neighbour(&mut lines, v6(1, ROUTER).into(), mac(1, ROUTER), INTERFACE);
            }
            from.namespace.ip(&lines)?;
        }
        if let Some(router) = &self.router {
            let mut lines = String::new();
            for node in &self.nodes {
                neighbour(&mut lines, node.v4.into(), node.mac, "eth1");
                neighbour(&mut lines, node.v6.into(), node.mac, "eth1");
            }
            router.namespace.ip(&lines)?;
        }
        self.point_clients_at(self.front())
    }

    /// Attaches the pass program to the hub's ports of the switches.
    fn attach_peers(&mut self) -> Result<(), NetnsError> {
        let ports: Vec<String> = self.fronts.iter().map(|f| f.port.clone()).collect();
        for port in ports {
            let index = self.hub.ifindex(&port)?;
            let attached = self.hub.run(|| {
                let index = i32::try_from(index).unwrap_or(i32::MAX);
                let object = ObjectBuilder::default().open_memory(PASS)?.load()?;
                let mut programs = object.progs_mut();
                let program = programs.find(|p| p.name() == "pass");
                program.map_or_else(|| Err(libbpf_rs::Error::from_raw_os_error(2)), |p| p.attach_xdp(index))
            })?;
            let link = attached.map_err(|source| NetnsError::Bpf {
                doing: format!("attaching the passing XDP program to {port} in {}", self.hub.name()),
                source,
            })?;
            self.programs.push(link);
        }
        Ok(())
    }
}

fn v4(net: u8, number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, net, number)
}

fn v6(net: u8, number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd09, 0, 0, u16::from(net), 0, 0, 0, u16::from(number))
}

fn mac(net: u8, number: u8) -> [u8; 6] {
    [2, 0, 0, 9, net, number]
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn neighbour(lines: &mut String, address: IpAddr, mac: [u8; 6], interface: &str) {
    // Writing to a String does not fail.
    let _ = writeln!(lines, "neigh replace {address} lladdr {} dev {interface} nud permanent", mac_text(mac));
}

fn set_offloads(namespace: &Namespace, interface: &str, offloads: Offloads) -> Result<(), NetnsError> {
    let word = |on| if on { "on" } else { "off" };
    let segments = word(offloads.segmentation && offloads.tx_checksum);
    namespace.offloads(
        interface,
        &["tx", word(offloads.tx_checksum), "tso", segments, "gso", segments, "gro", word(offloads.gro)],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_testkit::or_skip;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    /// Transfers data from a server on `at` to a client on `from`. Each server has a port of its own: a program that another
    /// test starts may hold the last one's for a moment.
    fn talk(from: &Host, at: &Host, ip: IpAddr) {
        let listener = at.namespace.run(|| TcpListener::bind((ip, 0))).expect("entered").expect("bound");
        let address = listener.local_addr().expect("an address");
        let server = std::thread::spawn(move || {
            let (mut stream, peer) = listener.accept().expect("a client");
            stream.write_all(&[7; 100_000]).expect("sent");
            peer
        });
        let client = || TcpStream::connect_timeout(&address, Duration::from_secs(5));
        let mut stream = from.namespace.run(client).expect("entered").expect("connected");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("read");
        assert_eq!(bytes, [7; 100_000]);
        let peer = server.join().expect("ended");
        assert!(peer.ip() == IpAddr::V4(from.v4) || peer.ip() == IpAddr::V6(from.v6), "{peer}");
    }

    #[test]
    fn hosts_of_one_bridge_reach_each_other() {
        let Some(topology) = or_skip(Topology::new(&TopologySpec::default())) else { return };
        for at in topology.fronts.iter().chain(&topology.nodes) {
            talk(topology.client(), at, at.v4.into());
            talk(topology.client(), at, at.v6.into());
        }
        for vip in [IpAddr::V4(topology.vip4), IpAddr::V6(topology.vip6)] {
            talk(topology.client(), topology.front(), vip);
        }
        let used = topology.nodes[0].namespace.read_sysctl("net.ipv4.conf.all.arp_ignore").expect("read");
        assert_eq!(used, "1");
    }

    /// A node has the service address too, and accepts packets to its MAC address.
    #[test]
    fn client_traffic_can_be_sent_to_a_node() {
        let Some(topology) = or_skip(Topology::new(&TopologySpec::default())) else { return };
        topology.point_clients_at(&topology.nodes[1]).expect("pointed");
        for vip in [IpAddr::V4(topology.vip4), IpAddr::V6(topology.vip6)] {
            talk(topology.client(), &topology.nodes[1], vip);
        }
    }

    #[test]
    fn nodes_behind_a_router_are_reachable() {
        let spec = TopologySpec { routed: true, backbone_mtu: 1600, nodes: 1, ..TopologySpec::default() };
        let Some(topology) = or_skip(Topology::new(&spec)) else { return };
        let node = &topology.nodes[0];
        for from in [topology.client(), topology.front()] {
            talk(from, node, node.v4.into());
            talk(from, node, node.v6.into());
        }
    }

    #[test]
    fn sizes_are_limited() {
        for (spec, what) in [
            (TopologySpec { fronts: 0, ..TopologySpec::default() }, "switches"),
            (TopologySpec { nodes: 65, ..TopologySpec::default() }, "nodes"),
            (TopologySpec { clients: 0, ..TopologySpec::default() }, "clients"),
        ] {
            let e = Topology::new(&spec).expect_err("a size out of range");
            assert!(e.to_string().contains(what), "{e}");
        }
    }
}
