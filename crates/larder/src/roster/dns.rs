//! Node sources in the DNS: the addresses of a name (RFC 1035, RFC 3596), or the targets of its SRV records
//! (RFC 2782).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::RData;
use larder_core::Weight;
use larder_switch::NodeEntry;

use crate::config::{Discover, Place};

/// Longest time of a lookup. The resolver asks each server twice within this time.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Shortest interval between two lookups, whatever the TTL of the records.
const REFRESH_MIN: Duration = Duration::from_secs(1);
/// Most nodes of one source. A longer list is an error or an attack.
const NODES_MAX: usize = 4096;

/// Error of a lookup. The nodes of the previous lookup stay.
#[derive(Debug, thiserror::Error)]
pub(super) enum DnsError {
    /// The resolver cannot be created, for example because /etc/resolv.conf is invalid.
    #[error("cannot determine the name servers: {0}")]
    Setup(String),
    /// The DNS has no such name or record, or returned an error.
    #[error("{name}: {reason}")]
    Lookup { name: String, reason: String },
    /// No answer arrived in time.
    #[error("{name}: no answer within {} s", LOOKUP_TIMEOUT.as_secs())]
    Late { name: String },
    /// The source has too many nodes.
    #[error("{0}: more than {NODES_MAX} nodes")]
    TooMany(String),
}

/// Result of a lookup.
#[derive(Debug)]
pub(super) struct LookupResult {
    pub(super) nodes: Vec<NodeEntry>,
    /// Time at which the first record expires.
    pub(super) until: Instant,
}

/// A node source in the DNS.
#[derive(Debug)]
pub(super) struct DnsSource {
    source: Discover,
    resolver: TokioResolver,
}

impl DnsSource {
    /// Creates the resolver. Needs a tokio runtime.
    pub(super) fn new(source: Discover) -> Result<Self, DnsError> {
        let setup = |error: hickory_resolver::net::NetError| DnsError::Setup(error.to_string());
        let provider = TokioRuntimeProvider::default();
        let mut builder = if source.servers.is_empty() {
            TokioResolver::builder(provider).map_err(setup)?
        } else {
            let servers = source.servers.iter().map(|server| name_server(*server)).collect();
            TokioResolver::builder_with_config(ResolverConfig::from_parts(None, vec![], servers), provider)
        };
        configure(builder.options_mut());
        Ok(Self { resolver: builder.build().map_err(setup)?, source })
    }

    /// Returns the time of the next lookup after a lookup at `now` whose records expire at `until`.
    pub(super) fn next_lookup(&self, now: Instant, until: Instant) -> Instant {
        until.clamp(now + REFRESH_MIN.min(self.source.period), now + self.source.period)
    }

    /// Looks the source up.
    pub(super) async fn lookup(&self) -> Result<LookupResult, DnsError> {
        let (name, result) = match &self.source.place {
            Place::Name(name, port) => {
                (name, tokio::time::timeout(LOOKUP_TIMEOUT, self.lookup_addresses(name, *port)).await)
            }
            Place::Service(name) => {
                (name, tokio::time::timeout(LOOKUP_TIMEOUT, self.lookup_services(name)).await)
            }
            Place::File(_) | Place::Slices(_) | Place::Pool(_) => {
                return Err(DnsError::Setup("not in the DNS".to_owned()));
            }
        };
        let result = result.map_err(|_| DnsError::Late { name: name.clone() })??;
        match result.nodes.len() {
            0 => Err(DnsError::Lookup { name: name.clone(), reason: "no records".to_owned() }),
            count if count > NODES_MAX => Err(DnsError::TooMany(name.clone())),
            _ => Ok(result),
        }
    }

    async fn lookup_addresses(&self, name: &str, port: u16) -> Result<LookupResult, DnsError> {
        let (found, until) = self.resolve_addresses(name).await?;
        let node = |ip: IpAddr| {
            let address = SocketAddr::new(ip, port).to_string();
            self.source.entry(&address, address.clone(), self.source.weight)
        };
        Ok(LookupResult { nodes: found.into_iter().map(node).collect(), until })
    }

