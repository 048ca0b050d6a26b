//! Seeds: addresses at which a member looks for other members.

use crate::counters::{Counters, increment};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;
use tokio::time::timeout;

/// Maximum time to resolve one name.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of addresses used of one name.
const ADDRESSES_MAX: usize = 256;

/// A seed, written `host:port`. A host name is resolved repeatedly, and all its addresses are used, as for the name of a
/// headless Kubernetes service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    host: String,
    port: u16,
}

/// The text is not a valid seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid seed: write host:port, with an IPv6 address in brackets")]
pub struct SeedError;

impl FromStr for Seed {
    type Err = SeedError;

    fn from_str(text: &str) -> Result<Self, SeedError> {
        let (host, port) = text.rsplit_once(':').ok_or(SeedError)?;
        let port = port.parse().ok().filter(|&port| port != 0).ok_or(SeedError)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let valid = match bare {
            Some(bare) => bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()),
            None => {
                let name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
                (1..=253).contains(&host.len()) && host.bytes().all(name)
            }
        };
        let host = bare.unwrap_or(host).into();
        if valid { Ok(Self { host, port }) } else { Err(SeedError) }
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Resolves all seeds. Returns their addresses sorted and without duplicates; seeds that cannot be resolved are left out.
pub(crate) async fn resolve(seeds: &[Seed], counters: &Counters) -> Vec<SocketAddr> {
    let mut all = Vec::new();
    for seed in seeds {
        let found = timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((seed.host.as_str(), seed.port))).await;
        match found {
            Ok(Ok(found)) => all.extend(found.take(ADDRESSES_MAX)),
            Ok(Err(error)) => {
                increment(&counters.seeds_unresolved);
                tracing::warn!(%seed, %error, "seed: name resolution failed");
            }
            Err(_) => {
                increment(&counters.seeds_unresolved);
                tracing::warn!(%seed, "seed: name resolution timed out");
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_host_and_a_port() {
        for text in ["node-1:7900", "peers.larder.svc:1", "10.0.0.1:65535", "[::1]:7900"] {
            assert_eq!(text.parse::<Seed>().expect("a seed").to_string(), text);
        }
        for text in
            ["node-1", "node-1:", ":7900", "node-1:0", "node-1:65536", "::1:7900", "[node]:1", "a b:1"]
        {
            assert_eq!(text.parse::<Seed>(), Err(SeedError), "{text}");
        }
    }

    #[tokio::test]
    async fn every_address_is_found_once_and_failures_are_counted() {
        let counters = Counters::default();
        let seed = |text: &str| text.parse().expect("a seed");
        let seeds = [seed("127.0.0.1:9"), seed("[::1]:9"), seed("127.0.0.1:9"), seed("no-such.invalid:9")];
        let found = resolve(&seeds, &counters).await;
        let expected: Vec<SocketAddr> =
            ["127.0.0.1:9", "[::1]:9"].iter().map(|text| text.parse().expect("an address")).collect();
        assert_eq!(found, expected);
        assert_eq!(counters.read().seeds_unresolved, 1);
    }
}
