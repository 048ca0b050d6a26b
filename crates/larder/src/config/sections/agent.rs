//! `[agent]` and `[node.handoff]`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use larder_handoff::channel::identity::PublicKey;
use larder_handoff::channel::server::SWITCHES_MAX;
use larder_kernel::abi::SERVICES_MAX;

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::text::{Span, Texts};
use crate::config::values::{addresses, node_name};
use crate::config::words::choice;

keys! {
    /// `[agent]`.
    table AgentSection;

    /// Name of the node. It must be unique on its machine, because the kernel programs carry it.
    name: String = "node".to_owned();
    /// Address of the control channel, which switches connect to: "address:port". Required.
    listen: Texts, example "10.0.0.11:7946";
    /// File with the secret key of this node, readable by its owner only. `larder keys new FILE` makes it. Required.
    identity: String, example "/etc/larder/node.key";
    /// Public keys of the permitted switches, 1 to 64, as `larder keys show FILE` prints them. Required. A reload
    /// applies this key alone; it closes the channel of a switch whose key was removed.
    switches: Texts, example "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
    /// Network interface that receives clients' packets from the switch, and sends replies to clients. Required.
    interface: String, example "eth0";
    /// Service addresses that clients connect to, as "address:port", 1 to 64. They belong to the switch, and this
    /// machine has them too. Required.
    services: Texts, example "10.9.0.100:80";
}

keys! {
    /// `[node.handoff]`.
    table NodeHandoffSection;

    /// Address of the control channel, which switches connect to: "address:port". Required.
    listen: Texts, example "10.0.0.11:7946";
    /// File with the secret key of this node, readable by its owner only. `larder keys new FILE` makes it. Required.
    identity: String, example "/etc/larder/node.key";
    /// Public keys of the permitted switches, 1 to 64, as `larder keys show FILE` prints them. Required. If a reload
    /// removes a key, the channel of that switch is closed.
    switches: Texts, example "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=", reload true;
    /// Network interface that receives clients' packets from the switch, and sends replies to clients. Required.
    interface: String, example "eth0";
    /// Service addresses that clients connect to, as "address:port", 1 to 64. They belong to the switch, and this
    /// machine has them too. `node.listen` must include them. Required.
    services: Texts, example "10.9.0.100:80";
    /// Whether the node accepts connections by `repair` (TCP_REPAIR), if the machine supports it.
    repair: bool = true;
    /// Treatment of a later request on a handed-off connection, if its target is not in memory and the disk is busy.
    /// "forward" asks the switch which node has the target, and may fetch the reply there (extended LARD). "serve"
    /// reads the target here.
    later: LaterRequests = LaterRequests::Forward;
    /// Longest wait for the switch's answer under later = "forward". After it, this node serves the request.
    later_wait: Span = Span(Duration::from_millis(2)), range "1ms to 1s";
}

choice! {
    /// The words of `node.handoff.later`.
    LaterRequests { Serve, Forward }
}

/// `[agent]`, valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentRole {
    pub(crate) name: String,
    pub(crate) handoff: HandoffRole,
}

/// Handoff at a node, valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HandoffRole {
    pub(crate) listen: SocketAddr,
    /// File with the secret key. Read when the role starts.
    pub(crate) identity: PathBuf,
    pub(crate) switches: Vec<PublicKey>,
    pub(crate) interface: String,
    pub(crate) services: Vec<SocketAddr>,
    /// Whether this process accepts restored connections, if the machine supports it.
    pub(crate) repair: bool,
    /// Longest wait for the location of a target at another node; `None` if this process does not fetch from other nodes.
    pub(crate) lateral: Option<Duration>,
}

/// Keys of both sections.
struct Shared<'a> {
    section: &'static str,
    listen: &'a Texts,
    identity: &'a str,
    switches: &'a Texts,
    interface: &'a str,
    services: &'a Texts,
}

pub(crate) fn agent(raw: &AgentSection) -> Result<AgentRole, Fault> {
    let AgentSection { name, listen, identity, switches, interface, services } = raw;
    node_name("agent.name", name)?;
    let shared = Shared { section: "agent", listen, identity, switches, interface, services };
    // A server in another process has no use for a socket of this one.
    Ok(AgentRole { name: name.clone(), handoff: shared.valid(false, None)? })
}

/// Validates handoff at a node. `node_listen` is the address where the node accepts connections.
pub(crate) fn handoff(
    raw: &NodeHandoffSection,
    node_listen: Option<SocketAddr>,
) -> Result<HandoffRole, Fault> {
    let NodeHandoffSection { listen, identity, switches, interface, services, repair, later, later_wait } =
        raw;
    let shared = Shared { section: "node.handoff", listen, identity, switches, interface, services };
    let lateral = (*later == LaterRequests::Forward).then_some(later_wait.0);
    let role = shared.valid(*repair, lateral)?;
    let Some(node_listen) = node_listen else {
        let what = "missing: switches hand off connections without TLS";
        return Err(Fault::new("node.listen", what).hint("write listen = \"0.0.0.0:80\""));
    };
    if let Some(deaf) = role.services.iter().find(|service| !takes_in(node_listen, **service)) {
        let what = format!("the node does not listen on {deaf}, but on {node_listen}");
        return Err(Fault::new("node.handoff.services", what)
            .hint(format!("write node.listen = \"{deaf}\", or \"0.0.0.0:{}\"", deaf.port())));
    }
    Ok(role)
}

