//! The statements of the papers about their prototypes, and whether a live run agrees with them.
//!
//! A printed gain holds if ours is between half of it and one and a half times it: the papers' machines are 25 years older,
//! so a gain of the same size is all that can be expected. "About equal" allows 5 %, the error of reading a figure.
//! "Better" without a number means more than about equal, and less than the smallest gain that the paper prints for a
//! heavier workload. A spread that is "closer" is smaller by at least 5 %. These bounds were set before the runs that they
//! judge; results of earlier runs of these experiments were known.

use serde::Serialize;

use super::runner::Row;
use super::text::Table;
use larder_core::PolicyKind;
use larder_papers::Verdict;

/// The quantity compared between two policies: the value of the paper's policy over that of the other.
#[derive(Clone, Copy, Debug)]
enum Ratio {
    /// Requests per second.
    Throughput,
    /// Mean latency.
    MeanLatency,
    /// The difference between the busiest and the least busy node.
    BusySpread,
}

impl Ratio {
    fn of(self, row: &Row) -> f64 {
        match self {
            Self::Throughput => row.figures.requests_per_s,
            Self::MeanLatency => row.figures.mean_ms,
            Self::BusySpread => {
                let (least, most) = row.figures.busy_range();
                most - least
            }
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Throughput => "requests/s",
            Self::MeanLatency => "mean latency",
            Self::BusySpread => "spread of utilisation",
        }
    }
}

/// A statement of a paper about its prototype.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishedResult {
    place: &'static str,
    scene: &'static str,
    /// The number of clients, if the paper states one.
    clients: Option<u32>,
    ratio: Ratio,
    of: PolicyKind,
    over: PolicyKind,
    published: &'static str,
    /// The bounds of the ratio.
    min: f64,
    max: f64,
}

/// A statement and the live result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LiveVerdict {
    place: &'static str,
    workload: &'static str,
    clients: u32,
    compared: String,
    published: &'static str,
    min: f64,
    max: f64,
    /// `None` if there is no run of both policies.
    ratio: Option<f64>,
    verdict: Verdict,
}

/// Returns the bounds of a gain: half of what is printed to one and a half times that, as ratios.
const fn around(percent: f64) -> (f64, f64) {
    let (half, more) = (1.0 + percent / 200.0, 1.0 + percent * 1.5 / 100.0);
    if half < more { (half, more) } else { (more, half) }
}

const fn cap(
    place: &'static str,
    scene: &'static str,
    clients: Option<u32>,
    ratio: Ratio,
    published: &'static str,
    (min, max): (f64, f64),
) -> PublishedResult {
    let (of, over) = (PolicyKind::Cap, PolicyKind::LardUtil);
    PublishedResult { place, scene, clients, ratio, of, over, published, min, max }
}

/// The statements about CAP's prototype, which polls the nodes' connections for LARD (WWW 2001, section 5).
pub(crate) const CAP: [PublishedResult; 5] = [
    cap("figure 7", "cap-static", None, Ratio::Throughput, "about equal", (0.95, 1.05)),
    cap("figure 8", "cap-light", None, Ratio::Throughput, "CAP better", (1.05, 1.13)),
    cap("figure 9", "cap-intensive", Some(160), Ratio::Throughput, "+13 %", around(13.0)),
    cap("figure 9", "cap-intensive", Some(240), Ratio::Throughput, "+21 %", around(21.0)),
    cap("figure 10", "cap-intensive", None, Ratio::BusySpread, "closer under CAP", (0.0, 0.95)),
];

const fn hacc(
    place: &'static str,
    scene: &'static str,
    ratio: Ratio,
    over: PolicyKind,
    published: &'static str,
    (min, max): (f64, f64),
) -> PublishedResult {
    PublishedResult { place, scene, clients: None, ratio, of: PolicyKind::Hacc, over, published, min, max }
}

/// The statements about HACC's prototype (USENIX NT 1999, section 4).
pub(crate) const HACC: [PublishedResult; 5] = [
    hacc("figure 4", "hacc-baseline", Ratio::Throughput, PolicyKind::Rr, "+121 %", around(121.0)),
    hacc("figure 5", "hacc-fas", Ratio::Throughput, PolicyKind::Rr, "+40 %", around(40.0)),
    hacc("figure 5", "hacc-fas", Ratio::MeanLatency, PolicyKind::Rr, "-37 %", around(-37.0)),
    hacc("figure 6", "hacc-domino", Ratio::Throughput, PolicyKind::LeastConn, "+52 %", around(52.0)),
    hacc("figure 7", "hacc-asp", Ratio::MeanLatency, PolicyKind::Rr, "-45 %", around(-45.0)),
];

