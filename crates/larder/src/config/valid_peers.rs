//! `[node.peers]`, checked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use larder_core::Bytes;
use larder_core::peers::{PressSettings, SharingSettings};
use larder_peers::{Name, Seed};

use super::error::Fault;
use super::raw_node::RawNode;
use super::raw_peers::RawPeers;
use super::text::Texts;
use super::valid::{addresses, in_range};
use super::valid_peers_handoff::{PeersHandoffRole, handoff};
use super::valid_peers_policy::{PeersPolicy, policy};

/// Seeds at most.
const SEEDS_MAX: usize = 256;

/// How a node takes part in a cluster of equal nodes, valid.
#[derive(Clone, Debug)]
pub(crate) struct PeersRole {
    pub(crate) name: Name,
    pub(crate) listen: SocketAddr,
    pub(crate) advertise: Option<SocketAddr>,
    /// File with the cluster's secret. Read when the role starts.
    pub(crate) secret: PathBuf,
    pub(crate) seeds: Vec<Seed>,
    pub(crate) policy: PeersPolicy,
    pub(crate) head_timeout: Duration,
    pub(crate) handoff: Option<PeersHandoffRole>,
}

impl PeersRole {
    /// The largest object that a node of this cluster keeps.
    pub(super) fn object_max(&self) -> Bytes {
        self.policy.large_min().map_or(Bytes(u64::MAX), |large_min| Bytes(large_min.0 - 1))
    }
}

pub(super) fn peers(
    raw: &RawPeers,
    name: &str,
    memory: Bytes,
    clients: Option<SocketAddr>,
) -> Result<PeersRole, Fault> {
    const EXAMPLE: &str = "10.0.0.11:7950";
    let [listen] = addresses("node.peers.listen", &raw.listen, EXAMPLE)?[..] else {
        return Err(Fault::new("node.peers.listen", "a node listens to peers on one address")
            .hint("write one \"address:port\""));
    };
    let advertise = match &raw.advertise {
        Some(text) => {
            let texts = Texts(vec![text.clone()]);
            addresses("node.peers.advertise", &texts, EXAMPLE)?.first().copied()
        }
        None => None,
    };
    if advertise.unwrap_or(listen).ip().is_unspecified() {
        return Err(Fault::new("node.peers.advertise", "peers must be told an address of this node")
            .hint(format!("write the address that peers reach it by, such as \"{EXAMPLE}\"")));
    }
    if raw.secret.is_empty() {
        return Err(Fault::new("node.peers.secret", "peers must share a secret")
            .hint("name a file made by `larder keys new FILE`, the same on all nodes"));
    }
    if name == RawNode::default().name {
        return Err(Fault::new("node.name", "peers are known by name, and this one has none of its own")
            .hint("write a name that no other node of the cluster has"));
    }
    let name =
        name.parse().map_err(|error| Fault::new("node.name", format!("no name for peers: {error}")))?;
    let policy = policy(raw, memory)?;
    // Only PRESS serves what is large where it is asked for.
    let large_min = policy.large_min().unwrap_or(Bytes(u64::MAX));
    let handoff = handoff(raw, clients, advertise.unwrap_or(listen), large_min)?;
    Ok(PeersRole {
        name,
        listen,
        advertise,
        secret: PathBuf::from(&raw.secret),
        seeds: seeds(&raw.seeds)?,
        policy,
        head_timeout: head_timeout(raw.head_timeout.0)?,
        handoff,
    })
}

fn seeds(texts: &Texts) -> Result<Vec<Seed>, Fault> {
    const KEY: &str = "node.peers.seeds";
    in_range(KEY, texts.0.len(), 0, SEEDS_MAX)?;
    let seed = |text: &String| {
        let fault = |error| Fault::new(KEY, format!("'{text}': {error}"));
        text.parse().map_err(fault).map_err(|fault| fault.hint("write it as \"host:7950\""))
    };
    texts.0.iter().map(seed).collect()
}

pub(super) fn press(raw: &RawPeers, memory: Bytes) -> Result<PressSettings, Fault> {
    let number = |key: &'static str, value: u32, least: usize, most: usize| {
        in_range(key, value as usize, least, most).map(|_| value)
    };
    let permille = |key: &'static str, share: f64, most: f64| {
        if (0.0..=most).contains(&share) {
            return Ok((share * 1_000.0).round() as u32);
        }
        Err(Fault::out_of_range(key, format!("a share from 0 to {most}")))
    };
    let on_permille = permille("node.peers.share_above", raw.share_above, 1.0)?;
    let large_min = raw.large_min.map_or(Bytes((memory.0 / 64).max(1)), |size| size.0);
    if large_min.0 == 0 {
        return Err(Fault::out_of_range("node.peers.large_min", "at least 1 byte"));
    }
    Ok(PressSettings {
        overload: number("node.peers.overload", raw.overload, 1, 1_000_000)?,
        large_min,
        load_step: number("node.peers.load_step", raw.load_step, 1, 10_000)?,
        gather: within("node.peers.gather", raw.gather.0, Duration::from_secs(10))?,
        targets_max: in_range("node.peers.targets_max", raw.targets_max, 1_000, 100_000_000)?,
        memory,
        sharing: SharingSettings {
            on_permille,
            off_permille: permille("node.peers.alone_below", raw.alone_below, raw.share_above)?,
            window: number("node.peers.window", raw.window, 10, 1_000_000)?,
            ..SharingSettings::default()
        },
        ..PressSettings::default()
    })
}

fn head_timeout(span: Duration) -> Result<Duration, Fault> {
    const KEY: &str = "node.peers.head_timeout";
    if span < Duration::from_millis(10) {
        return Err(Fault::out_of_range(KEY, "at least 10 ms, or no reply of a peer is in time"));
    }
    within(KEY, span, Duration::from_secs(600))
}

fn within(key: &'static str, span: Duration, most: Duration) -> Result<Duration, Fault> {
    if span <= most {
        return Ok(span);
    }
    Err(Fault::out_of_range(key, format!("at most {} s", most.as_secs())))
}
