//! The analytic model of PRESS (`larder sim press`) fed with what was measured on this machine, beside the measurement.
//!
//! As in the paper: the hit ratio of the traditional server stands for the working set, and a Zipf law with the trace's
//! exponent for everything else, so that the model itself says what the cluster finds in memory and what it forwards.
//! A second row has the measured shares in their place, and shows the error of the queues alone: reads for each request, of which
//! there are fewer than misses where several wait for one, and their mean time in that run.
//!
//! Service rates: processor times of a local reply and of forwarding as [`rates`](super::rates) measured them, and for the
//! model's own shares the mean time of a read in the run of the traditional server. All nodes and the clients share the processors of this machine, so
//! that each node has a part of one: processor times count as many times over as there are nodes for each processor, and what others
//! use of the processors meanwhile is taken off. The
//! text is M0, since the measured time of forwarding has all nodes' work in it; networks do not bind on loopback.

use larder_core::Bytes;
use larder_sim::press::{Press, Reading, Resource, Server};

use super::result::{Figures, Predicted, Prediction, Rates};

/// As good as no time for a byte; finite, as the model asks.
const AT_ONCE: f64 = 1e15;
/// Exponents that the model takes.
const ALPHA_MAX: f64 = 5.0;
/// Mean requested file of PRESS's Clarknet, KB: the paper's costs are stated for it here.
const CLARKNET_KB: f64 = 9.7;

/// What the model is fed with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fed<'a> {
    pub(super) rates: &'a Rates,
    pub(super) nodes: usize,
    /// Processors of the machine.
    pub(super) cores: f64,
    pub(super) memory: Bytes,
    /// Zipf exponent of the trace.
    pub(super) alpha: f64,
    pub(super) reply_bytes_mean: f64,
    pub(super) trad: &'a Figures,
    pub(super) press: &'a Figures,
}

