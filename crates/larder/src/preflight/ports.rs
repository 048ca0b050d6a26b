//! Whether the addresses of a config can be bound, and by whom they are held.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::{Finding, Purpose};
use crate::config::Fault;

/// The kind of socket on an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }

    /// The kernel's lists of sockets, and the state of a socket that is bound to wait for others.
    const fn lists(self) -> ([&'static str; 2], &'static str) {
        match self {
            Self::Tcp => (["/proc/net/tcp", "/proc/net/tcp6"], "0A"),
            Self::Udp => (["/proc/net/udp", "/proc/net/udp6"], "07"),
        }
    }
}

/// An address that a role binds.
#[derive(Clone, Debug)]
pub(super) struct AddressNeed {
    pub(super) key: String,
    pub(super) address: SocketAddr,
    pub(super) transports: &'static [Transport],
}

/// The process that holds an address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Holder {
    Process {
        name: String,
        pid: u32,
    },
    /// This user may not see the process.
    OfUser(u32),
    Unknown,
}

/// The finding on each address that cannot be bound; `config` is the file that the addresses are from.
pub(super) fn check(needs: &[AddressNeed], config: &Path, purpose: Purpose) -> Vec<Finding> {
    let finding = |(i, need): (usize, &AddressNeed)| {
        needs[..i].iter().find_map(|earlier| twice(earlier, need)).or_else(|| {
            need.transports.iter().find_map(|transport| {
                let error = try_bind(need.address, *transport).err()?;
                Some(finding(need, *transport, &error, config, purpose))
            })
        })
    };
    needs.iter().enumerate().filter_map(finding).collect()
}

/// The finding on two addresses of a config of which only one can be bound.
fn twice(earlier: &AddressNeed, need: &AddressNeed) -> Option<Finding> {
    let (a, b) = (earlier.address, need.address);
    let same_ip = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    let same = a.port() == b.port() && a.is_ipv4() == b.is_ipv4() && same_ip;
    if !same || !earlier.transports.iter().any(|transport| need.transports.contains(transport)) {
        return None;
    }
    let what = format!("{b} cannot be bound: {} binds {a}", earlier.key);
    Some(Finding::error(Fault::new(&need.key, what).hint("write another port")))
}

fn finding(
    need: &AddressNeed,
    transport: Transport,
    error: &io::Error,
    config: &Path,
    purpose: Purpose,
) -> Finding {
    let address = need.address;
    let place = match transport {
        Transport::Tcp => address.to_string(),
        Transport::Udp => format!("{address} ({})", transport.name()),
    };
    if error.kind() == ErrorKind::AddrInUse {
        return in_use(need, &place, &holder(address, transport), config, purpose);
    }
    let (why, hint) = match error.kind() {
        ErrorKind::PermissionDenied => (
            "permission denied (low ports need CAP_NET_BIND_SERVICE)".to_owned(),
            format!(
                "run this as the user that starts larder; grant the capability (systemd: \
                 AmbientCapabilities=CAP_NET_BIND_SERVICE), or write a port from {} on",
                unprivileged_port()
            ),
        ),
        ErrorKind::AddrNotAvailable => (
            format!("no interface of this machine has the address {}", address.ip()),
            "write an address that `ip address` shows, or 0.0.0.0 for all of IPv4, or add the address to an interface"
                .to_owned(),
        ),
        _ => (error.to_string(), "write another address".to_owned()),
    };
    Finding::error(Fault::new(&need.key, format!("cannot bind {place}: {why}")).hint(hint))
}

