//! `[switch.handoff]`, and `handoff` of a node.

use std::path::{Path, PathBuf};

use larder_core::Bytes;
use larder_handoff::channel::identity::Identity;
use larder_switch::{Encapsulation, HandoffConfig, Handshake, MechanismSetting, NodeHandoff};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::sections::switch::nodes::host_and_port;
use crate::config::text::{Size, Span};
use crate::config::values::no_key;
use crate::config::words::{Word, choice};

keys! {
    /// `[switch.handoff]`.
    table HandoffSection, handoff = HandoffConfig::default();

    /// Mechanism by which connections reach nodes. "relay": two connections. "splice": whole connections, relayed in
    /// the kernel. "cookie": the node's kernel completes the handshake, and the node replies to the client directly.
    /// "repair": the socket's state moves to the node. "auto": the best mechanism that this machine and the node
    /// support. If a mechanism is not possible, the connection is relayed.
    mechanism: Word<MechanismSetting> = Word(handoff.setting);
    /// Party that completes the handshake under "repair". "plane": the forwarding plane, with a cookie and without a
    /// socket on this host. "stack": this host's TCP stack, from whose socket the state is read.
    handshake: Word<Handshake> = Word(handoff.handshake);
    /// Name of this switch's objects in the kernel, unique on its machine: 1 to 32 letters, digits, "-" and "_".
    name: String = handoff.name;
    /// Network interface that clients use. Unset: the interface with the first listen address, or the only interface.
    interface: Option<String>, example "eth0";
    /// File with the secret key of this switch, readable by its owner only. `larder keys new FILE` makes it. Required
    /// for cookie, repair and auto.
    identity: Option<String>, example "/etc/larder/switch.key";
    /// File with 32 secret bytes in base64, from which the keys of cookies are derived. `larder keys new FILE` makes
    /// it. Switches that may receive each other's connections share it. Unset: derived from `identity`.
    secret: Option<String>, example "/etc/larder/cookies.key";
    /// Encapsulation of packets to nodes: "l2" (none, same network), "ipip", "gue" or "vxlan".
    forward: ForwardKind = ForwardKind::L2;
    /// UDP port of the nodes for gue and vxlan.
    forward_port: u16 = 4789, range "1 to 65535";
    /// Network identifier for vxlan.
    vni: u32 = 0, range "0 to 16777215";
    /// Whether the forwarding plane may reuse a decision for the same target.
    fast: bool = handoff.fast;
    /// Longest time for which a decision is reused.
    fast_age: Span = Span(handoff.fast_age), range "1ms to 10s";
    /// Number of connections in the flow table. Beyond it, the least recently used connection is evicted. A reload
    /// does not resize an existing table; drain and restart the switch to change it.
    flows_max: u32 = handoff.flows_max, range "1024 to 16777216";
    /// Number of targets whose decisions may be reused. A reload does not resize an existing table.
    targets_max: u32 = handoff.targets_max, range "1024 to 16777216";
    /// Number of connections that may wait for their decision. Further connections are relayed.
    hold_max: usize = handoff.hold_max, range "1 to 65536";
    /// Number of packets that are kept for a connection that waits.
    hold_packets: u32 = handoff.hold_packets, range "1 to 1024";
    /// Time to wait for the rest of a request's header. After it, the switch accepts the connection itself.
    header_wait: Span = Span(handoff.header_wait), range "0s to 1s";
    /// Time for which a key makes cookies. The key is accepted for half as long again.
    key_life: Span = Span(handoff.key_life), range "10s to 1h";
    /// Time without packets after which a handed-off connection no longer counts as load, until its next request.
    idle_after: Span = Span(handoff.idle_after), range "10ms to 1h";
    /// Size of a reply below which a connection is relayed instead of moving its accepted socket.
    repair_min: Size = Size(Bytes(handoff.repair_bytes_min));
    /// Share of later requests on kept-alive connections that may belong to other nodes. Beyond it, the route is
    /// relayed.
    locality_lost_max: f64 = handoff.locality_lost_max, range "0 to 1";
    /// Whether TLS is passed through to nodes, by server name.
    tls: bool = handoff.tls;
}