/// Judges the statements. One without a number of clients is judged at the largest number.
pub(crate) fn judge(results: &[PublishedResult], rows: &[Row]) -> Vec<LiveVerdict> {
    results.iter().map(|result| result.judge(rows)).collect()
}

impl PublishedResult {
    fn judge(&self, rows: &[Row]) -> LiveVerdict {
        let scene = || rows.iter().filter(|row| row.scene == self.scene);
        let clients = self.clients.or_else(|| scene().map(|row| row.clients).max()).unwrap_or(0);
        let run = |policy: PolicyKind| {
            let whole = scene().filter(|row| row.clients == clients && row.figures.broken.is_none());
            whole.into_iter().find(|row| row.figures.policy == policy.name())
        };
        let ratio =
            run(self.of).zip(run(self.over)).map(|(own, other)| self.ratio.of(own) / self.ratio.of(other));
        let ratio = ratio.filter(|ratio| ratio.is_finite());
        LiveVerdict {
            place: self.place,
            workload: self.scene,
            clients,
            compared: format!("{}, {} over {}", self.ratio.name(), self.of, self.over),
            published: self.published,
            min: self.min,
            max: self.max,
            ratio,
            verdict: match ratio {
                None => Verdict::NotJudged,
                Some(ratio) if (self.min..=self.max).contains(&ratio) => Verdict::Holds,
                Some(_) => Verdict::HoldsNot,
            },
        }
    }
}

/// The verdicts as a table.
pub(crate) fn table(verdicts: &[LiveVerdict]) -> Table {
    let mut table = Table::new(&[
        "the paper",
        "workload",
        "clients",
        "compared",
        "published",
        "bounds",
        "here",
        "verdict",
    ]);
    for verdict in verdicts {
        table.rows.push(vec![
            verdict.place.to_owned(),
            verdict.workload.to_owned(),
            verdict.clients.to_string(),
            verdict.compared.clone(),
            verdict.published.to_owned(),
            format!("{:.2} to {:.2}x", verdict.min, verdict.max),
            verdict.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x")),
            verdict.verdict.name().to_owned(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::run::Figures;

    fn row(policy: PolicyKind, clients: u32, requests_per_s: f64) -> Row {
        let figures = Figures { requests_per_s, ..Figures::failed(policy, &anyhow::anyhow!("")) };
        let figures = Figures { broken: None, ..figures };
        Row { scene: "cap-intensive".to_owned(), clients, figures, runs: vec![requests_per_s] }
    }

    #[test]
    fn a_printed_gain_holds_between_half_and_one_and_a_half_of_it() {
        assert_eq!(around(40.0), (1.2, 1.6));
        assert_eq!(around(-40.0), (0.4, 0.8));
    }

    #[test]
    fn statements_are_judged_by_runs_of_the_same_number_of_clients() {
        let rows = [
            row(PolicyKind::Cap, 160, 110.0),
            row(PolicyKind::Cap, 240, 160.0),
            row(PolicyKind::LardUtil, 240, 100.0),
            row(PolicyKind::LardUtil, 160, 100.0),
        ];
        let seen: Vec<_> =
            judge(&CAP[2..4], &rows).iter().map(|verdict| (verdict.clients, verdict.verdict)).collect();
        assert_eq!(
            seen,
            [(160, Verdict::Holds), (240, Verdict::HoldsNot)],
            "10 % of 6.5 to 19.5 %, 60 % of 10.5 to 31.5 %"
        );
    }

    #[test]
    fn a_statement_without_runs_of_both_policies_is_not_judged() {
        let mut rows = [row(PolicyKind::Cap, 160, 110.0), row(PolicyKind::LardUtil, 160, 100.0)];
        let verdict = |rows: &[Row]| judge(&CAP[2..3], rows)[0].verdict;
        assert_eq!(verdict(&rows), Verdict::Holds);
        assert_eq!(verdict(&rows[..1]), Verdict::NotJudged);
        rows[1].figures.broken = Some("stopped".to_owned());
        assert_eq!(verdict(&rows), Verdict::NotJudged);
        rows[1] = row(PolicyKind::LardUtil, 160, 0.0);
        assert_eq!(verdict(&rows), Verdict::NotJudged, "the ratio is not finite");
    }
}