fn in_use(need: &AddressNeed, place: &str, holder: &Holder, config: &Path, purpose: Purpose) -> Finding {
    let fault = |what: String, hint: &str| Fault::new(&need.key, what).hint(hint);
    match holder {
        Holder::Process { name, pid } if name == "larder" => {
            let what = format!("{place} is in use by larder, process {pid}");
            if purpose == Purpose::Check && was_started_with(*pid, config) {
                return Finding::note(fault(what, "a reload of that process keeps the address"));
            }
            if purpose == Purpose::Check {
                let what = format!("{what}, which was not started with this file: a start fails");
                let hint = "write another address, unless the file takes the place of that process's config";
                return Finding::warning(fault(what, hint));
            }
            Finding::error(fault(what, "stop that process or reload it (SIGHUP), or write another address"))
        }
        Holder::Process { name, pid } => {
            let what = format!("cannot bind {place}: the address is in use by {name}, process {pid}");
            Finding::error(fault(what, "stop that process, or write another address"))
        }
        Holder::OfUser(user) if purpose == Purpose::Check => {
            let what = format!("{place} is in use by a process of user {user}, which this user may not see");
            Finding::warning(fault(
                what,
                "if the process is not larder, stop it; as root, this check names it",
            ))
        }
        Holder::OfUser(_) | Holder::Unknown => {
            let what = format!("cannot bind {place}: the address is in use by another process");
            Finding::error(fault(
                what,
                "`ss -lntup` as root names the process: stop it, or write another address",
            ))
        }
    }
}

/// Binds the address as a role does, and lets it go. Nobody can connect meanwhile.
fn try_bind(address: SocketAddr, transport: Transport) -> io::Result<()> {
    match transport {
        Transport::Tcp => {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            Ok(bind(&socket, &address)?)
        }
        Transport::Udp => UdpSocket::bind(address).map(drop),
    }
}

/// Whether a process was started with this file as an argument.
fn was_started_with(pid: u32, file: &Path) -> bool {
    let Ok(file) = file.canonicalize() else { return false };
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let folder = Path::new("/proc").join(pid.to_string()).join("cwd");
    arguments.split(|byte| *byte == 0).any(|argument| {
        let argument = argument.strip_prefix(b"--config=").unwrap_or(argument);
        folder.join(OsStr::from_bytes(argument)).canonicalize().is_ok_and(|named| named == file)
    })
}

/// The lowest port that needs no capability.
fn unprivileged_port() -> u16 {
    let read = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    read.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

/// Finds who holds an address.
fn holder(address: SocketAddr, transport: Transport) -> Holder {
    let (lists, state) = transport.lists();
    let texts = lists.iter().filter_map(|list| fs::read_to_string(list).ok());
    let found = texts.flat_map(|text| rows(&text, state)).find(|row| row.excludes(address));
    let Some(row) = found else { return Holder::Unknown };
    match process_with(row.inode) {
        Some((pid, name)) => Holder::Process { name, pid },
        None => Holder::OfUser(row.user),
    }
}

/// A socket of the kernel's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    local: SocketAddr,
    user: u32,
    inode: u64,
}

impl Row {
    /// Whether nobody can bind `address` while this socket is there.
    fn excludes(self, address: SocketAddr) -> bool {
        let ip = |address: SocketAddr| address.ip().to_canonical();
        let any = self.local.ip().is_unspecified() || address.ip().is_unspecified();
        self.local.port() == address.port() && (any || ip(self.local) == ip(address))
    }
}

/// The sockets in a state, of the text of `/proc/net/tcp` or one like it.
fn rows(text: &str, state: &str) -> Vec<Row> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, found, _, _, _, user, _, inode, ..] = fields[..] else { return None };
        if found != state {
            return None;
        }
        Some(Row { local: address_of(local)?, user: user.parse().ok()?, inode: inode.parse().ok()? })
    };
    text.lines().skip(1).filter_map(row).collect()
}