/// `handoff` of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeerHandoff {
    /// Address of the node's control channel: "address:port" or "name:port". Required.
    #[schemars(example = &"10.0.0.11:7946")]
    pub(crate) control: String,
    /// Public key of the node, as `larder keys show FILE` prints it. Required.
    #[schemars(example = &"hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=")]
    pub(crate) key: String,
}

choice! {
    /// The words of `switch.handoff.forward`.
    ForwardKind { L2, Ipip, Gue, Vxlan }
}

/// Validates handoff at the switch. The key is read, so that `larder check` finds its faults. If the file does not exist
/// yet, the fault goes to `absent`, and a random key takes its place.
pub(crate) fn handoff(raw: &HandoffSection, absent: &mut Vec<Fault>) -> Result<HandoffConfig, Fault> {
    let mut config = HandoffConfig {
        setting: raw.mechanism.0,
        handshake: raw.handshake.0,
        name: raw.name.clone(),
        interface: raw.interface.clone(),
        identity: None,
        secret: raw.secret.as_ref().map(PathBuf::from),
        forward: forward(raw),
        fast: raw.fast,
        fast_age: raw.fast_age.0,
        flows_max: raw.flows_max,
        targets_max: raw.targets_max,
        hold_max: raw.hold_max,
        hold_packets: raw.hold_packets,
        header_wait: raw.header_wait.0,
        key_life: raw.key_life.0,
        idle_after: raw.idle_after.0,
        repair_bytes_min: raw.repair_min.0.get(),
        locality_lost_max: raw.locality_lost_max,
        tls: raw.tls,
        ..HandoffConfig::default()
    };
    if config.hands_off() {
        let Some(path) = &raw.identity else {
            return Err(Fault::new(
                "switch.handoff.identity",
                "missing: nodes identify the switch by its key",
            )
            .hint("make a key with `larder keys new FILE`, and name the file here"));
        };
        let path = Path::new(path);
        let missing = no_key("switch.handoff.identity", path);
        let identity = if missing.is_some() { Identity::generate() } else { Identity::load(path) };
        config.identity = Some(identity.map_err(|error| {
            let hint = "the file holds 32 bytes in base64, as `larder keys new FILE` writes them";
            Fault::new("switch.handoff.identity", error.to_string()).hint(hint).of_machine()
        })?);
        absent.extend(missing);
    }
    Ok(config)
}

fn forward(raw: &HandoffSection) -> Encapsulation {
    match raw.forward {
        ForwardKind::L2 => Encapsulation::L2,
        ForwardKind::Ipip => Encapsulation::Ipip,
        ForwardKind::Gue => Encapsulation::Gue(raw.forward_port),
        ForwardKind::Vxlan => Encapsulation::Vxlan { port: raw.forward_port, vni: raw.vni },
    }
}

/// Validates the handoff settings of the node at `key`.
pub(crate) fn peer(key: &str, raw: &PeerHandoff) -> Result<NodeHandoff, Fault> {
    host_and_port(&raw.control).map_err(|what| {
        Fault::new(format!("{key}.handoff.control"), format!("'{}' {what}", raw.control))
            .hint("write \"10.0.0.11:7946\" or \"name:7946\"")
    })?;
    let public = raw.key.parse().map_err(|error| {
        Fault::new(format!("{key}.handoff.key"), format!("{error}"))
            .hint("the public key that `larder keys show FILE` prints on the node")
    })?;
    Ok(NodeHandoff { control: raw.control.clone(), key: public })
}

#[cfg(test)]
mod tests {
    use crate::config::Written;
    use larder_handoff::channel::identity::Identity;
    use larder_switch::Encapsulation;
    use larder_switch::Handshake;
    use larder_switch::MechanismSetting;

