//! `[switch.switches]`, checked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use larder_core::dispatch::SettingsError;
use larder_core::switches::SwitchesSettings;
use larder_peers::{Name, Seed};

use super::error::Fault;
use super::raw_switches::RawSwitches;
use super::text::Texts;
use super::valid::{addresses, in_range, no_key};

/// Seeds at most.
const SEEDS_MAX: usize = 256;

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

pub(super) fn switches(raw: &RawSwitches, absent: &mut Vec<Fault>) -> Result<SwitchesRole, Fault> {
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
    let secret = PathBuf::from(&raw.secret);
    absent.extend(no_key("switch.switches.secret", &secret));
    Ok(SwitchesRole { name, listen, advertise, secret, seeds: seeds(&raw.seeds)?, settings: settings(raw)? })
}

fn seeds(texts: &Texts) -> Result<Vec<Seed>, Fault> {
    const KEY: &str = "switch.switches.seeds";
    in_range(KEY, texts.0.len(), 0, SEEDS_MAX)?;
    let seed = |text: &String| {
        let fault = |error| Fault::new(KEY, format!("'{text}': {error}"));
        text.parse().map_err(fault).map_err(|fault| fault.hint("write it as \"host:7960\""))
    };
    texts.0.iter().map(seed).collect()
}

fn settings(raw: &RawSwitches) -> Result<SwitchesSettings, Fault> {
    let usual = SwitchesSettings::default();
    let unknown_after = raw.unknown_after.0;
    if unknown_after < Duration::from_secs(1) {
        let what = format!("{} is out of range", raw.unknown_after);
        return Err(Fault::new("switch.switches.unknown_after", what).hint("1s to 1min"));
    }
    let settings = SwitchesSettings { period: raw.period.0, step: raw.step, unknown_after, ..usual };
    settings.validate().map_err(|error| match error {
        SettingsError::OutOfRange { name, range, .. } => {
            Fault::out_of_range(format!("switch.switches.{name}"), range)
        }
        SettingsError::Node(error) => Fault::new("switch.switches", error.to_string()),
    })?;
    Ok(settings)
}
