//! The costs of requests and messages at processors, disks and network interfaces.
//!
//! The rates are those of the PRESS model (PPoPP 2001, table 1), with the actual size of a file instead of
//! the mean, and the measured costs of a VIA message (section 4.1). The alternative is the WARD paper's
//! server ([`crate::cost::Ward01`]) with messages on one of PRESS's networks. KB are 1,024 bytes.

use larder_trace::ward::WardCosts;
use serde::{Deserialize, Serialize};

use super::servers::ForwardingMode;
use crate::SimError;
use crate::cost::Ward01;
use crate::press::Network;

/// A cost that grows linearly with the size: `start_s + KB / kb_per_s`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinearCost {
    /// Fixed time in s, at least 0.
    pub start_s: f64,
    /// Rate in KB/s, above 0.
    pub kb_per_s: f64,
}

impl LinearCost {
    const fn new(start_s: f64, kb_per_s: f64) -> Self {
        Self { start_s, kb_per_s }
    }

    /// Returns the time for `bytes` bytes, in ns.
    pub(super) fn ns(&self, bytes: u64) -> u64 {
        nanos(self.start_s + bytes as f64 / 1_024.0 / self.kb_per_s)
    }

    fn is_valid(&self) -> bool {
        self.start_s >= 0.0 && self.start_s.is_finite() && self.kb_per_s > 0.0
    }
}

/// Converts seconds into nanoseconds. [`CooperationCosts::check`] rejects negative and infinite times.
pub(super) fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

/// The costs. The default is the fast network; [`CooperationCosts::for_network`] returns the costs of either
/// network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CooperationCosts {
    /// Whether nodes have a separate interface and network for internal traffic. Otherwise it shares the
    /// clients' interface.
    pub own_network: bool,
    /// Processor: time to read and parse a request (`1/mu_p`), in s.
    pub parse_s: f64,
    /// Processor: time to send a reply to a client (`1/mu_m`).
    pub reply: LinearCost,
    /// Disk: time to read a file (`1/mu_d`).
    pub disk: LinearCost,
    /// Processor of the initial node: time to forward a request (`1/mu_f`), in s.
    pub forward_s: f64,
    /// Processor of the service node: time to accept a forwarded request, in s. In variant M1 of the model
    /// this is parsing plus `1/mu_f`.
    pub accept_s: f64,
    /// Processor: time to send (`1/mu_s`) or receive (`1/mu_g`) a reply between nodes.
    pub relay: LinearCost,
    /// Processor, at either end: extra time of a handoff over a forwarded request, in s.
    pub handoff_s: f64,
    /// Bytes of a handoff message.
    pub handoff_bytes: u64,
    /// Bytes of a request, from a client or between nodes.
    pub request_bytes: u64,
    /// Processor, at either end: time of a protocol message.
    pub message: LinearCost,
    /// Whether a load is written into the memory of the other nodes, without work of their processors.
    pub remote_writes: bool,
    /// Processor of the dispatcher: time of a decision, in s.
    pub decide_s: f64,
    /// Interface to clients (`1/mu_e`).
    pub external: LinearCost,
    /// Interface between nodes (`1/mu_i`); ignored without `own_network`.
    pub internal: LinearCost,
    /// Latency from one interface to the other, in s.
    pub latency_s: f64,
    /// Whether processors handle protocol messages before requests, as a kernel does. Otherwise messages
    /// queue behind requests.
    pub messages_first: bool,
    /// Whether a read from disk occupies the processor, so that a server is one resource.
    pub one_resource: bool,
    /// Processor of the table maker: time per counted target for a routing table, in s.
    pub analyse_s: f64,
    /// Processor of the switch: time per request, in s.
    pub switch_s: f64,
}

impl Default for CooperationCosts {
    fn default() -> Self {
        Self::for_network(Network::Fast)
    }
}

impl CooperationCosts {
    /// Returns the paper's costs for a network.
    pub fn for_network(network: Network) -> Self {
        let parse_s = 1.0 / 9_000.0;
        let fast = Self {
            own_network: true,
            parse_s,
            reply: LinearCost::new(0.000_1, 11_500.0),
            disk: LinearCost::new(0.018_8, 3_000.0),
            forward_s: 1.0 / 60_000.0,
            accept_s: parse_s + 1.0 / 60_000.0,
            relay: LinearCost::new(0.000_01, 80_000.0),
            handoff_s: 0.000_002,
            handoff_bytes: 256,
            request_bytes: 256,
            message: LinearCost::new(0.000_003, 80_000.0),
            remote_writes: true,
            decide_s: 0.000_01,
            external: LinearCost::new(0.000_004, 12_000.0),
            internal: LinearCost::new(0.000_003, 64_000.0),
            // 19 us one way for 4 bytes (section 4.1), less 3 us at each processor and each interface.
            latency_s: 0.000_007,
            messages_first: false,
            one_resource: false,
            analyse_s: 0.000_001,
            switch_s: 0.0,
        };
        match network {
            Network::Fast => fast,
            Network::Slow => Self {
                own_network: false,
                forward_s: 1.0 / 7_000.0,
                accept_s: parse_s + 1.0 / 7_000.0,
                relay: LinearCost::new(0.000_1, 11_500.0),
                message: LinearCost::new(0.000_1, 11_500.0),
                remote_writes: false,
                latency_s: 0.000_05,
                ..fast
            },
        }
    }

