//! `[switch.switches]`.

use std::net::SocketAddr;
use std::path::PathBuf;

use larder_core::switches::SwitchesSettings;
use larder_peers::{Name, Seed};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::text::{Span, Texts};
use crate::config::values::{addresses, no_key};

keys! {
    /// `[switch.switches]`.
    table SwitchesSection, SwitchesSettings { period, step, unknown_after, .. } = SwitchesSettings::default();

    /// Name of this switch, unique among its peers: 1 to 100 printable ASCII characters. Required.
    name: String, example "edge1";
    /// Address that peer switches connect to, TCP and UDP: "address:port". Required.
    listen: Texts, example "10.0.0.1:7960";
    /// Address that peer switches use to reach this switch. Required if `listen` is a wildcard address. Unset:
    /// `listen`.
    advertise: Option<String>, example "10.0.0.1:7960";
    /// File with the secret that all switches share, readable by its owner only. `larder keys new FILE` makes it. Do
    /// not use that of the nodes. A second line may contain another accepted secret, for rotation. It is read at each
    /// reload. Required.
    secret: String, example "/etc/larder/switches.key";
    /// Addresses of peer switches: "host:port". Names are resolved repeatedly, and all their addresses count. Empty:
    /// this switch waits for others to connect.
    seeds: Texts, entries 256, example ["10.0.0.2:7960", "10.0.0.3:7960"];
    /// Shortest time between two messages to the peers. Changed loads and server sets are sent together.
    period: Span = Span(period), range "1ms to 1s";
    /// Difference to the last sent load, in requests, at which a node's load is sent again. Loads that differ by less
    /// than this, times the number of peers, count as equal.
    step: u32 = step, range "1 to 10000";
    /// Time without a message after which the load of a live peer is unknown. It then counts with the mean of the
    /// others.
    unknown_after: Span = Span(unknown_after), range "1s to 1m";
}

const EXAMPLE: &str = "10.0.0.1:7960";

/// Membership in a cluster of switches, valid.
#[derive(Clone, Debug)]
pub(crate) struct SwitchesRole {
    pub(crate) name: Name,
    pub(crate) listen: SocketAddr,
    pub(crate) advertise: Option<SocketAddr>,
    /// File with the secret. Read when the role starts.
    pub(crate) secret: PathBuf,
    pub(crate) seeds: Vec<Seed>,
    pub(crate) settings: SwitchesSettings,
}

/// Validates the table `section`, such as `switch.switches`.
pub(crate) fn switches(
    section: &'static str,
    raw: &SwitchesSection,
    absent: &mut Vec<Fault>,
) -> Result<SwitchesRole, Fault> {
    let key = |name: &str| format!("{section}.{name}");
    if raw.name.is_empty() {
        return Err(Fault::new(key("name"), "missing: peers identify each other by name")
            .hint("write a name that no peer has, such as \"edge1\""));
    }
    let name = raw.name.parse();
    let name = name.map_err(|error| Fault::new(key("name"), format!("invalid name: {error}")))?;
    let [listen] = addresses(&key("listen"), &raw.listen, EXAMPLE)?[..] else {
        return Err(
            Fault::new(key("listen"), "peers connect to one address").hint("write one \"address:port\"")
        );
    };
    let advertise = match &raw.advertise {
        Some(text) => {
            let texts = Texts(vec![text.clone()]);
            addresses(&key("advertise"), &texts, EXAMPLE)?.first().copied()
        }
        None => None,
    };
    if advertise.unwrap_or(listen).ip().is_unspecified() {
        return Err(Fault::new(key("advertise"), "missing: an address for the peers")
            .hint(format!("write the address that they reach it by, such as \"{EXAMPLE}\"")));
    }
    if raw.secret.is_empty() {
        return Err(Fault::new(key("secret"), "missing: peers must share a secret")
            .hint("name a file made by `larder keys new FILE`, the same on all of them"));
    }
    let (period, unknown_after) = (raw.period.0, raw.unknown_after.0);
    let settings = SwitchesSettings { period, step: raw.step, unknown_after, ..SwitchesSettings::default() };
    settings.validate().map_err(|error| Fault::new(section, error.to_string()))?;
    let secret = PathBuf::from(&raw.secret);
    absent.extend(no_key(&key("secret"), &secret));
    Ok(SwitchesRole { name, listen, advertise, secret, seeds: seeds(&key("seeds"), &raw.seeds)?, settings })
}

fn seeds(key: &str, texts: &Texts) -> Result<Vec<Seed>, Fault> {
    let seed = |text: &String| {
        let fault = |error| Fault::new(key, format!("'{text}': {error}"));
        text.parse().map_err(fault).map_err(|fault| fault.hint("write it as \"host:7960\""))
    };
    texts.0.iter().map(seed).collect()
}