/// Whether a connection to `service` arrives at a socket that listens on `listen`.
fn takes_in(listen: SocketAddr, service: SocketAddr) -> bool {
    let any = listen.ip().is_unspecified() && (listen.is_ipv6() || service.is_ipv4());
    listen.port() == service.port() && (any || listen.ip() == service.ip())
}

impl Shared<'_> {
    fn valid(&self, repair: bool, lateral: Option<Duration>) -> Result<HandoffRole, Fault> {
        let key = |name: &str| format!("{}.{name}", self.section);
        let missing = |name: &str, what: &str, hint: &str| {
            Err(Fault::new(key(name), format!("missing: {what}")).hint(hint.to_owned()))
        };
        let listen = addresses(&key("listen"), self.listen, "10.0.0.11:7946")?;
        let [listen] = listen[..] else {
            return Err(Fault::new(key("listen"), "several addresses: switches connect to one")
                .hint("write one \"address:port\""));
        };
        if self.identity.is_empty() {
            return missing(
                "identity",
                "the file with this node's secret key",
                "larder keys new FILE makes one",
            );
        }
        if self.interface.is_empty() {
            return missing(
                "interface",
                "the network interface of clients' packets",
                "write interface = \"eth0\"",
            );
        }
        // IFNAMSIZ, with the byte that ends the name.
        if self.interface.len() > 15 || !self.interface.bytes().all(|b| b.is_ascii_graphic() && b != b'/') {
            let what = format!("'{}' cannot be an interface's name", self.interface.escape_debug());
            return Err(
                Fault::new(key("interface"), what).hint("1 to 15 printable characters, as in: ip link")
            );
        }
        Ok(HandoffRole {
            listen,
            identity: PathBuf::from(self.identity),
            switches: self.switches()?,
            interface: self.interface.to_owned(),
            services: self.services()?,
            repair,
            lateral,
        })
    }

    fn switches(&self) -> Result<Vec<PublicKey>, Fault> {
        let key = format!("{}.switches", self.section);
        if self.switches.is_empty() || self.switches.0.len() > SWITCHES_MAX {
            return Err(Fault::new(key, format!("the number of public keys is {}", self.switches.0.len()))
                .hint(format!("1 to {SWITCHES_MAX}; larder keys show FILE prints one, on the switch")));
        }
        let parse = |text: &String| {
            text.parse().map_err(|error| {
                Fault::new(&key, format!("'{}' is not a public key: {error}", text.escape_debug()))
                    .hint("larder keys show FILE prints one, on the switch")
            })
        };
        let keys = self.switches.0.iter().map(parse).collect::<Result<Vec<PublicKey>, Fault>>()?;
        once(&key, &keys)?;
        Ok(keys)
    }

    fn services(&self) -> Result<Vec<SocketAddr>, Fault> {
        let key = format!("{}.services", self.section);
        if self.services.is_empty() || self.services.0.len() > usize::from(SERVICES_MAX) {
            return Err(Fault::new(key, format!("the number of addresses is {}", self.services.0.len()))
                .hint(format!("1 to {SERVICES_MAX}, each \"address:port\", such as \"10.9.0.100:80\"")));
        }
        let parse = |text: &String| {
            let address = text.parse().ok().filter(|address: &SocketAddr| {
                address.port() != 0 && !address.ip().is_unspecified() && !address.ip().is_multicast()
            });
            address.ok_or_else(|| {
                Fault::new(
                    &key,
                    format!("'{}' is not an address that clients can connect to", text.escape_debug()),
                )
                .hint("write \"10.9.0.100:80\" or \"[2001:db8::100]:80\"")
            })
        };
        let services = self.services.0.iter().map(parse).collect::<Result<Vec<SocketAddr>, Fault>>()?;
        once(&key, &services)?;
        Ok(services)
    }
}

