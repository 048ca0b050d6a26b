//! `cap01`: the cluster of the CAP simulation (Casalicchio and Colajanni, WWW 2001, sections 4.1 and 4.2).
//!
//! ```text
//! switch     layer 4: 50 us for each connection; layer 7: 200 us for each request; both: 9 us for each packet of the
//!            client that they pass on
//! server     one process for each connection: 556 us to set up and take down, 527 us for each request,
//!            memory at 100 MB/s
//! disk       0.05 ms controller, 9 ms seek, 4.17 ms half a rotation at 7,200 rpm, 20 MB/s
//! network    100 Mb/s, segments of 1,460 bytes in frames of 1,538 (headers, preamble and gap included)
//! SSL        RSA 38.5 Kb/s, Triple DES 46,886 Kb/s, MD5 331,034 Kb/s; 2,048 + 73 bytes for each key exchange,
//!            29 bytes for each record
//! back-end   each database access costs its disk an access and 8 KiB
//! ```
//! MB and Kb are 10^6 bytes and 10^3 bits.
//!
//! # TCP
//! A connection begins with a round trip (0.2 ms). Replies are sent in windows. The first window has 2
//! segments. Each further window has half as many more, because the client acknowledges every second segment.
//! A window has at most 44 segments (64 KB). Between two windows the server waits for the acknowledgement of
//! the window's first two segments, unless sending the other segments takes as long. On this network it waits
//! after windows of up to 3 segments. Acknowledgements travel on the other half of a full-duplex line. Not
//! modelled: loss, the last delayed acknowledgement, and closing. Every reply begins with the first window.
//! The clients' side of the network and the internet cost nothing, as in the paper.
//!
//! # Where the paper is silent
//! * The switch: it takes the values "given in" Aron et al., USENIX 1999, which are not printed in the
//!   available text of that paper. Layer 7: 5,000 handoffs per second and 9 us per packet, from the LARD
//!   paper's prototype, which is the same mechanism on the same machine. Layer 4: 20,000 connections per
//!   second for a software switch (Aron et al., USENIX 2000).
//! * The server's processor: the times of connection and request are Apache's on a 300 MHz Pentium II (Aron
//!   et al., USENIX 1999).
//! * The key exchange: RSA over the 48 bytes (384 bits) of SSL's pre-master secret, 10 ms, and two more round
//!   trips. The paper's table 2 says "RSA (256 bit) 38.5 Kbps". The rate is the paper's; 256 bits can be the
//!   key or the encrypted data. In the latter case, `rsa_bits` = 256 makes a key exchange 6.6 ms.
//! * A query's demand comes from the workload, as a number of database accesses; see
//!   `larder_trace::synth::sessions`. Each node has a back-end server of its own with the same disk, which
//!   serves one access at a time.
//! * Processor demands above 10 ms are served in slices of 10 ms (time sharing on Linux and FreeBSD of the
//!   time is of this order). A read and a window of segments are served as a whole.
//! * Requests of one node for the same document share its read, as in `lard98`.

use larder_core::class::ServiceClass;
use serde::{Deserialize, Serialize};

use super::model::{
    CostModel, FrontCost, LookupOutcome, RequestFacts, RequestProgress, ServiceStep, Stations, check_range,
    us_to_ns,
};
use crate::SimError;
use crate::source::ClientConnection;
use crate::workload::Item;

/// Bytes of a frame beside its segment: TCP/IP headers, Ethernet header and check, preamble and gap.
const FRAME_BYTES: f64 = 78.0;
/// Bytes of a frame with an acknowledgement, preamble and gap included.
const ACK_BYTES: f64 = 84.0;
/// Payload of an SSL record, in bytes.
const RECORD_BYTES: u64 = 16 << 10;
/// Bytes of one database access.
const ACCESS_BYTES: f64 = 8_192.0;

/// The protocol layer at which the switch works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwitchLayer {
    /// TCP: the switch decides once per connection.
    Layer4,
    /// HTTP: the switch decides for each request, with multiple handoff.
    #[default]
    Layer7,
}

