//! The influence of the load and of what the paper leaves open on page delays.

use larder_core::policy::PolicyKind;
use serde::Deserialize;

use super::assumptions::Cacheability;
use super::{CapBench, METRICS, PolicySetup};
use crate::PaperError;
use crate::builtin::{Builtin, Plan, params};
use crate::report::Sample;
use crate::traces::Traces;
use crate::users::KeyExchange;

/// `cap-sweep`: page delays against one parameter.
///
/// Parameters: those of `cap-pages` with a list `sites` for `site`, the parameter `vary` and its `values`.
/// Lines: `CAP on S`, `LARD on S`, `WRR on S` and `StaticPartitioning on S` for each site S. x: the value. The
/// parameter `keys` has 0 for one key exchange a session, 1 for one a page and 2 for one an object;
/// `cacheable` has 0 for a draw for each document and 1 for each request. Metrics as of `cap-gather`, and the
/// shares of the pages that take at most 1, 2.5 and 5 s: `within_1s`, `within_2.5s`, `within_5s`.
#[derive(Debug)]
pub(crate) struct Sensitivity;

/// The parameter that is varied.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Variation {
    Nodes,
    SessionsPerS,
    PeriodS,
    Exponent,
    Accesses,
    ObjectsMax,
    Keys,
    Cacheable,
}

#[derive(Debug)]
struct SensitivityPlan {
    /// The cluster of each point, with the value of the parameter.
    points: Vec<(f64, CapBench)>,
}

const LINES: [(&str, PolicyKind); 4] = [
    ("CAP", PolicyKind::Cap),
    ("LARD", PolicyKind::LardUtil),
    ("WRR", PolicyKind::WrrNum),
    ("StaticPartitioning", PolicyKind::Static),
];
const WITHIN: [(&str, f64); 3] = [("within_1s", 1.0), ("within_2.5s", 2.5), ("within_5s", 5.0)];

fn vary(bench: &CapBench, vary: Variation, value: f64) -> Result<CapBench, String> {
    let mut bench = bench.clone();
    let code = |most: f64| {
        let good = value >= 0.0 && value <= most && value == value.trunc();
        if good { Ok(value as usize) } else { Err(format!("'values' must be integers from 0 to {most}")) }
    };
    match vary {
        Variation::Nodes => bench.nodes = code(1_024.0)? as u16,
        Variation::SessionsPerS => bench.sessions_per_s = Some(value),
        Variation::PeriodS => bench.period_s = Some(value),
        Variation::Exponent => bench.assume.exponent = value,
        Variation::Accesses => bench.assume.accesses = value,
        Variation::ObjectsMax => bench.assume.objects_max = value,
        Variation::Keys => {
            bench.assume.keys = [KeyExchange::Session, KeyExchange::Page, KeyExchange::Object][code(2.0)?];
        }
        Variation::Cacheable => {
            bench.assume.cacheable = [Cacheability::Document, Cacheability::Request][code(1.0)?];
        }
    }
    bench.check()?;
    Ok(bench)
}

impl Builtin for Sensitivity {
    fn name(&self) -> &'static str {
        "cap-sweep"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let mut table = table.clone();
        let mut take = |key: &str| table.remove(key).ok_or_else(|| format!("'{key}' is missing"));
        let (sites, parameter, values) = (take("sites")?, take("vary")?, take("values")?);
        let sites: Vec<String> =
            sites.try_into().map_err(|_| "'sites' must be a list of sites".to_owned())?;
        let values: Vec<f64> =
            values.try_into().map_err(|_| "'values' must be a list of numbers with a point".to_owned())?;
        let parameter: Variation =
            parameter.try_into().map_err(|error: toml::de::Error| format!("vary: {}", error.message()))?;
        if !(1..=100).contains(&values.len()) || !(1..=6).contains(&sites.len()) {
            return Err("'values' must be 1 to 100 numbers and 'sites' 1 to 6 sites".to_owned());
        }
        let mut points = Vec::new();
        for site in sites {
            table.insert("site".to_owned(), site.into());
            let bench: CapBench = params(&table)?;
            for value in &values {
                points.push((*value, vary(&bench, parameter, *value)?));
            }
        }
        Ok(Box::new(SensitivityPlan { points }))
    }
}

impl SensitivityPlan {
    fn line(bench: &CapBench, policy: usize) -> String {
        format!("{} on {}", LINES[policy].0, bench.site)
    }
}

impl Plan for SensitivityPlan {
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (_, bench) in &self.points {
            for policy in 0..LINES.len() {
                let line = Self::line(bench, policy);
                if !lines.contains(&line) {
                    lines.push(line);
                }
            }
        }
        lines
    }

    fn metrics(&self) -> Vec<&'static str> {
        WITHIN.iter().map(|(name, _)| *name).chain(METRICS).collect()
    }

    fn jobs(&self) -> usize {
        LINES.len() * self.points.len()
    }

    fn key(&self, job: usize) -> String {
        let (value, bench) = &self.points[job / LINES.len()];
        format!("{} at {value} {}", Self::line(bench, job % LINES.len()), bench.key())
    }

    fn run(&self, job: usize, _traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let (value, bench) = &self.points[job / LINES.len()];
        let policy = LINES[job % LINES.len()].1;
        let rate = bench.rate()?;
        let period_s = bench.find_period(policy, rate)?;
        let run = bench.run(PolicySetup::new(policy, period_s), rate)?;
        let within = WITHIN.map(|(name, s)| (name, run.pages.all.share_within(s)));
        let values = within.into_iter().chain(run.values(rate, period_s));
        Ok(vec![Sample::new(&Self::line(bench, job % LINES.len()), *value, values)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str =
        "nodes = 2\nsessions_per_s = 3.0\nperiod_s = 1.0\nseeds = 1\nwarm_s = 2.0\nuntil_s = 10.0\n";

    fn plan(text: &str) -> Result<Box<dyn Plan>, String> {
        Sensitivity.plan(&format!("{BASE}{text}").parse().expect("TOML"))
    }

    #[test]
    fn each_value_changes_its_parameter() {
        let of = |vary: &str, values: &str| {
            plan(&format!("sites = ['commerce-a', 'transaction']\nvary = '{vary}'\nvalues = {values}"))
        };
        for (vary, values) in
            [("keys", "[0.0, 1.0, 2.0]"), ("cacheable", "[0.0, 1.0]"), ("accesses", "[4.0]")]
        {
            let plan = of(vary, values).expect("good parameters");
            let keys: std::collections::BTreeSet<String> =
                (0..plan.jobs()).map(|job| plan.key(job)).collect();
            assert_eq!((keys.len(), plan.lines().len()), (plan.jobs(), 8), "{vary}");
        }
        let sample =
            of("exponent", "[0.5]").expect("good parameters").run(0, &Traces::new("nowhere".as_ref()));
        let sample = &sample.expect("a run")[0];
        assert_eq!((sample.line.as_str(), sample.x), ("CAP on commerce-a", 0.5));
        assert!(sample.values["within_5s"] > 0.5, "{sample:?}");
    }

    #[test]
    fn wrong_values_are_named() {
        let error = |text: &str| plan(text).err().unwrap_or_default();
        assert!(error("sites = ['transaction']\nvary = 'keys'\nvalues = [3.0]").contains("0 to 2"));
        assert!(error("sites = ['transaction']\nvary = 'seeds'\nvalues = [3.0]").contains("vary"));
        assert!(error("sites = ['transaction']\nvary = 'exponent'\nvalues = [9.0]").contains("'exponent'"));
        assert!(error("vary = 'exponent'\nvalues = [1.0]").contains("'sites' is missing"));
    }
}
