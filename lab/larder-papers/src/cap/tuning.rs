//! The influence of the policies' parameters: WRR's gather period (figure 3) and LARD's thresholds (section
//! 4.3).

use larder_core::policy::PolicyKind;

use super::{CapBench, METRICS, PolicySetup, read};
use crate::PaperError;
use crate::builtin::{Builtin, Plan};
use crate::report::Sample;
use crate::traces::Traces;

/// `cap-gather`: the influence of WRR's gather period and load measure, beside policies that gather nothing.
///
/// Lines: `WRR num`, `WRR time`, `LARD` (the period of its utilisation reports), `RR`, `RAN`, `LARD by
/// connections`. x: T_gat in seconds. Metrics as of `cap-pages` without `within`.
#[derive(Debug)]
pub(crate) struct GatherPeriods;

#[derive(Debug)]
struct GatherPlan {
    bench: CapBench,
    periods_s: Vec<f64>,
}

const GATHERING: [(&str, PolicyKind); 3] =
    [("WRR num", PolicyKind::WrrNum), ("WRR time", PolicyKind::WrrTime), ("LARD", PolicyKind::LardUtil)];
const BLIND: [(&str, PolicyKind); 3] =
    [("RR", PolicyKind::Rr), ("RAN", PolicyKind::Random), ("LARD by connections", PolicyKind::Lard)];

impl Builtin for GatherPeriods {
    fn name(&self) -> &'static str {
        "cap-gather"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let (bench, periods_s) = read(table, "t_gat_s")?;
        Ok(Box::new(GatherPlan { bench, periods_s }))
    }
}

impl GatherPlan {
    /// Returns the job's line, policy and period; `None` for a policy that gathers nothing.
    fn point(&self, job: usize) -> (&'static str, PolicyKind, Option<f64>) {
        let gathering = self.periods_s.len() * GATHERING.len();
        if job < gathering {
            let (name, policy) = GATHERING[job / self.periods_s.len()];
            (name, policy, Some(self.periods_s[job % self.periods_s.len()]))
        } else {
            let (name, policy) = BLIND[job - gathering];
            (name, policy, None)
        }
    }
}

impl Plan for GatherPlan {
    fn lines(&self) -> Vec<String> {
        GATHERING.iter().chain(&BLIND).map(|(name, _)| (*name).to_owned()).collect()
    }

    fn metrics(&self) -> Vec<&'static str> {
        METRICS.to_vec()
    }

    fn jobs(&self) -> usize {
        self.periods_s.len() * GATHERING.len() + BLIND.len()
    }

    fn key(&self, job: usize) -> String {
        let (name, _, period) = self.point(job);
        // A line without a period is drawn at all periods.
        let at = period.map_or_else(|| format!("{:?}", self.periods_s), |period| period.to_string());
        format!("{name} {} at {at}", self.bench.key())
    }

    fn run(&self, job: usize, _traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let (name, policy, period) = self.point(job);
        let rate = self.bench.rate()?;
        let run = self.bench.run(PolicySetup::new(policy, period.unwrap_or(10.0)), rate)?;
        let values = run.values(rate, period.unwrap_or(0.0));
        let xs = period.map_or_else(|| self.periods_s.clone(), |period| vec![period]);
        Ok(xs.into_iter().map(|x| Sample::new(name, x, values.iter().copied())).collect())
    }
}

/// `cap-thresholds`: the influence of LARD's thresholds.
///
/// Lines: `T_low` (x below 0.7, with T_high 0.7) and `T_high` (x above 0.3, with T_low 0.3). x: the
/// utilisation. Metrics as of `cap-gather`. The period of reports is `period_s`, or the best one for LARD with
/// the paper's thresholds.
#[derive(Debug)]
pub(crate) struct Thresholds;

#[derive(Debug)]
struct ThresholdsPlan {
    bench: CapBench,
    /// The line, T_low and T_high in thousandths.
    points: Vec<(&'static str, u16, u16)>,
}

impl Builtin for Thresholds {
    fn name(&self) -> &'static str {
        "cap-thresholds"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let (bench, thresholds) = read(table, "thresholds")?;
        if thresholds.iter().any(|threshold| *threshold > 1.0) {
            return Err("'thresholds' must be at most 1".to_owned());
        }
        let permille = thresholds.iter().map(|threshold| (threshold * 1_000.0).round() as u16);
        let low = permille.clone().filter(|low| *low < 700).map(|low| ("T_low", low, 700));
        let high = permille.filter(|high| *high > 300).map(|high| ("T_high", 300, high));
        Ok(Box::new(ThresholdsPlan { bench, points: low.chain(high).collect() }))
    }
}

impl Plan for ThresholdsPlan {
    fn lines(&self) -> Vec<String> {
        vec!["T_low".to_owned(), "T_high".to_owned()]
    }

    fn metrics(&self) -> Vec<&'static str> {
        METRICS.to_vec()
    }

    fn jobs(&self) -> usize {
        self.points.len()
    }

    fn key(&self, job: usize) -> String {
        format!("{:?} {}", self.points[job], self.bench.key())
    }

    fn run(&self, job: usize, _traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let (line, low, high) = self.points[job];
        let rate = self.bench.rate()?;
        let period_s = self.bench.find_period(PolicyKind::LardUtil, rate)?;
        let setup = PolicySetup { low, high, ..PolicySetup::new(PolicyKind::LardUtil, period_s) };
        let values = self.bench.run(setup, rate)?.values(rate, period_s);
        let x = f64::from(if line == "T_low" { low } else { high }) / 1_000.0;
        Ok(vec![Sample::new(line, x, values)])
    }
}