/// `0100007F:1F90` is 127.0.0.1:8080 on a machine that begins numbers with their lowest byte.
fn address_of(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(words.as_flattened()).ok()?))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// The process that has a socket, as far as this user may see.
fn process_with(inode: u64) -> Option<(u32, String)> {
    let link = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let mut numbers: Vec<u32> =
        processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // Of several, such as a server and its workers, the first is named.
    numbers.sort_unstable();
    let has = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().filter_map(Result::ok);
        files.into_iter().any(|file| fs::read_link(file.path()).is_ok_and(|to| to.to_str() == Some(&link)))
    };
    let pid = numbers.into_iter().find(has)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some((pid, name.trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn need(address: SocketAddr) -> AddressNeed {
        AddressNeed { key: "switch.listen".to_owned(), address, transports: &[Transport::Tcp] }
    }

    fn one(need: &AddressNeed, purpose: Purpose) -> Option<Finding> {
        check(std::slice::from_ref(need), Path::new("/nowhere"), purpose).pop()
    }

    #[test]
    fn addresses_of_which_only_one_can_be_bound_are_found() {
        let port = larder_testkit::free_port();
        let at = |text: &str, transports| AddressNeed {
            key: text.to_owned(),
            address: format!("{text}:{port}").parse().unwrap(),
            transports,
        };
        let (tcp, udp): (&[Transport], &[Transport]) = (&[Transport::Tcp], &[Transport::Udp]);
        let found = |a, b| check(&[a, b], Path::new("/nowhere"), Purpose::Check).len();
        assert_eq!(found(at("127.0.0.1", tcp), at("127.0.0.1", tcp)), 1);
        assert_eq!(found(at("127.0.0.1", tcp), at("0.0.0.0", tcp)), 1);
        assert_eq!(found(at("127.0.0.1", tcp), at("127.0.0.2", tcp)), 0);
        assert_eq!(found(at("127.0.0.1", tcp), at("127.0.0.1", udp)), 0);
        assert_eq!(found(at("127.0.0.1", tcp), at("[::1]", tcp)), 0);
    }

    #[test]
    fn an_address_in_use_is_reported_with_its_holder() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for purpose in [Purpose::Check, Purpose::Start] {
            let found = one(&need(address), purpose).unwrap();
            assert_eq!(found.severity.name(), "error");
            let (said, own) = (format!("{:?}", found.fault), std::process::id());
            assert!(said.contains("in use by") && said.contains(&format!("process {own}")), "{said}");
        }
        // All addresses of the machine include it.
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
        assert!(one(&need(any), Purpose::Check).is_some());
        drop(listener);
        assert_eq!(one(&need(address), Purpose::Check), None);
    }

    #[test]
    fn a_running_larder_is_a_note_for_a_check_and_an_error_for_a_start() {
        let larder = Holder::Process { name: "larder".to_owned(), pid: 7 };
        let of = |holder: &Holder, purpose| {
            in_use(
                &need("127.0.0.1:80".parse().unwrap()),
                "127.0.0.1:80",
                holder,
                Path::new("/nowhere"),
                purpose,
            )
            .severity
            .name()
        };
        assert_eq!((of(&larder, Purpose::Check), of(&larder, Purpose::Start)), ("warning", "error"));
        let hidden = Holder::OfUser(33);
        assert_eq!((of(&hidden, Purpose::Check), of(&hidden, Purpose::Start)), ("warning", "error"));
        assert_eq!(of(&Holder::Unknown, Purpose::Check), "error");
    }

    #[test]
    fn an_address_of_another_machine_is_an_error() {
        // TEST-NET-1 is nobody's.
        let found = one(&need("192.0.2.1:80".parse().unwrap()), Purpose::Check).unwrap();
        assert_eq!(found.severity.name(), "error");
        assert!(
            format!("{:?}", found.fault).contains("no interface of this machine has the address 192.0.2.1")
        );
    }

    #[test]
    fn the_lists_of_sockets_are_read() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                    0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000    33        0 4711 1 x\n   \
                    1: 0100007F:1F91 00000000:0000 01 00000000:00000000 00:00000000 00000000    33        0 4712 1 x\n   \
                    broken\n";
        let expected = Row { local: "127.0.0.1:8080".parse().unwrap(), user: 33, inode: 4711 };
        if cfg!(target_endian = "little") {
            assert_eq!(rows(text, "0A"), [expected]);
            let six = address_of("00000000000000000000000001000000:0050");
            assert_eq!(six, Some("[::1]:80".parse().unwrap()));
        }
        for wrong in ["", "01:1", "0100007F:", "0100007F", "00000000000000000000000001000é00:0050"] {
            assert_eq!(address_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_socket_excludes_its_own_address_and_all_addresses() {
        let row = |local: &str| Row { local: local.parse().unwrap(), user: 0, inode: 0 };
        for (local, wanted, excludes) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.1:80", "0.0.0.0:80", true),
            ("[::]:80", "127.0.0.1:80", true),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80", true),
        ] {
            assert_eq!(row(local).excludes(wanted.parse().unwrap()), excludes, "{local} {wanted}");
        }
    }
}
