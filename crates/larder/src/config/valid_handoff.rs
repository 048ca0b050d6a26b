//! `[switch.handoff]`, checked and turned into what the front is told.

use std::path::{Path, PathBuf};

use larder_front::{Encapsulation, HandoffConfig, Handshake, MechanismSetting, NodeHandoff};
use larder_handoff::channel::identity::Identity;

use super::error::Fault;
use super::explain::suggest;
use super::raw_handoff::{RawHandoff, RawPeerHandoff};
use super::valid::no_key;
use super::valid_switch::host_and_port;

const FORWARDS: [&str; 4] = ["l2", "ipip", "gue", "vxlan"];

/// Handoff at the switch. Ranges are checked by the front. The key is read here, so that `larder check` finds it wrong; if
/// there is none yet, that is said in `absent`, and one that nobody knows stands in for it.
pub(super) fn handoff(raw: &RawHandoff, absent: &mut Vec<Fault>) -> Result<HandoffConfig, Fault> {
    let setting = mechanism("switch.handoff.mechanism", &raw.mechanism)?;
    let handshake = Handshake::ALL.into_iter().find(|who| who.name() == raw.handshake).ok_or_else(|| {
        let what = format!("unknown value '{}'", raw.handshake.escape_debug());
        let hint = suggest(&raw.handshake, &Handshake::ALL.map(Handshake::name));
        Fault::new("switch.handoff.handshake", what).hint(hint)
    })?;
    let mut config = HandoffConfig {
        setting,
        handshake,
        name: raw.name.clone(),
        interface: raw.interface.clone(),
        identity: None,
        secret: raw.secret.as_ref().map(PathBuf::from),
        forward: forward(raw)?,
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
                "missing: nodes must know who hands connections to them",
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

/// The mechanism that `word` names.
pub(super) fn mechanism(key: &str, word: &str) -> Result<MechanismSetting, Fault> {
    word.parse().map_err(|_| {
        let what = format!("unknown value '{}'", word.escape_debug());
        Fault::new(key, what).hint(suggest(word, &MechanismSetting::ALL.map(MechanismSetting::name)))
    })
}

fn forward(raw: &RawHandoff) -> Result<Encapsulation, Fault> {
    let key = "switch.handoff.forward";
    if raw.vni >= 1 << 24 {
        return Err(
            Fault::new("switch.handoff.vni", format!("{} is out of range", raw.vni)).hint("0 to 16777215")
        );
    }
    if raw.forward_port == 0 {
        return Err(
            Fault::new("switch.handoff.forward_port", "0 is no port").hint("1 to 65535; 4789 for vxlan")
        );
    }
    match raw.forward.as_str() {
        "l2" => Ok(Encapsulation::L2),
        "ipip" => Ok(Encapsulation::Ipip),
        "gue" => Ok(Encapsulation::Gue(raw.forward_port)),
        "vxlan" => Ok(Encapsulation::Vxlan { port: raw.forward_port, vni: raw.vni }),
        other => Err(Fault::new(key, format!("unknown value '{}'", other.escape_debug()))
            .hint(suggest(other, &FORWARDS))),
    }
}

/// How the node at `key` takes connections.
pub(super) fn peer(key: &str, raw: &RawPeerHandoff) -> Result<NodeHandoff, Fault> {
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
    use super::super::Written;
    use larder_front::{Encapsulation, Handshake, MechanismSetting};
    use larder_handoff::channel::identity::Identity;

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
            ("forward_port = 0", "forward_port", "no port"),
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
