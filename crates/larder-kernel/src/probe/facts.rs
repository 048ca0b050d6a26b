//! What was found on a machine.

use super::netlink::{self, Address};
use super::{Idle, Subject, kernel};
use crate::bpffs;
use rustix::thread::{CapabilitySet, capabilities};
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Effective capabilities of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// `CAP_NET_ADMIN`
    pub net_admin: bool,
    /// `CAP_BPF`
    pub bpf: bool,
    /// `CAP_PERFMON`
    pub perfmon: bool,
    /// `CAP_NET_RAW`
    pub net_raw: bool,
    /// `CAP_SYS_ADMIN`
    pub sys_admin: bool,
}

/// What an interface can do with XDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Xdp {
    /// In the driver.
    Native,
    /// Only after the driver, on a packet that the kernel has already unpacked.
    Generic,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceFacts {
    /// Bytes.
    pub mtu: u32,
    /// It is up.
    pub up: bool,
    /// `None` if the kernel does not say (before 6.3).
    pub xdp: Option<Xdp>,
    /// Number of the XDP program on it, 0 for none.
    pub xdp_program: u32,
    /// The card puts segments together, which XDP in the driver refuses. `None` if `ethtool` is not there to say.
    pub lro: Option<bool>,
}

/// The way to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Through which interface.
    pub interface: String,
    /// No router in between.
    pub on_link: bool,
}

/// All that is known of a machine. `Err` holds what the system said.
#[derive(Clone, Debug)]
pub struct Facts {
    /// As `uname -r` says.
    pub kernel: String,
    /// See [`Capabilities`].
    pub capabilities: Capabilities,
    /// Type information of the kernel can be read.
    pub btf: Result<(), String>,
    /// Functions of the kernel by name, looked up in its type information; none if that cannot be read.
    pub functions: BTreeMap<String, bool>,
    /// A program can be loaded.
    pub load: Result<(), String>,
    /// `/sys/fs/bpf` is a BPF file system.
    pub bpffs: bool,
    /// `/dev/net/tun` can be opened.
    pub tun: Result<(), String>,
    /// A socket can be put into repair.
    pub tcp_repair: Result<(), String>,
    /// A socket can be destroyed from outside.
    pub sock_destroy: Result<(), String>,
    /// Sockets of MPTCP in this network namespace; `None` if the kernel has none or does not say.
    pub mptcp_sockets: Option<u64>,
    /// Values by name, as read.
    pub sysctls: BTreeMap<String, String>,
    /// The interface asked about; `None` if none was.
    pub interface: Option<Result<InterfaceFacts, String>>,
    /// Addresses of this machine, with their interface.
    pub addresses: Result<Vec<(IpAddr, String)>, String>,
    /// The ways to the nodes asked about.
    pub routes: Vec<(IpAddr, Result<Route, String>)>,
    /// The ways to clients: from a service to an address of nobody's, for each family asked about.
    pub clients: Vec<(IpAddr, Result<Route, String>)>,
    /// How processors without work wait for it.
    pub idle: Idle,
}

impl Facts {
    /// Looks at this machine, in the network namespace of the calling thread.
    pub fn of_this_host(subject: &Subject) -> Self {
        let (btf, functions) = kernel::functions();
        let links = netlink::links();
        let kernel = read("/proc/sys/kernel/osrelease").unwrap_or_default();
        let says_xdp = version(&kernel) >= Some((6, 3));
        let interface = subject.interface.as_deref().map(|name| interface(name, links.as_deref(), says_xdp));
        let name_of = |index: u32| {
            let known = links.as_ref().ok().and_then(|all| all.iter().find(|l| l.index == index));
            known.map_or_else(|| format!("interface {index}"), |l| l.name.clone())
        };
        let addresses = netlink::addresses()
            .map(|all| all.into_iter().map(|Address { ip, index }| (ip, name_of(index))).collect())
            .map_err(|e| e.to_string());
        let route = |to: IpAddr, from: Option<IpAddr>| {
            let found = netlink::route(to, from).map_err(|e| e.to_string());
            (to, found.map(|r| Route { interface: name_of(r.index), on_link: r.on_link }))
        };
        Self {
            kernel,
            capabilities: effective(),
            btf,
            functions,
            load: kernel::load(),
            bpffs: bpffs::is_at_its_place(),
            tun: open_tun(),
            tcp_repair: kernel::tcp_repair().map_err(|e| e.to_string()),
            sock_destroy: netlink::sock_destroy().map_err(|e| e.to_string()),
            mptcp_sockets: read("/proc/thread-self/net/protocols").as_deref().and_then(mptcp_sockets),
            sysctls: sysctls(subject.interface.as_deref()),
            interface,
            addresses,
            routes: subject.nodes.iter().map(|node| route(*node, None)).collect(),
            clients: nobodies(subject).into_iter().map(|(to, from)| route(to, Some(from))).collect(),
            idle: Idle::of_this_host(),
        }
    }

    /// A sysctl as a number.
    pub(super) fn number(&self, name: &str) -> Option<i64> {
        self.sysctls.get(name)?.parse().ok()
    }
}

