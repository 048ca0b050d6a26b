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

    /// This switch's name, which no other switch has: 1 to 100 printable ASCII characters. Required.
    name: String, example "edge1";
    /// Where other switches connect to, TCP and UDP: "address:port". Required.
    listen: Texts, example "10.0.0.1:7960";
    /// Where other switches reach it, if not at `listen`; needed where that is all addresses.
    advertise: Option<String>, example "10.0.0.1:7960";
    /// File with the secret that all switches of the cluster share, for its owner only, and not that of the nodes. Made by
    /// `larder keys new FILE`. A second line may hold another secret that is accepted too, so that the secret can be rotated.
    /// Read at each reload. Required.
    secret: String, example "/etc/larder/switches.key";
    /// Where to look for others: "host:port". A name is resolved again and again and all of its addresses count. None: this
    /// switch waits to be found.
    seeds: Texts, entries 256, example ["10.0.0.2:7960", "10.0.0.3:7960"];
    /// Between two words to the others at least: loads and server sets that have changed are told together.
    period: Span = Span(period), range "1ms to 1s";
    /// A node's load is told when it differs by so many requests from what was told last. Loads that lie closer together than
    /// this, times the other switches, count as equal.
    step: u32 = step, range "1 to 10000";
    /// A switch that is there and has said nothing for so long is taken to have as many requests as the others have.
    unknown_after: Span = Span(unknown_after), range "1s to 1m";
}

const EXAMPLE: &str = "10.0.0.1:7960";

/// How a switch works with others in front of the same nodes, valid.
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

pub(crate) fn switches(raw: &SwitchesSection, absent: &mut Vec<Fault>) -> Result<SwitchesRole, Fault> {
    if raw.name.is_empty() {
        return Err(Fault::new("switch.switches.name", "missing: switches know each other by name")
            .hint("write a name that no other switch has, such as \"edge1\""));
    }
    let name = raw.name.parse();
    let name = name.map_err(|error| Fault::new("switch.switches.name", format!("no name: {error}")))?;
    let [listen] = addresses("switch.switches.listen", &raw.listen, EXAMPLE)?[..] else {
        return Err(Fault::new("switch.switches.listen", "a switch listens to others on one address")
            .hint("write one \"address:port\""));
    };
    let advertise = match &raw.advertise {
        Some(text) => {
            let texts = Texts(vec![text.clone()]);
            addresses("switch.switches.advertise", &texts, EXAMPLE)?.first().copied()
        }
        None => None,
    };
    if advertise.unwrap_or(listen).ip().is_unspecified() {
        return Err(Fault::new(
            "switch.switches.advertise",
            "the others must be told an address of this switch",
        )
        .hint(format!("write the address that they reach it by, such as \"{EXAMPLE}\"")));
    }
    if raw.secret.is_empty() {
        return Err(Fault::new("switch.switches.secret", "missing: switches must share a secret")
            .hint("name a file made by `larder keys new FILE`, the same on all switches"));
    }
    let (period, unknown_after) = (raw.period.0, raw.unknown_after.0);
    let settings = SwitchesSettings { period, step: raw.step, unknown_after, ..SwitchesSettings::default() };
    settings.validate().map_err(|error| Fault::new("switch.switches", error.to_string()))?;
    let secret = PathBuf::from(&raw.secret);
    absent.extend(no_key("switch.switches.secret", &secret));
    Ok(SwitchesRole { name, listen, advertise, secret, seeds: seeds(&raw.seeds)?, settings })
}

fn seeds(texts: &Texts) -> Result<Vec<Seed>, Fault> {
    const KEY: &str = "switch.switches.seeds";
    let seed = |text: &String| {
        let fault = |error| Fault::new(KEY, format!("'{text}': {error}"));
        text.parse().map_err(fault).map_err(|fault| fault.hint("write it as \"host:7960\""))
    };
    texts.0.iter().map(seed).collect()
}