/// The parameters of the model. Ranges: times 0 to 10 s, rates above 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cap01 {
    /// The layer at which the switch works. Default layer 7.
    pub switch: SwitchLayer,
    /// Switch: time per connection at layer 4, in us. Default 50.
    pub layer4_us: f64,
    /// Switch: time per request at layer 7, in us. Default 200.
    pub layer7_us: f64,
    /// Switch: time per packet of the client, in us. Default 9.
    pub packet_us: f64,
    /// Server: time to set a connection up and take it down, in us. Default 556.
    pub connection_us: f64,
    /// Server: time per request, in us. Default 527.
    pub request_us: f64,
    /// Server: memory transfer rate in MB/s. Default 100.
    pub memory_mb_s: f64,
    /// Server: longest time slice of the processor, in us; above 0. Default 10,000.
    pub slice_us: f64,
    /// Disk: controller time, in us. Default 50.
    pub controller_us: f64,
    /// Disk: seek time, in us. Default 9,000.
    pub seek_us: f64,
    /// Disk: time of half a rotation, in us. Default 4,167 (7,200 rpm).
    pub rotation_us: f64,
    /// Disk: transfer rate in MB/s. Default 20.
    pub disk_mb_s: f64,
    /// Network: rate in Mb/s. Default 100.
    pub network_mbit_s: f64,
    /// Network: round trip without load, in us. Default 200.
    pub round_trip_us: f64,
    /// Network: bytes of a segment, 1 to 65,535. Default 1,460.
    pub segment_bytes: u64,
    /// Network: segments of the first window, at least 1. Default 2.
    pub first_window: u64,
    /// Network: segments of the largest window, at least `first_window`. Default 44.
    pub largest_window: u64,
    /// SSL: RSA rate in Kb/s. Default 38.5.
    pub rsa_kbit_s: f64,
    /// SSL: bits that RSA processes for a key exchange. Default 384.
    pub rsa_bits: f64,
    /// SSL: Triple DES rate in Kb/s. Default 46,886.
    pub cipher_kbit_s: f64,
    /// SSL: MD5 rate in Kb/s. Default 331,034.
    pub digest_kbit_s: f64,
    /// SSL: bytes sent for a key exchange. Default 2,121: certificate, hello and close.
    pub hello_bytes: u64,
    /// SSL: bytes of a record's header. Default 29.
    pub record_bytes: u64,
}

impl Default for Cap01 {
    fn default() -> Self {
        Self {
            switch: SwitchLayer::Layer7,
            layer4_us: 50.0,
            layer7_us: 200.0,
            packet_us: 9.0,
            connection_us: 556.0,
            request_us: 527.0,
            memory_mb_s: 100.0,
            slice_us: 10_000.0,
            controller_us: 50.0,
            seek_us: 9_000.0,
            rotation_us: 4_167.0,
            disk_mb_s: 20.0,
            network_mbit_s: 100.0,
            round_trip_us: 200.0,
            segment_bytes: 1_460,
            first_window: 2,
            largest_window: 44,
            rsa_kbit_s: 38.5,
            rsa_bits: 384.0,
            cipher_kbit_s: 46_886.0,
            digest_kbit_s: 331_034.0,
            hello_bytes: 2_048 + 73,
            record_bytes: 29,
        }
    }
}

impl Cap01 {
    /// Returns the disk time of a sequential read of `bytes`, in ns.
    pub fn read_ns(&self, bytes: u64) -> u64 {
        us_to_ns(self.controller_us + self.seek_us + self.rotation_us + bytes as f64 / self.disk_mb_s)
    }

    /// Returns the disk time of one database access, in ns.
    pub fn access_ns(&self) -> u64 {
        us_to_ns(self.controller_us + self.seek_us + self.rotation_us + ACCESS_BYTES / self.disk_mb_s)
    }

    /// Returns the processor time of a key exchange, in ns.
    pub fn keys_ns(&self) -> u64 {
        us_to_ns(self.rsa_bits / self.rsa_kbit_s * 1_000.0)
    }

