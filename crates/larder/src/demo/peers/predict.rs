//! Compares the analytic model of PRESS (`larder sim press`), fed with measurements of this machine, with the
//! measured throughput.
//!
//! As in the paper, the hit ratio of the traditional server determines the working set, and a Zipf law with
//! the trace's exponent determines everything else. The model thus computes the hit ratio and the forwarded
//! share itself. A second row uses the measured shares instead, and shows the error of the queues alone. Its
//! inputs are the reads per request, which are fewer than the misses if requests wait for the same read, and
//! the mean read time.
//!
//! The service rates are the processor times of a local reply and of forwarding, as [`rates`](super::rates)
//! measured them. The model's own shares use the mean read time of the traditional server. Nodes and clients
//! share the machine's processors, so each node has a part of one. Processor times are therefore multiplied
//! by the number of nodes per processor, and time that other processes use is subtracted. The model text is
//! M0, because the measured time of forwarding contains the work of all nodes. Networks are no limit on
//! loopback.

use larder_core::Bytes;
use larder_sim::press::{Press, PressVariant, Resource, Server};

use super::result::{PeersFigures, Prediction, PredictionRow, Rates};

/// Rate per byte that takes practically no time. It is finite because the model requires it.
const UNLIMITED: f64 = 1e15;
/// Largest exponent that the model accepts.
const ALPHA_MAX: f64 = 5.0;
/// Mean requested file of PRESS's Clarknet trace, KB. The paper's costs are computed for it.
const CLARKNET_KB: f64 = 9.7;

/// Inputs of the model.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelInput<'a> {
    pub(super) rates: &'a Rates,
    pub(super) nodes: usize,
    /// Processors of the machine.
    pub(super) cores: f64,
    pub(super) memory: Bytes,
    /// Zipf exponent of the trace.
    pub(super) alpha: f64,
    pub(super) reply_bytes_mean: f64,
    pub(super) trad: &'a PeersFigures,
    pub(super) press: &'a PeersFigures,
}

/// Predicts the throughput.
///
/// # Errors
/// Returns a description if the model has no solution for these inputs.
pub(super) fn predict(input: &ModelInput<'_>) -> Result<Prediction, String> {
    let read_ms = input.trad.read_ms.ok_or("the traditional server read nothing from disk")?;
    let press = build_model(input, read_ms, input.cores)?;
    let describe = |error: larder_sim::SimError| error.to_string();
    let solution = press.solve().map_err(describe)?;
    let row = |system: &str, shares, reads: f64, read_ms: f64, forwarded: f64| {
        let (server, run) = match system {
            "trad" => (Server::Trad, input.trad),
            _ => (Server::Portable, input.press),
        };
        // Processors that other processes use are not available to this cluster.
        let others = run.cpu_busy.zip(run.cpu_own).map_or(0.0, |(all, own)| (all - own).clamp(0.0, 0.99));
        let processors = input.cores * (1.0 - others);
        let model = build_model(input, read_ms, processors)?;
        let answer = model.at(server, (1.0 - reads).clamp(0.0, 1.0), forwarded).map_err(describe)?;
        let measured = run.requests_per_s;
        Ok::<_, String>(PredictionRow {
            system: system.to_owned(),
            shares,
            reads,
            read_ms,
            forwarded,
            requests_per_s: answer.throughput,
            processors,
            binds: if answer.binds == Resource::Disk { "disk" } else { "cpu" },
            measured,
            error: answer.throughput / measured.max(f64::MIN_POSITIVE) - 1.0,
        })
    };
    let (trad, peers) = (input.trad, input.press);
    let rows = vec![
        row("trad", "measured", trad.disk_reads, read_ms, 0.0)?,
        row("press", "of the model", 1.0 - solution.hit_rate_cluster, read_ms, solution.forwarded)?,
        row("press", "measured", peers.disk_reads, peers.read_ms.unwrap_or(read_ms), peers.forwarded)?,
    ];
    let local_s = press.reply_s;
    let busy_s = press.at(Server::Portable, 1.0, peers.forwarded).map_err(describe)?.demand.cpu_s;
    let missed = trad.disk_reads;
    Ok(Prediction {
        alpha: input.alpha,
        read_ms,
        rows,
        // The traditional server can only win if forwarding costs more processor time than it saves.
        break_even_ms: (missed > 0.0 && busy_s > local_s).then(|| busy_s / missed * 1e3),
        read_over_local: read_ms / 1e3 / local_s,
        forward_over_local: input.rates.forward_us / (input.rates.local_us + input.rates.client_us),
    })
}

