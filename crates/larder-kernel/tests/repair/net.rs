//! A client and two hosts with the same address, each in a network namespace. A route of the client determines which
//! host gets its packets.

use larder_kernel::repair;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const PORT: u16 = 80;
/// Timeout of every wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Prints why a test cannot run here, if it cannot.
pub(crate) fn skipped() -> bool {
    let why = match repair::available() {
        Err(why) => why.to_string(),
        Ok(()) if !run(&["-V"]) => "the command ip".to_owned(),
        Ok(()) => return false,
    };
    larder_testkit::skip(&format!("needs {why}"));
    true
}

fn run(args: &[&str]) -> bool {
    Command::new("ip").args(args).stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn ip(args: &str) {
    let words: Vec<&str> = args.split_whitespace().collect();
    assert!(run(&words), "ip {args}");
}

/// A network namespace, removed when dropped.
pub(crate) struct Host {
    name: String,
    handle: File,
}

impl Host {
    fn new(role: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ld{}-r{count}{role}", std::process::id());
        ip(&format!("netns add {name}"));
        let handle = File::open(format!("/run/netns/{name}")).expect("the namespace just made");
        let host = Self { name, handle };
        host.ip("link set lo up");
        host.sysctl("ipv4/tcp_congestion_control", "reno");
        host.sysctl("ipv4/conf/all/rp_filter", "0");
        host.sysctl("ipv4/conf/default/rp_filter", "0");
        host
    }

    pub(crate) fn ip(&self, args: &str) {
        ip(&format!("-n {} {args}", self.name));
    }

    /// Runs `work` in the namespace, on a thread of its own: sockets created there stay there.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(self.handle.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("a namespace of ours");
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    pub(crate) fn sysctl(&self, name: &str, value: &str) {
        self.run(|| std::fs::write(format!("/proc/sys/net/{name}"), value))
            .expect("a setting of a namespace");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        run(&["netns", "del", &self.name]);
    }
}

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// The client, the two hosts, and the address they share.
pub(crate) struct Net {
    pub(crate) client: Host,
    pub(crate) hosts: [Host; 2],
    family: Family,
}

impl Net {
    pub(crate) fn new(family: Family) -> Self {
        let net = Self { client: Host::new("c"), hosts: [Host::new("a"), Host::new("b")], family };
        let flag = net.words().0;
        let (server, client) = (net.server_ip(), net.client_ip());
        net.add_address(&net.client, client);
        for (index, host) in net.hosts.iter().enumerate() {
            let (here, there) = (format!("02:00:00:00:01:0{index}"), format!("02:00:00:00:02:0{index}"));
            net.client.ip(&format!(
                "link add c{index} address {here} type veth peer name wire address {there} netns {}",
                host.name
            ));
            for (end, device) in [(&net.client, format!("c{index}")), (host, "wire".to_owned())] {
                end.ip(&format!("link set {device} up"));
            }
            net.add_address(host, server);
            net.client.ip(&format!("{flag} neigh add {server} lladdr {there} dev c{index} nud permanent"));
            host.ip(&format!("{flag} neigh add {client} lladdr {here} dev wire nud permanent"));
            net.open(index);
        }
        net.point(0);
        net
    }

    fn add_address(&self, host: &Host, address: IpAddr) {
        let (flag, length) = self.words();
        // Until the kernel has checked for duplicates, in the background, no route may have the address as its source.
        let unchecked = if self.family == Family::V6 { "nodad" } else { "" };
        host.ip(&format!("{flag} addr add {address}/{length} dev lo {unchecked}"));
    }

    fn words(&self) -> (&'static str, u8) {
        match self.family {
            Family::V4 => ("-4", 32),
            Family::V6 => ("-6", 128),
        }
    }

    fn server_ip(&self) -> IpAddr {
        match self.family {
            Family::V4 => [10, 9, 0, 100].into(),
            Family::V6 => [0xfd00, 9, 0, 0, 0, 0, 0, 0x100].into(),
        }
    }

    fn client_ip(&self) -> IpAddr {
        match self.family {
            Family::V4 => [10, 9, 2, 2].into(),
            Family::V6 => [0xfd00, 9, 0, 2, 0, 0, 0, 2].into(),
        }
    }

    /// Lets packets of host `index` reach the client.
    pub(crate) fn open(&self, index: usize) {
        let (flag, client, source) = (self.words().0, self.client_ip(), self.server_ip());
        self.hosts[index].ip(&format!("{flag} route replace {client} dev wire src {source}"));
    }

    /// Keeps packets of host `index` from the client, neither ACK nor RST gets out. The guard does this for R4.
    pub(crate) fn shut(&self, index: usize) {
        let (flag, client) = (self.words().0, self.client_ip());
        self.hosts[index].ip(&format!("{flag} route replace blackhole {client}"));
    }

    /// Routes the client's packets to host `index`.
    pub(crate) fn point(&self, index: usize) {
        let (flag, client, server) = (self.words().0, self.client_ip(), self.server_ip());
        self.client.ip(&format!("{flag} route replace {server} dev c{index} src {client}"));
    }

    /// Drops the client's packets silently.
    pub(crate) fn cut(&self) {
        let (flag, server) = (self.words().0, self.server_ip());
        self.client.ip(&format!("{flag} route replace blackhole {server}"));
    }

    pub(crate) fn listen(&self, index: usize) -> TcpListener {
        let address = SocketAddr::new(self.server_ip(), PORT);
        self.hosts[index].run(|| TcpListener::bind(address)).expect("a free port")
    }

    /// Returns both ends of a connection of the client; `mss` is offered by the client.
    pub(crate) fn connect(&self, listener: &TcpListener, mss: Option<u32>) -> (TcpStream, TcpStream) {
        let address = SocketAddr::new(self.server_ip(), PORT);
        let client = self.client.run(|| {
            let socket =
                socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)
                    .expect("a socket");
            if let Some(mss) = mss {
                socket.set_tcp_mss(mss).expect("a segment size");
            }
            socket.connect_timeout(&address.into(), PATIENCE).expect("the listener's host");
            TcpStream::from(socket)
        });
        let (server, _) = listener.accept().expect("the client's connection");
        for end in [&client, &server] {
            end.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            end.set_write_timeout(Some(PATIENCE)).expect("a timeout");
            end.set_nodelay(true).expect("an option");
        }
        (client, server)
    }
}