    /// Returns the processor time to copy a reply from memory to the network, in ns.
    pub fn copy_ns(&self, bytes: u64, encrypted: bool) -> u64 {
        let bits = bytes as f64 * 8.0;
        let cipher = if encrypted { bits / self.cipher_kbit_s + bits / self.digest_kbit_s } else { 0.0 };
        us_to_ns(bytes as f64 / self.memory_mb_s + cipher * 1_000.0)
    }

    /// Returns the time on the line for `bytes`, in us.
    fn line_us(&self, bytes: f64) -> f64 {
        bytes * 8.0 / self.network_mbit_s
    }

    fn wire_bytes(&self, item: &Item) -> u64 {
        let records =
            if is_encrypted(item) { item.bytes.div_ceil(RECORD_BYTES) * self.record_bytes } else { 0 };
        (item.bytes + records).max(1)
    }

    /// Returns the time on the line for `bytes` in segments, in ns.
    fn send_ns(&self, bytes: u64) -> u64 {
        let frames = bytes.div_ceil(self.segment_bytes);
        us_to_ns(self.line_us(bytes as f64 + frames as f64 * FRAME_BYTES))
    }

    /// Returns the time that the server waits after a window before it may send the next, in ns.
    fn stall_ns(&self, window: u64) -> u64 {
        let segment_us = self.line_us(self.segment_bytes as f64 + FRAME_BYTES);
        let acknowledged_us = self.round_trip_us + self.line_us(ACK_BYTES);
        us_to_ns((acknowledged_us - window.saturating_sub(2) as f64 * segment_us).max(0.0))
    }

    /// Returns the next time slice of a demand, in ns; `None` if the demand is done.
    fn slice(&self, progress: &mut RequestProgress, demand_ns: u64, longest_ns: u64) -> Option<u64> {
        let left = demand_ns.saturating_sub(progress.done);
        let slice = left.min(longest_ns.max(1));
        progress.done += slice;
        (slice > 0).then_some(slice)
    }

    /// Returns the server time before the lookup, in ns.
    fn setup_ns(&self, facts: &RequestFacts<'_>) -> u64 {
        let connection = if facts.connection.opens { us_to_ns(self.connection_us) } else { 0 };
        let keys = if facts.connection.keys { self.keys_ns() } else { 0 };
        connection + keys + us_to_ns(self.request_us) + facts.item.cpu_ns
    }

    pub(crate) fn check(&self) -> Result<(), SimError> {
        let times = [
            (self.layer4_us, "costs.layer4_us"),
            (self.layer7_us, "costs.layer7_us"),
            (self.packet_us, "costs.packet_us"),
            (self.connection_us, "costs.connection_us"),
            (self.request_us, "costs.request_us"),
            (self.slice_us, "costs.slice_us"),
            (self.controller_us, "costs.controller_us"),
            (self.seek_us, "costs.seek_us"),
            (self.rotation_us, "costs.rotation_us"),
            (self.round_trip_us, "costs.round_trip_us"),
        ];
        times.into_iter().try_for_each(|(value, key)| check_range(value, 1e7, key, "0 to 10,000,000 us"))?;
        check_range(self.rsa_bits, 1e6, "costs.rsa_bits", "0 to 1,000,000")?;
        let rates = [
            (self.memory_mb_s, "costs.memory_mb_s"),
            (self.disk_mb_s, "costs.disk_mb_s"),
            (self.network_mbit_s, "costs.network_mbit_s"),
            (self.rsa_kbit_s, "costs.rsa_kbit_s"),
            (self.cipher_kbit_s, "costs.cipher_kbit_s"),
            (self.digest_kbit_s, "costs.digest_kbit_s"),
        ];
        let out = |key, range| Err(SimError::OutOfRange { key, range });
        for (rate, key) in rates {
            if !(rate > 0.0 && rate <= 1e9) {
                return out(key, "above 0, at most 1,000,000,000");
            }
        }
        if self.slice_us == 0.0 {
            return out("costs.slice_us", "above 0");
        }
        if !(1..=65_535).contains(&self.segment_bytes) {
            return out("costs.segment_bytes", "1 to 65,535");
        }
        if self.first_window == 0 || self.largest_window < self.first_window || self.largest_window > 1 << 20
        {
            return out(
                "costs.first_window",
                "at least 1 and at most largest_window, which is at most 1,048,576",
            );
        }
        if self.hello_bytes > 1 << 20 || self.record_bytes > 1 << 20 {
            return out("costs.hello_bytes and costs.record_bytes", "at most 1,048,576");
        }
        Ok(())
    }
}