    #[test]
    fn every_key_reaches_the_switch() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("switch.key");
        let identity = Identity::generate().expect("randomness");
        identity.save(&file).expect("saves");
        let key = identity.public();
        let text = format!(
            "[switch]\nlisten = \"127.0.0.1:1\"\n\
             nodes = [{{ address = \"127.0.0.1:2\", handoff = {{ control = \"127.0.0.1:3\", key = \"{key}\" }} }}]\n\
             [switch.handoff]\nmechanism = \"cookie\"\nhandshake = \"stack\"\nname = \"edge\"\ninterface = \"eth0\"\nidentity = {file:?}\n\
             forward = \"vxlan\"\nforward_port = 99\nvni = 7\nfast = false\nfast_age = \"5ms\"\nflows_max = 4096\n\
             targets_max = 2048\nhold_max = 7\nhold_packets = 8\nheader_wait = \"3ms\"\nkey_life = \"20s\"\n\
             idle_after = \"2s\"\nrepair_min = \"1KB\"\nlocality_lost_max = 0.5\ntls = false\n"
        );
        let switch = Written::parse("f", &text).unwrap().validate().unwrap().switch.unwrap().switch;
        let handoff = switch.handoff;
        assert_eq!(
            (handoff.setting, handoff.forward),
            (MechanismSetting::Cookie, Encapsulation::Vxlan { port: 99, vni: 7 })
        );
        assert_eq!(handoff.handshake, Handshake::Stack);
        assert_eq!(
            (handoff.flows_max, handoff.targets_max, handoff.hold_max, handoff.hold_packets),
            (4096, 2048, 7, 8)
        );
        assert_eq!(
            (&*handoff.name, handoff.interface.as_deref(), handoff.fast, handoff.tls),
            ("edge", Some("eth0"), false, false)
        );
        assert_eq!(handoff.identity.map(|identity| identity.public()), Some(key));
        assert_eq!(switch.nodes[0].handoff.as_ref().map(|node| node.key), Some(key));
    }

    #[test]
    fn each_mistake_is_named() {
        const HEAD: &str =
            "[switch]\nlisten = \"127.0.0.1:1\"\nnodes = [\"127.0.0.1:2\"]\n[switch.handoff]\n";
        for (line, key, word) in [
            ("mechanism = \"cooky\"", "mechanism", "did you mean 'cookie'"),
            ("handshake = \"stak\"", "handshake", "did you mean 'stack'"),
            ("mechanism = \"auto\"", "identity", "larder keys new"),
            ("forward = \"gre\"", "forward", "known here"),
            ("vni = 16777216", "vni", "16777215"),
            ("forward_port = 0", "forward_port", "1 to 65535"),
            ("fast_age = \"0s\"", "fast_age", "1ms to"),
            ("flows_max = 1", "flows_max", "1024 to"),
            ("name = \"a b\"", "name", "letters"),
            ("locality_lost_max = 2.0", "locality_lost_max", "0 to 1"),
        ] {
            let text = format!("{HEAD}{line}\n");
            let error = Written::parse("f", &text).and_then(|written| written.validate()).unwrap_err();
            assert_eq!(error.key, format!("switch.handoff.{key}"), "{line}\n{error}");
            assert!(error.to_string().contains(word), "{line}\n{error}");
        }
    }

    #[test]
    fn a_key_that_is_not_there_yet_stops_the_start_and_not_the_check() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("switch.key");
        let text = format!(
            "[switch]\nlisten = \"127.0.0.1:1\"\nnodes = [\"127.0.0.1:2\"]\n\
             [switch.handoff]\nmechanism = \"auto\"\nidentity = {file:?}\n"
        );
        let written = Written::parse("f", &text).unwrap();
        let config = written.validate().unwrap();
        let missing: Vec<String> =
            config.absent().map(|fault| written.place(fault.clone()).to_string()).collect();
        assert!(missing.len() == 1 && missing[0].contains("larder keys new"), "{missing:?}");
        assert_eq!(written.present(&config).unwrap_err().line, Some(6));
        Identity::generate().unwrap().save(&file).unwrap();
        let config = written.validate().unwrap();
        assert!(written.present(&config).is_ok());
        std::fs::write(&file, "no key").unwrap();
        assert!(written.validate().is_err(), "a wrong one is found by the check");
    }
}