fn once<T: PartialEq + ToString>(key: &str, list: &[T]) -> Result<(), Fault> {
    let twice = (1..list.len()).find(|&at| list[..at].contains(&list[at]));
    let Some(twice) = twice.map(|at| list[at].to_string()) else { return Ok(()) };
    Err(Fault::new(key, format!("{twice} is given twice")).hint("name each once"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::ConfigError;
    use crate::config::Written;

    const KEY: &str = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";

    fn read(text: &str) -> Result<Config, ConfigError> {
        Written::parse("f", text).and_then(|written| written.validate())
    }

    fn section(head: &str, change: (&str, &str)) -> String {
        let keys = [
            ("listen", "\"10.0.0.11:7946\"".to_owned()),
            ("identity", "\"k\"".to_owned()),
            ("switches", format!("\"{KEY}\"")),
            ("interface", "\"eth0\"".to_owned()),
            ("services", "[\"10.9.0.100:80\", \"[2001:db8::100]:80\"]".to_owned()),
        ];
        let line = |(key, value): (&str, String)| {
            let value = if key == change.0 { change.1.to_owned() } else { value };
            format!("{key} = {value}\n")
        };
        let known: String = keys.into_iter().map(line).collect();
        format!("{head}\n{known}")
    }

    #[test]
    fn every_key_reaches_the_role() {
        let expected = HandoffRole {
            listen: "10.0.0.11:7946".parse().unwrap(),
            identity: PathBuf::from("k"),
            switches: vec![KEY.parse().unwrap()],
            interface: "eth0".to_owned(),
            services: vec!["10.9.0.100:80".parse().unwrap(), "[2001:db8::100]:80".parse().unwrap()],
            repair: false,
            lateral: None,
        };
        let text = section("[agent]\nname = \"a\"", ("", ""));
        let agent = AgentRole { name: "a".to_owned(), handoff: expected.clone() };
        assert_eq!(read(&text).unwrap().agent, Some(agent));

        let node = "[node]\nlisten = \"[::]:80\"\nroot = \"/\"\n";
        let text = section(&format!("{node}[node.handoff]"), ("", ""));
        let handoff = |text: &str| read(text).unwrap().node.unwrap().handoff;
        assert_eq!(
            handoff(&text),
            Some(HandoffRole { repair: true, lateral: Some(Duration::from_millis(2)), ..expected.clone() })
        );
        assert_eq!(handoff(&format!("{text}repair = false\nlater = \"serve\"\n")), Some(expected));
        for wait in ["0s", "2s"] {
            let error = read(&format!("{text}later_wait = \"{wait}\"\n")).unwrap_err();
            assert_eq!(&*error.key, "node.handoff.later_wait");
        }
        let error = read(&format!("{text}later = \"fetch\"\n")).unwrap_err();
        assert_eq!((&*error.key, error.to_string().contains("forward")), ("node.handoff.later", true));
        assert_eq!(handoff(node), None);
    }

    #[test]
    fn a_service_must_be_where_the_node_listens() {
        let listens = |listen: &str, service: &str| {
            let head = format!("[node]\nlisten = \"{listen}\"\nroot = \"/\"\n[node.handoff]");
            read(&section(&head, ("services", &format!("\"{service}\"")))).is_ok()
        };
        assert!(listens("10.9.0.100:80", "10.9.0.100:80"));
        assert!(listens("0.0.0.0:80", "10.9.0.100:80"));
        assert!(listens("[::]:80", "10.9.0.100:80"));
        assert!(!listens("0.0.0.0:80", "[2001:db8::100]:80"));
        assert!(!listens("10.9.0.101:80", "10.9.0.100:80"));
        assert!(!listens("0.0.0.0:8080", "10.9.0.100:80"));
    }

    #[test]
    fn each_mistake_is_named_with_its_line() {
        let long = format!("[{}]", format!("\"{KEY}\", ").repeat(65));
        let many: String = (1..66).map(|port| format!("\"10.9.0.100:{port}\",")).collect();
        let many = format!("[{many}]");
        for (line, key, value, word) in [
            (2, "listen", "[]", "missing"),
            (2, "listen", "[\"10.0.0.1:1\", \"10.0.0.1:2\"]", "one"),
            (3, "identity", "\"\"", "larder keys new"),
            (4, "switches", "[]", "1 to 64"),
            (4, "switches", &*long, "1 to 64"),
            (4, "switches", "\"AAAA\"", "32 bytes"),
            (4, "switches", "\"key\"", "base64"),
            (4, "switches", &format!("[\"{KEY}\", \"{KEY}\"]"), "twice"),
            (5, "interface", "\"\"", "missing"),
            (5, "interface", "\"an-interface-too-long\"", "1 to 15"),
            (5, "interface", "\"a/b\"", "1 to 15"),
            (6, "services", "[]", "1 to 64"),
            (6, "services", &*many, "1 to 64"),
            (6, "services", "\"10.9.0.100\"", "10.9.0.100:80"),
            (6, "services", "\"0.0.0.0:80\"", "10.9.0.100:80"),
            (6, "services", "[\"10.9.0.100:80\", \"10.9.0.100:80\"]", "twice"),
        ] {
            let error = read(&section("[agent]", (key, value))).unwrap_err();
            assert_eq!((error.line, &*error.key), (Some(line), &*format!("agent.{key}")), "{value}\n{error}");
            assert!(error.to_string().contains(word), "{value}\n{error}");
        }
        let error = read(&section("[agent]\nname = \"a b\"", ("", ""))).unwrap_err();
        assert_eq!((error.line, &*error.key), (Some(2), "agent.name"));
    }
}