/// An address for documentation (RFC 5737, RFC 3849) of each family that the services have, and the service's own, from which
/// packets go there.
fn nobodies(subject: &Subject) -> Vec<(IpAddr, IpAddr)> {
    let all: [IpAddr; 2] =
        [Ipv4Addr::new(198, 51, 100, 1).into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()];
    let served = |nobody: IpAddr| {
        let mut services = subject.services.iter().map(|service| service.ip().to_canonical());
        let service = services.find(|ip| ip.is_ipv4() == nobody.is_ipv4() && !ip.is_unspecified())?;
        Some((nobody, service))
    };
    all.into_iter().filter_map(served).collect()
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn effective() -> Capabilities {
    let Ok(sets) = capabilities(None) else { return Capabilities::default() };
    let has = |capability| sets.effective.contains(capability);
    Capabilities {
        net_admin: has(CapabilitySet::NET_ADMIN),
        bpf: has(CapabilitySet::BPF),
        perfmon: has(CapabilitySet::PERFMON),
        net_raw: has(CapabilitySet::NET_RAW),
        sys_admin: has(CapabilitySet::SYS_ADMIN),
    }
}

fn open_tun() -> Result<(), String> {
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    opened.map(|_| ()).map_err(|e| e.to_string())
}

/// Of the table of protocols: name, size of a socket, sockets.
fn mptcp_sockets(protocols: &str) -> Option<u64> {
    let line = protocols.lines().find_map(|line| line.strip_prefix("MPTCP "))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn sysctls(interface: Option<&str>) -> BTreeMap<String, String> {
    let mut names: Vec<String> = [
        "net.core.somaxconn",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.tcp_rfc1337",
        "net.ipv4.tcp_sack",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_timestamps",
        "net.ipv4.tcp_tw_reuse",
        "net.ipv4.tcp_window_scaling",
        "net.netfilter.nf_conntrack_count",
    ]
    .map(str::to_owned)
    .into();
    for scope in std::iter::once("all").chain(interface) {
        for name in ["arp_ignore", "arp_announce", "rp_filter"] {
            names.push(conf(scope, name));
        }
    }
    let value = |name: String| {
        // The name of an interface may hold dots; those of the rest are separators.
        let path = match name.strip_prefix("net.ipv4.conf.").and_then(|rest| rest.rsplit_once('.')) {
            Some((scope, leaf)) => format!("/proc/sys/net/ipv4/conf/{scope}/{leaf}"),
            None => format!("/proc/sys/{}", name.replace('.', "/")),
        };
        read(path).map(|value| (name, value))
    };
    names.into_iter().filter_map(value).collect()
}

/// The name of a setting of an interface, or of `all`.
pub(super) fn conf(scope: &str, name: &str) -> String {
    format!("net.ipv4.conf.{scope}.{name}")
}

/// Major and minor number of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// `says_xdp`: since 6.3 a kernel tells what its drivers can do with XDP; silence then means nothing.
fn interface(
    name: &str,
    links: Result<&[netlink::Link], &std::io::Error>,
    says_xdp: bool,
) -> Result<InterfaceFacts, String> {
    let links = links.map_err(ToString::to_string)?;
    let link = links.iter().find(|l| l.name == name).ok_or("there is no such interface")?;
    let (xdp, xdp_program) = kernel::xdp(link.index);
    let xdp = xdp.or(says_xdp.then_some(Xdp::Generic));
    Ok(InterfaceFacts { mtu: link.mtu, up: link.up, xdp, xdp_program, lro: lro(name) })
}

fn lro(name: &str) -> Option<bool> {
    let output = std::process::Command::new("ethtool").arg("-k").arg(name).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line =
        text.lines().find_map(|line| line.trim().strip_prefix("large-receive-offload:").map(str::trim))?;
    Some(line.starts_with("on"))
}

#[cfg(test)]
mod tests {
    use super::super::Role;
    use super::*;

    #[test]
    fn releases_are_read() {
        for (release, read) in [
            ("6.18.44-fc-v669", Some((6, 18))),
            ("5.10", Some((5, 10))),
            ("6", None),
            ("", None),
            ("99999999999.1", None),
        ] {
            assert_eq!(version(release), read, "{release}");
        }
        assert!(version("6.3.0") >= Some((6, 3)) && version("") < Some((6, 3)));
    }

    #[test]
    fn the_way_to_clients_is_asked_for_each_family_that_is_served() {
        let of = |services: &[&str]| {
            let services = services.iter().map(|service| service.parse().expect("an address")).collect();
            let subject =
                Subject { role: Role::Switch, interface: None, services, nodes: Vec::new(), tunnels: false };
            nobodies(&subject).into_iter().map(|(_, from)| from.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of(&["10.9.0.100:80", "10.9.0.101:80", "[fd09::64]:80"]), ["10.9.0.100", "fd09::64"]);
        assert_eq!(of(&["0.0.0.0:80", "[fd09::64]:80", "[::ffff:10.9.0.9]:80"]), ["10.9.0.9", "fd09::64"]);
        assert_eq!(of(&["[::]:80"]), [""; 0], "nothing is handed over there");
    }

    #[test]
    fn sockets_of_a_protocol_are_counted() {
        let table = "protocol  size sockets  memory press maxhdr\nMPTCPv6   2048      9       1   no       0\n\
            MPTCP     1888      3       0   no       0   yes\n";
        assert_eq!(mptcp_sockets(table), Some(3));
        assert_eq!(mptcp_sockets("protocol  size sockets\nTCP 1 2\n"), None);
    }

    /// No driver is behind the loopback interface.
    #[test]
    fn an_interface_says_what_it_is() {
        let links = netlink::links();
        let lo = interface("lo", links.as_deref(), true).expect("there");
        assert_eq!(lo.xdp, Some(Xdp::Generic));
        assert!(interface("nothing", links.as_deref(), true).is_err());
    }
}