/// Returns whether the item is sent over an encrypted channel.
fn is_encrypted(item: &Item) -> bool {
    matches!(item.class, ServiceClass::Cb | ServiceClass::Dcb)
}

const ARRIVED: u8 = 0;
const BEGIN: u8 = 1;
const GREET: u8 = 2;
const QUERY: u8 = 3;
const LOOK: u8 = 4;
const LOOKED: u8 = 5;
const READ: u8 = 6;
const COPY: u8 = 7;
const SEND: u8 = 8;
const STALL: u8 = 9;

/// The number of bits of [`RequestProgress::done`] for bytes sent. The bits above them hold the window.
const SENT_BITS: u32 = 40;

impl Cap01 {
    fn enter_stage(
        &self,
        progress: &mut RequestProgress,
        stage: u8,
        facts: &RequestFacts<'_>,
    ) -> ServiceStep {
        *progress = RequestProgress { stage, done: 0 };
        self.next_step(progress, facts)
    }

    fn send(&self, progress: &mut RequestProgress, facts: &RequestFacts<'_>) -> ServiceStep {
        let bytes = self.wire_bytes(facts.item).min((1 << SENT_BITS) - 1);
        let sent = progress.done & ((1 << SENT_BITS) - 1);
        if sent >= bytes {
            return ServiceStep::Done;
        }
        let last = progress.done >> SENT_BITS;
        let window =
            if last == 0 { self.first_window } else { (last + (last / 2).max(1)).min(self.largest_window) };
        let now = (window * self.segment_bytes).min(bytes - sent);
        *progress = RequestProgress { stage: STALL, done: (sent + now) | window << SENT_BITS };
        ServiceStep::Nic(self.send_ns(now))
    }

    fn stall(&self, progress: &mut RequestProgress, facts: &RequestFacts<'_>) -> ServiceStep {
        progress.stage = SEND;
        let sent = progress.done & ((1 << SENT_BITS) - 1);
        let stall_ns = self.stall_ns(progress.done >> SENT_BITS);
        if stall_ns > 0 && sent < self.wire_bytes(facts.item) {
            ServiceStep::Pause(stall_ns)
        } else {
            self.send(progress, facts)
        }
    }
}

impl CostModel for Cap01 {
    const STATIONS: Stations = Stations { nic: true, back: true, ..Stations::NONE };