/// What it says.
///
/// # Errors
/// In words: the model has no answer for such figures.
pub(super) fn predict(fed: &Fed<'_>) -> Result<Prediction, String> {
    let read_ms = fed.trad.read_ms.ok_or("the traditional server read nothing from disk")?;
    let press = model(fed, read_ms, fed.cores)?;
    let said = |error: larder_sim::SimError| error.to_string();
    let solution = press.solve().map_err(said)?;
    let row = |system: &str, shares, reads: f64, read_ms: f64, forwarded: f64| {
        let (server, run) = match system {
            "trad" => (Server::Trad, fed.trad),
            _ => (Server::Portable, fed.press),
        };
        // What others use of the processors this cluster has not.
        let others = run.cpu_busy.zip(run.cpu_own).map_or(0.0, |(all, own)| (all - own).clamp(0.0, 0.99));
        let processors = fed.cores * (1.0 - others);
        let model = model(fed, read_ms, processors)?;
        let answer = model.at(server, (1.0 - reads).clamp(0.0, 1.0), forwarded).map_err(said)?;
        let measured = run.requests_per_s;
        Ok::<_, String>(Predicted {
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
    let (trad, peers) = (fed.trad, fed.press);
    let rows = vec![
        row("trad", "measured", trad.disk_reads, read_ms, 0.0)?,
        row("press", "of the model", 1.0 - solution.hit_rate_cluster, read_ms, solution.forwarded)?,
        row("press", "measured", peers.disk_reads, peers.read_ms.unwrap_or(read_ms), peers.forwarded)?,
    ];
    let local_s = press.reply_s;
    let busy_s = press.at(Server::Portable, 1.0, peers.forwarded).map_err(said)?.demand.cpu_s;
    let missed = trad.disk_reads;
    Ok(Prediction {
        alpha: fed.alpha,
        read_ms,
        rows,
        // Only where forwarding costs more processor time than it saves does the traditional server ever win.
        break_even_ms: (missed > 0.0 && busy_s > local_s).then(|| busy_s / missed * 1e3),
        read_over_local: read_ms / 1e3 / local_s,
        forward_over_local: fed.rates.forward_us / (fed.rates.local_us + fed.rates.client_us),
    })
}

fn model(fed: &Fed<'_>, read_ms: f64, processors: f64) -> Result<Press, String> {
    if !(0.0..=ALPHA_MAX).contains(&fed.alpha) {
        return Err(format!("the requests' exponent is {:.2}, the model takes 0 to 5", fed.alpha));
    }
    // A node's part of a processor.
    let shared = fed.nodes as f64 / processors;
    let seconds = |us: f64| us * shared / 1e6;
    Ok(Press {
        nodes: u32::try_from(fed.nodes).map_err(|_| "too many nodes".to_owned())?,
        hit_rate: fed.trad.hit_ratio,
        file_kb: fed.reply_bytes_mean / 1_024.0,
        memory_mb: fed.memory.get() as f64 / f64::from(1 << 20),
        alpha: fed.alpha,
        reading: Reading::M0,
        parse_per_s: AT_ONCE,
        reply_s: seconds(fed.rates.local_us + fed.rates.client_us),
        reply_kb_per_s: AT_ONCE,
        disk_s: read_ms / 1e3,
        disk_kb_per_s: AT_ONCE,
        forward_per_s: Some(1.0 / seconds(fed.rates.forward_us).max(1e-9)),
        relay_s: Some(0.0),
        relay_kb_per_s: Some(AT_ONCE),
        external_s: 0.0,
        external_kb_per_s: AT_ONCE,
        internal_s: 0.0,
        internal_kb_per_s: AT_ONCE,
        ..Press::default()
    })
}

/// The paper's own ratios for its Clarknet: a read over a local reply, and forwarding over one on the fast network and on
/// the slow one.
pub(crate) fn published_ratios() -> (f64, f64, f64) {
    let of = |network| {
        let press = Press { file_kb: CLARKNET_KB, reading: Reading::M0, network, ..Press::default() };
        let demand =
            |hits, forwarded| press.at(Server::Portable, hits, forwarded).map(|answer| answer.demand);
        let (local, forwarded, missed) = (demand(1.0, 0.0), demand(1.0, 1.0), demand(0.0, 0.0));
        match (local, forwarded, missed) {
            (Ok(local), Ok(forwarded), Ok(missed)) => {
                (missed.disk_s / local.cpu_s, forwarded.cpu_s / local.cpu_s - 1.0)
            }
            // The paper's own parameters are in range.
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

    fn figures(hit_ratio: f64, forwarded: f64, requests_per_s: f64) -> Figures {
        let (disk_reads, read_ms) = (1.0 - hit_ratio, Some(10.0));
        Figures { hit_ratio, disk_reads, forwarded, requests_per_s, read_ms, ..Figures::default() }
    }

    #[test]
    fn the_rates_bind_where_they_must() {
        let (rates, trad, press) = (rates(), figures(0.9, 0.0, 7_000.0), figures(1.0, 0.75, 9_000.0));
        let fed = Fed {
            rates: &rates,
            nodes: 8,
            cores: 2.0,
            memory: Bytes::mib(10),
            alpha: 0.8,
            reply_bytes_mean: 10_240.0,
            trad: &trad,
            press: &press,
        };
        let said = predict(&fed).unwrap();
        // 8 disks, one request in ten reads for 10 ms: 8,000/s. 2 processors over 100 us + 0.75 * 150 us: 9,411.8/s.
        assert!((said.rows[0].requests_per_s - 8_000.0).abs() < 0.1, "{said:?}");
        assert_eq!((said.rows[0].binds, said.rows[2].binds), ("disk", "cpu"));
        assert!((said.rows[2].requests_per_s - 2e6 / 212.5).abs() < 0.1);
        assert!((said.rows[0].error - 1.0 / 7.0).abs() < 1e-4);
        // 8 nodes / 9,411.8 a second, of which one in ten reads: 8.5 ms.
        assert!((said.break_even_ms.unwrap() - 8.5).abs() < 1e-6);
        assert!((said.read_over_local - 25.0).abs() < 1e-6 && (said.forward_over_local - 1.5).abs() < 1e-6);
        assert!(said.rows[1].reads < 0.1 && said.rows[1].forwarded > 0.3);
        // Where two wait for each read there are half as many.
        let shared = Figures { disk_reads: 0.05, ..trad.clone() };
        let said = predict(&Fed { trad: &shared, ..fed }).unwrap();
        assert!(
            said.rows[0].binds == "disk" && (said.rows[0].requests_per_s - 16_000.0).abs() < 0.1,
            "{said:?}"
        );
        let whole = Figures { read_ms: None, ..figures(1.0, 0.0, 1.0) };
        assert!(predict(&Fed { trad: &whole, ..fed }).is_err());
    }

    #[test]
    fn the_papers_ratios_follow_from_its_table() {
        let (read, fast, slow) = published_ratios();
        assert!((read - 20.9).abs() < 0.1 && (fast - 0.265).abs() < 0.005 && (slow - 1.93).abs() < 0.01);
    }
}