fn build_model(input: &ModelInput<'_>, read_ms: f64, processors: f64) -> Result<Press, String> {
    if !(0.0..=ALPHA_MAX).contains(&input.alpha) {
        return Err(format!(
            "the Zipf exponent of the requests is {:.2}, but the model supports 0 to 5",
            input.alpha
        ));
    }
    // A node has only a part of a processor.
    let shared = input.nodes as f64 / processors;
    let seconds = |us: f64| us * shared / 1e6;
    Ok(Press {
        nodes: u32::try_from(input.nodes).map_err(|_| "too many nodes".to_owned())?,
        hit_rate: input.trad.hit_ratio,
        file_kb: input.reply_bytes_mean / 1_024.0,
        memory_mb: input.memory.get() as f64 / f64::from(1 << 20),
        alpha: input.alpha,
        reading: PressVariant::M0,
        parse_per_s: UNLIMITED,
        reply_s: seconds(input.rates.local_us + input.rates.client_us),
        reply_kb_per_s: UNLIMITED,
        disk_s: read_ms / 1e3,
        disk_kb_per_s: UNLIMITED,
        forward_per_s: Some(1.0 / seconds(input.rates.forward_us).max(1e-9)),
        relay_s: Some(0.0),
        relay_kb_per_s: Some(UNLIMITED),
        external_s: 0.0,
        external_kb_per_s: UNLIMITED,
        internal_s: 0.0,
        internal_kb_per_s: UNLIMITED,
        ..Press::default()
    })
}

/// Returns the paper's ratios for Clarknet: a read over a local reply, and forwarding over a local reply on
/// the fast and the slow network.
pub(crate) fn published_ratios() -> (f64, f64, f64) {
    let of = |network| {
        let press = Press { file_kb: CLARKNET_KB, reading: PressVariant::M0, network, ..Press::default() };
        let demand =
            |hits, forwarded| press.at(Server::Portable, hits, forwarded).map(|answer| answer.demand);
        let (local, forwarded, missed) = (demand(1.0, 0.0), demand(1.0, 1.0), demand(0.0, 0.0));
        match (local, forwarded, missed) {
            (Ok(local), Ok(forwarded), Ok(missed)) => {
                (missed.disk_s / local.cpu_s, forwarded.cpu_s / local.cpu_s - 1.0)
            }
            // The paper's parameters are always in range.
            _ => (f64::NAN, f64::NAN),
        }
    };
    let (read, fast) = of(larder_sim::press::Network::Fast);
    (read, fast, of(larder_sim::press::Network::Slow).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates() -> Rates {
        Rates {
            local_us: 60.0,
            client_us: 40.0,
            forward_us: 150.0,
            forwarded: 0.875,
            requests: 1_000,
            reply_bytes_mean: 10_240.0,
        }
    }

    fn figures(hit_ratio: f64, forwarded: f64, requests_per_s: f64) -> PeersFigures {
        let (disk_reads, read_ms) = (1.0 - hit_ratio, Some(10.0));
        PeersFigures { hit_ratio, disk_reads, forwarded, requests_per_s, read_ms, ..PeersFigures::default() }
    }

    #[test]
    fn the_slowest_resource_limits_the_throughput() {
        let (rates, trad, press) = (rates(), figures(0.9, 0.0, 7_000.0), figures(1.0, 0.75, 9_000.0));
        let input = ModelInput {
            rates: &rates,
            nodes: 8,
            cores: 2.0,
            memory: Bytes::mib(10),
            alpha: 0.8,
            reply_bytes_mean: 10_240.0,
            trad: &trad,
            press: &press,
        };
        let prediction = predict(&input).unwrap();
        // 8 disks, and one request in ten reads for 10 ms: 8,000/s. 2 processors, and 100 us + 0.75 * 150 us
        // per request: 9,411.8/s.
        assert!((prediction.rows[0].requests_per_s - 8_000.0).abs() < 0.1, "{prediction:?}");
        assert_eq!((prediction.rows[0].binds, prediction.rows[2].binds), ("disk", "cpu"));
        assert!((prediction.rows[2].requests_per_s - 2e6 / 212.5).abs() < 0.1);
        assert!((prediction.rows[0].error - 1.0 / 7.0).abs() < 1e-4);
        // 8 nodes / 9,411.8 per second, and one request in ten reads: 8.5 ms.
        assert!((prediction.break_even_ms.unwrap() - 8.5).abs() < 1e-6);
        assert!(
            (prediction.read_over_local - 25.0).abs() < 1e-6
                && (prediction.forward_over_local - 1.5).abs() < 1e-6
        );
        assert!(prediction.rows[1].reads < 0.1 && prediction.rows[1].forwarded > 0.3);
        // If two requests wait for each read, there are half as many reads.
        let shared = PeersFigures { disk_reads: 0.05, ..trad.clone() };
        let prediction = predict(&ModelInput { trad: &shared, ..input }).unwrap();
        assert!(
            prediction.rows[0].binds == "disk" && (prediction.rows[0].requests_per_s - 16_000.0).abs() < 0.1,
            "{prediction:?}"
        );
        let whole = PeersFigures { read_ms: None, ..figures(1.0, 0.0, 1.0) };
        assert!(predict(&ModelInput { trad: &whole, ..input }).is_err());
    }

    #[test]
    fn the_papers_ratios_are_reproduced() {
        let (read, fast, slow) = published_ratios();
        assert!((read - 20.9).abs() < 0.1 && (fast - 0.265).abs() < 0.005 && (slow - 1.93).abs() < 0.01);
    }
}