    fn next_step(&self, progress: &mut RequestProgress, facts: &RequestFacts<'_>) -> ServiceStep {
        let (item, connection) = (facts.item, &facts.connection);
        match progress.stage {
            ARRIVED => {
                progress.stage = BEGIN;
                let trips = f64::from(u8::from(connection.opens)) + if connection.keys { 2.0 } else { 0.0 };
                ServiceStep::Pause(us_to_ns(trips * self.round_trip_us))
            }
            BEGIN => match self.slice(progress, self.setup_ns(facts), us_to_ns(self.slice_us)) {
                Some(slice) => ServiceStep::Cpu(slice),
                None => self.enter_stage(progress, GREET, facts),
            },
            GREET => {
                *progress = RequestProgress { stage: QUERY, done: 0 };
                if connection.keys {
                    ServiceStep::Nic(self.send_ns(self.hello_bytes))
                } else {
                    self.next_step(progress, facts)
                }
            }
            QUERY => match self.slice(progress, item.back_ns, self.access_ns()) {
                Some(slice) => ServiceStep::Back(slice),
                None => self.enter_stage(progress, if item.back_ns > 0 { COPY } else { LOOK }, facts),
            },
            LOOK => {
                progress.stage = LOOKED;
                ServiceStep::Lookup
            }
            LOOKED => match facts.found {
                LookupOutcome::Memory => self.enter_stage(progress, COPY, facts),
                LookupOutcome::Shared => {
                    progress.stage = COPY;
                    ServiceStep::Await
                }
                LookupOutcome::Peer => {
                    progress.stage = COPY;
                    ServiceStep::PeerCpu(self.copy_ns(item.bytes, false))
                }
                found => {
                    progress.stage = if found == LookupOutcome::Read { READ } else { COPY };
                    ServiceStep::Disk(self.read_ns(item.bytes))
                }
            },
            READ => {
                progress.stage = COPY;
                ServiceStep::Stored
            }
            COPY => {
                match self.slice(
                    progress,
                    self.copy_ns(item.bytes, is_encrypted(item)),
                    us_to_ns(self.slice_us),
                ) {
                    Some(slice) => ServiceStep::Cpu(slice),
                    None => self.enter_stage(progress, SEND, facts),
                }
            }
            SEND => self.send(progress, facts),
            _ => self.stall(progress, facts),
        }
    }

