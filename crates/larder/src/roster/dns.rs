//! Nodes by the DNS: the addresses of a name (RFC 1035, RFC 3596), or the targets of its SRV records (RFC 2782).

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

/// An answer that is not there by then is given up; the resolver asks each server twice within it.
const PATIENCE: Duration = Duration::from_secs(5);
/// However soon records end, they are not asked for more often.
const LEAST: Duration = Duration::from_secs(1);
/// Nodes of one source at most; who answers more is broken, or an attacker.
const NODES_MAX: usize = 4096;

/// Why a look found nothing that can be used. What was found before stays.
#[derive(Debug, thiserror::Error)]
pub(super) enum DnsError {
    /// The resolver cannot be set up, such as for a broken /etc/resolv.conf.
    #[error("the name servers are not known: {0}")]
    Setup(String),
    /// The DNS says that there is no such name or record, or nothing.
    #[error("{name}: {reason}")]
    Lookup { name: String, reason: String },
    /// No answer in time.
    #[error("{name}: no answer within {} s", PATIENCE.as_secs())]
    Late { name: String },
    /// More than makes sense.
    #[error("{0}: more than {NODES_MAX} nodes")]
    TooMany(String),
}

/// What a look has found.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) nodes: Vec<NodeEntry>,
    /// When the records end.
    pub(super) until: Instant,
}

/// A source in the DNS.
#[derive(Debug)]
pub(super) struct Dns {
    source: Discover,
    resolver: TokioResolver,
}

impl Dns {
    /// Needs a tokio runtime.
    pub(super) fn new(source: Discover) -> Result<Self, DnsError> {
        let setup = |error: hickory_resolver::net::NetError| DnsError::Setup(error.to_string());
        let provider = TokioRuntimeProvider::default();
        let mut builder = if source.servers.is_empty() {
            TokioResolver::builder(provider).map_err(setup)?
        } else {
            let servers = source.servers.iter().map(|server| name_server(*server)).collect();
            TokioResolver::builder_with_config(ResolverConfig::from_parts(None, vec![], servers), provider)
        };
        options(builder.options_mut());
        Ok(Self { resolver: builder.build().map_err(setup)?, source })
    }

    /// When to look again after a look at `now` whose records end then.
    pub(super) fn next(&self, now: Instant, until: Instant) -> Instant {
        until.clamp(now + LEAST.min(self.source.period), now + self.source.period)
    }

    /// Looks once.
    pub(super) async fn look(&self) -> Result<Looked, DnsError> {
        let (name, looked) = match &self.source.place {
            Place::Name(name, port) => {
                (name, tokio::time::timeout(PATIENCE, self.addresses(name, *port)).await)
            }
            Place::Service(name) => (name, tokio::time::timeout(PATIENCE, self.services(name)).await),
            Place::File(_) | Place::Slices(_) => return Err(DnsError::Setup("not in the DNS".to_owned())),
        };
        let looked = looked.map_err(|_| DnsError::Late { name: name.clone() })??;
        match looked.nodes.len() {
            0 => Err(DnsError::Lookup { name: name.clone(), reason: "no records".to_owned() }),
            count if count > NODES_MAX => Err(DnsError::TooMany(name.clone())),
            _ => Ok(looked),
        }
    }

    async fn addresses(&self, name: &str, port: u16) -> Result<Looked, DnsError> {
        let (found, until) = self.ips(name).await?;
        let node = |ip: IpAddr| {
            let address = SocketAddr::new(ip, port).to_string();
            self.source.entry(&address, address.clone(), self.source.weight)
        };
        Ok(Looked { nodes: found.into_iter().map(node).collect(), until })
    }

    async fn services(&self, name: &str) -> Result<Looked, DnsError> {
        let lookup = self.resolver.srv_lookup(name).await.map_err(|error| failed(name, &error))?;
        let mut until = lookup.valid_until();
        let records = lookup.answers().iter().filter_map(|record| match &record.data {
            RData::SRV(srv) => Some((srv.priority, srv.weight, srv.target.to_utf8(), srv.port)),
            _ => None,
        });
        // A target "." says that the service is not there.
        let records: Vec<_> = records.filter(|(_, _, target, _)| target != ".").collect();
        let best = records.iter().map(|(priority, ..)| *priority).min();
        // One host and port once, by its first record.
        let mut targets: BTreeMap<(String, u16), u16> = BTreeMap::new();
        for (_, weight, target, port) in records.into_iter().filter(|(priority, ..)| Some(*priority) == best)
        {
            targets.entry((target.trim_end_matches('.').to_lowercase(), port)).or_insert(weight);
        }
        let weights = Weights::of(targets.values().copied());
        let mut nodes = Vec::with_capacity(targets.len());
        for ((target, port), weight) in targets {
            let (found, ends) = self.ips(&format!("{target}.")).await?;
            until = until.min(ends);
            // One node, however many addresses its host has.
            if let Some(ip) = found.first() {
                let address = SocketAddr::new(*ip, port).to_string();
                nodes.push(self.source.entry(
                    &format!("{target}:{port}"),
                    address,
                    weights.scale(self.source.weight, weight),
                ));
            }
        }
        Ok(Looked { nodes, until })
    }

    /// A name's addresses in their order, each once, and when they end.
    async fn ips(&self, name: &str) -> Result<(Vec<IpAddr>, Instant), DnsError> {
        let lookup = self.resolver.lookup_ip(name).await.map_err(|error| failed(name, &error))?;
        let mut found: Vec<IpAddr> = lookup.iter().collect();
        found.sort_unstable();
        found.dedup();
        Ok((found, lookup.valid_until()))
    }
}

/// SRV weights are relative to each other, nodes' weights to an ordinary node.
struct Weights {
    sum: u32,
    count: u32,
}

impl Weights {
    fn of(weights: impl Iterator<Item = u16>) -> Self {
        weights.fold(Self { sum: 0, count: 0 }, |all, weight| Self {
            sum: all.sum + u32::from(weight),
            count: all.count + 1,
        })
    }

    /// A record's weight over the mean of all. 0 is for records that are only taken if nothing else is (RFC 2782): as little
    /// as a weight can be, unless all are 0, which says that there is nothing to choose between.
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

fn options(options: &mut ResolverOpts) {
    options.timeout = PATIENCE / 2;
    options.attempts = 2;
    // When to ask again is decided here.
    options.cache_size = 0;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.use_hosts_file = ResolveHosts::Auto;
}

fn failed(name: &str, error: &hickory_resolver::net::NetError) -> DnsError {
    DnsError::Lookup { name: name.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_records_are_shares_of_their_mean() {
        let one = Weight::from_f64(1.0).expect("a weight");
        let two = Weight::from_f64(2.0).expect("a weight");
        let weights = Weights::of([10, 30].into_iter());
        assert_eq!(weights.scale(one, 10).milli(), 500);
        assert_eq!(weights.scale(two, 30).milli(), 3000);
        assert_eq!(weights.scale(one, 0).milli(), 1, "the least there is");
        assert_eq!(Weights::of([0, 0].into_iter()).scale(two, 0), two, "nothing to choose between");
        assert_eq!(Weights::of([65_535].into_iter()).scale(one, 65_535), one);
    }
}