    async fn lookup_services(&self, name: &str) -> Result<LookupResult, DnsError> {
        let lookup = self.resolver.srv_lookup(name).await.map_err(|error| lookup_error(name, &error))?;
        let mut until = lookup.valid_until();
        let records = lookup.answers().iter().filter_map(|record| match &record.data {
            RData::SRV(srv) => Some((srv.priority, srv.weight, srv.target.to_utf8(), srv.port)),
            _ => None,
        });
        // The target "." means that the service is not available (RFC 2782).
        let records: Vec<_> = records.filter(|(_, _, target, _)| target != ".").collect();
        let best = records.iter().map(|(priority, ..)| *priority).min();
        // Each pair of host and port becomes one node, with the weight of its first record.
        let mut targets: BTreeMap<(String, u16), u16> = BTreeMap::new();
        for (_, weight, target, port) in records.into_iter().filter(|(priority, ..)| Some(*priority) == best)
        {
            targets.entry((target.trim_end_matches('.').to_lowercase(), port)).or_insert(weight);
        }
        let weights = Weights::new(targets.values().copied());
        let mut nodes = Vec::with_capacity(targets.len());
        for ((target, port), weight) in targets {
            let (found, ends) = self.resolve_addresses(&format!("{target}.")).await?;
            until = until.min(ends);
            // A host with several addresses is one node.
            if let Some(ip) = found.first() {
                let address = SocketAddr::new(*ip, port).to_string();
                nodes.push(self.source.entry(
                    &format!("{target}:{port}"),
                    address,
                    weights.scale(self.source.weight, weight),
                ));
            }
        }
        Ok(LookupResult { nodes, until })
    }

    /// Returns the sorted addresses of a name without duplicates, and the time at which they expire.
    async fn resolve_addresses(&self, name: &str) -> Result<(Vec<IpAddr>, Instant), DnsError> {
        let lookup = self.resolver.lookup_ip(name).await.map_err(|error| lookup_error(name, &error))?;
        let mut found: Vec<IpAddr> = lookup.iter().collect();
        found.sort_unstable();
        found.dedup();
        Ok((found, lookup.valid_until()))
    }
}

/// Sum and number of SRV weights. SRV weights are relative to each other, and node weights to an ordinary
/// node.
struct Weights {
    sum: u32,
    count: u32,
}

impl Weights {
    fn new(weights: impl Iterator<Item = u16>) -> Self {
        weights.fold(Self { sum: 0, count: 0 }, |all, weight| Self {
            sum: all.sum + u32::from(weight),
            count: all.count + 1,
        })
    }

    /// Converts an SRV weight to a node weight: its ratio to the mean of all SRV weights. A weight of 0
    /// becomes the smallest node weight, because RFC 2782 uses such records as a last resort. If all weights
    /// are 0, all nodes get the base weight.
    fn scale(&self, base: Weight, weight: u16) -> Weight {
        if self.sum == 0 {
            return base;
        }
        let base_value = f64::from(base.milli()) / 1000.0;
        let scaled = base_value * f64::from(weight) * f64::from(self.count) / f64::from(self.sum);
        Weight::from_f64(scaled.clamp(0.001, 100.0)).unwrap_or(base)
    }
}

fn name_server(address: SocketAddr) -> NameServerConfig {
    let with_port = |mut connection: ConnectionConfig| {
        connection.port = address.port();
        connection
    };
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(with_port);
    NameServerConfig::new(address.ip(), true, connections.to_vec())
}

fn configure(resolver: &mut ResolverOpts) {
    resolver.timeout = LOOKUP_TIMEOUT / 2;
    resolver.attempts = 2;
    // The caller decides when to look up again.
    resolver.cache_size = 0;
    resolver.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    resolver.use_hosts_file = ResolveHosts::Auto;
}

fn lookup_error(name: &str, error: &hickory_resolver::net::NetError) -> DnsError {
    DnsError::Lookup { name: name.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srv_weights_are_scaled_by_their_mean() {
        let one = Weight::from_f64(1.0).expect("a weight");
        let two = Weight::from_f64(2.0).expect("a weight");
        let weights = Weights::new([10, 30].into_iter());
        assert_eq!(weights.scale(one, 10).milli(), 500);
        assert_eq!(weights.scale(two, 30).milli(), 3000);
        assert_eq!(weights.scale(one, 0).milli(), 1, "the least there is");
        assert_eq!(Weights::new([0, 0].into_iter()).scale(two, 0), two, "nothing to choose between");
        assert_eq!(Weights::new([65_535].into_iter()).scale(one, 65_535), one);
    }
}