    fn front_cost(&self, item: &Item, connection: &ClientConnection) -> FrontCost {
        // The client sends the request, an acknowledgement for every second segment, and two packets of the
        // handshake.
        let segments = self.wire_bytes(item).div_ceil(self.segment_bytes);
        let packets = 1 + segments.div_ceil(2) + if connection.opens { 2 } else { 0 };
        let decision_us = match self.switch {
            SwitchLayer::Layer4 if connection.opens => self.layer4_us,
            SwitchLayer::Layer4 => 0.0,
            SwitchLayer::Layer7 => self.layer7_us,
        };
        FrontCost {
            request_ns: us_to_ns(decision_us + packets as f64 * self.packet_us),
            ..FrontCost::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::TargetId;

    /// The demand of a request at each station in ns, its longest processor slice, and its windows.
    #[derive(Debug, Default, PartialEq)]
    struct StationDemand {
        cpu: u64,
        disk: u64,
        nic: u64,
        back: u64,
        pause: u64,
        longest_cpu: u64,
        windows: Vec<u64>,
    }

    fn walk(item: &Item, found: LookupOutcome, connection: ClientConnection) -> StationDemand {
        let (model, mut demand) = (Cap01::default(), StationDemand::default());
        let (mut progress, mut looked) = (RequestProgress::default(), LookupOutcome::Unknown);
        for _ in 0..10_000 {
            let facts = RequestFacts { item, found: looked, forwarded: false, connection };
            match model.next_step(&mut progress, &facts) {
                ServiceStep::Lookup => looked = found,
                ServiceStep::Cpu(ns) => {
                    demand.cpu += ns;
                    demand.longest_cpu = demand.longest_cpu.max(ns);
                }
                ServiceStep::Disk(ns) => demand.disk += ns,
                ServiceStep::Nic(ns) => {
                    demand.nic += ns;
                    demand.windows.push(ns);
                }
                ServiceStep::Back(ns) => demand.back += ns,
                ServiceStep::Pause(ns) => demand.pause += ns,
                ServiceStep::Await | ServiceStep::Stored => {}
                ServiceStep::Done => return demand,
                other => panic!("{other:?}"),
            }
        }
        panic!("a request without end: {demand:?}");
    }

    fn later() -> ClientConnection {
        ClientConnection { opens: false, ..ClientConnection::default() }
    }

    #[test]
    fn a_static_document_takes_the_papers_times() {
        let item = Item::file(TargetId(1), 14_600);
        let hit = walk(&item, LookupOutcome::Memory, later());
        // 527 us and 146 us of memory; ten frames of 1,538 bytes at 12.5 bytes/us.
        assert_eq!((hit.cpu, hit.disk, hit.nic), (673_000, 0, 1_230_400));
        // The windows have 2, 3, 4 and the remaining segments. The stall is 206.72 us after two, 83.68 us
        // after three, and none after four.
        assert_eq!(hit.windows, [246_080, 369_120, 492_160, 123_040]);
        assert_eq!(hit.pause, 206_720 + 83_680);
        // 50 + 9,000 + 4,167 us and 14,600 bytes at 20 bytes/us.
        assert_eq!(walk(&item, LookupOutcome::Read, later()).disk, 13_947_000);
        assert_eq!(walk(&item, LookupOutcome::Never, later()).disk, 13_947_000, "what is never kept is read");
        assert_eq!(walk(&item, LookupOutcome::Shared, later()).disk, 0);
        let first = walk(&item, LookupOutcome::Memory, ClientConnection::default());
        assert_eq!((first.cpu - hit.cpu, first.pause - hit.pause), (556_000, 200_000));
    }

    #[test]
    fn encryption_takes_processor_time_and_bytes() {
        let plain = Item::file(TargetId(1), 100_000);
        let secure = Item { class: ServiceClass::Cb, ..plain };
        let (open, shut) =
            (walk(&plain, LookupOutcome::Memory, later()), walk(&secure, LookupOutcome::Memory, later()));
        // 800,000 bits at 46,886 and at 331,034 bits/ms.
        let cipher_ns = (800_000.0 / 46_886.0 + 800_000.0 / 331_034.0) * 1e6;
        assert!(((shut.cpu - open.cpu) as f64 - cipher_ns).abs() < 2_000.0, "{shut:?}");
        assert!(shut.longest_cpu <= 10_000_000 && shut.cpu > 10_000_000, "long demands are sliced");
        // Seven records of 29 bytes at 12.5 bytes/us, in the same 69 frames.
        assert_eq!(shut.nic - open.nic, 16_240);
        let keyed = walk(&secure, LookupOutcome::Memory, ClientConnection { keys: true, ..later() });
        // 384 bits at 38.5 bits/ms; 2,121 bytes in two frames; two round trips.
        assert_eq!((keyed.cpu - shut.cpu) / 1_000, 9_974);
        assert_eq!((keyed.nic - shut.nic, keyed.pause - shut.pause), (182_160, 400_000));
    }

    #[test]
    fn queries_use_the_back_end_one_access_at_a_time() {
        let model = Cap01::default();
        let item = Item {
            class: ServiceClass::Db,
            cacheable: false,
            back_ns: 10 * model.access_ns(),
            ..Item::file(TargetId(1), 2_000)
        };
        let demand = walk(&item, LookupOutcome::Never, later());
        // 13,217 us and 8,192 bytes at 20 bytes/us, ten times.
        assert_eq!((demand.back, demand.disk), (136_266_000, 0));
    }

    #[test]
    fn the_switch_is_paid_by_connection_or_by_request() {
        let (item, seven) = (Item::file(TargetId(1), 2_920), Cap01::default());
        let four = Cap01 { switch: SwitchLayer::Layer4, ..seven };
        let front = |model: &Cap01, connection: ClientConnection| {
            model.front_cost(&item, &connection).request_ns / 1_000
        };
        assert_eq!(
            (front(&seven, ClientConnection::default()), front(&seven, later())),
            (200 + 36, 200 + 18)
        );
        assert_eq!((front(&four, ClientConnection::default()), front(&four, later())), (50 + 36, 18));
    }

    #[test]
    fn values_out_of_range_are_named() {
        let name = |model: Cap01| model.check().expect_err("out of range").to_string();
        assert!(name(Cap01 { seek_us: -1.0, ..Cap01::default() }).contains("costs.seek_us"));
        assert!(name(Cap01 { disk_mb_s: 0.0, ..Cap01::default() }).contains("costs.disk_mb_s"));
        assert!(name(Cap01 { first_window: 0, ..Cap01::default() }).contains("costs.first_window"));
        assert!(name(Cap01 { slice_us: 0.0, ..Cap01::default() }).contains("costs.slice_us"));
        assert_eq!(Cap01::default().check(), Ok(()));
    }
}