    /// Returns the costs of the WARD paper's server (HPL-2001-2, section 3.2). It is one resource that takes
    /// 1 ms for 14.5 KB from memory and 9 ms more from disk. The initial node spends `forward_us` on a
    /// request that is forwarded. Clients' interfaces take no time. The paper has no messages; they cost as
    /// on PRESS's network and are handled before requests.
    pub fn ward01(network: Network, forward_us: f64) -> Self {
        let model = Ward01 { forward_us, ..Ward01::default() };
        let rate = |us_per_byte: f64| LinearCost::new(0.0, 1e6 / 1_024.0 / us_per_byte);
        let free = LinearCost::new(0.0, f64::INFINITY);
        Self {
            parse_s: 0.0,
            reply: rate(model.memory_us_per_byte),
            disk: rate(model.disk_overhead_us_per_byte()),
            forward_s: forward_us / 1e6,
            accept_s: 0.0,
            relay: free,
            handoff_s: 0.0,
            external: free,
            messages_first: true,
            one_resource: true,
            ..Self::for_network(network)
        }
    }

    /// Returns the costs for ward-analysis: the processor time to forward a request, and the extra time of a
    /// byte from disk, for files of this mean size in bytes.
    pub fn ward_costs(&self, mean_bytes: u64, forwarding: ForwardingMode) -> WardCosts {
        let bytes = mean_bytes.max(1);
        let more_s = match forwarding {
            ForwardingMode::Handoff => 2.0 * self.handoff_s,
            ForwardingMode::Relay => 2.0 * self.relay.ns(bytes) as f64 / 1e9,
        };
        WardCosts {
            forward_us: (self.forward_s + self.accept_s + more_s) * 1e6,
            disk_us_per_byte: self.disk.ns(bytes) as f64 / 1e3 / bytes as f64,
            origin: "costs of the simulation".to_owned(),
        }
    }

    /// Returns these costs with messages that take no processor time, as in the analytic model.
    pub fn without_message_costs(self) -> Self {
        Self { message: LinearCost::new(0.0, f64::INFINITY), ..self }
    }

    /// Returns the cost of the interface between nodes.
    pub(super) fn node_interface(&self) -> &LinearCost {
        if self.own_network { &self.internal } else { &self.external }
    }

    pub(super) fn check(&self) -> Result<(), SimError> {
        let times = [
            (self.parse_s, "parse_s"),
            (self.forward_s, "forward_s"),
            (self.accept_s, "accept_s"),
            (self.handoff_s, "handoff_s"),
            (self.decide_s, "decide_s"),
            (self.latency_s, "latency_s"),
            (self.analyse_s, "analyse_s"),
            (self.switch_s, "switch_s"),
        ];
        if let Some((_, key)) = times.into_iter().find(|(value, _)| !(*value >= 0.0 && value.is_finite())) {
            return Err(SimError::OutOfRange { key, range: "0 or more" });
        }
        let rates = [
            (&self.reply, "reply"),
            (&self.disk, "disk"),
            (&self.relay, "relay"),
            (&self.message, "message"),
            (&self.external, "external"),
            (&self.internal, "internal"),
        ];
        match rates.into_iter().find(|(rate, _)| !rate.is_valid()) {
            Some((_, key)) => Err(SimError::OutOfRange { key, range: "start_s from 0, kb_per_s above 0" }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_table_1() {
        let fast = CooperationCosts::for_network(Network::Fast);
        assert_eq!(fast.reply.ns(16 * 1_024), nanos(0.000_1 + 16.0 / 11_500.0));
        assert_eq!(fast.disk.ns(0), 18_800_000);
        let slow = CooperationCosts::for_network(Network::Slow);
        assert_eq!(slow.relay.ns(512), 143_478, "the paper's section 5: 143 us for 512 bytes");
        // The paper prints these rates of non-portable servers: 55,000 and 6,900 per second.
        assert!((1.0 / (fast.forward_s + fast.handoff_s) - 53_571.0).abs() < 1.0);
        assert!((1.0 / (slow.forward_s + slow.handoff_s) - 6_903.0).abs() < 1.0);
        assert_eq!(fast.without_message_costs().message.ns(1_000_000), 0);
    }

    #[test]
    fn the_ward_papers_server_takes_1_ms_from_memory_and_10_from_disk() {
        let ward = CooperationCosts::ward01(Network::Fast, 276.0);
        let bytes = 14_848;
        assert_eq!((ward.reply.ns(bytes), ward.disk.ns(bytes)), (1_000_000, 9_000_000));
        let prices = ward.ward_costs(bytes, ForwardingMode::Handoff);
        assert!((prices.forward_us - 276.0).abs() < 1e-9 && (prices.disk_us_per_byte - 0.606).abs() < 0.001);
        assert_eq!(ward.check(), Ok(()));
        // PRESS's relay occupies both processors for twice the reply.
        let press = CooperationCosts::for_network(Network::Fast);
        let more = press.ward_costs(16 << 10, ForwardingMode::Relay).forward_us;
        assert!((more - (111.1 + 2.0 * 16.7 + 2.0 * 210.0)).abs() < 0.1, "{more}");
    }

    #[test]
    fn impossible_costs_are_named() {
        let key = |costs: CooperationCosts| match costs.check() {
            Err(SimError::OutOfRange { key, .. }) => key,
            other => unreachable!("{other:?}"),
        };
        assert_eq!(key(CooperationCosts { parse_s: -1.0, ..CooperationCosts::default() }), "parse_s");
        assert_eq!(key(CooperationCosts { latency_s: f64::NAN, ..CooperationCosts::default() }), "latency_s");
        assert_eq!(
            key(CooperationCosts { reply: LinearCost::new(0.0, 0.0), ..CooperationCosts::default() }),
            "reply"
        );
        assert_eq!(CooperationCosts::default().without_message_costs().check(), Ok(()));
    }
}
