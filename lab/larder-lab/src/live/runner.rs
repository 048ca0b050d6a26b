//! Runs scenarios under policies, with progress, and collects their results.

use std::collections::BTreeMap;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use larder_core::PolicyKind;
use serde::Serialize;

use super::run::Figures;
use super::scenario::{LoadSource, Scenario};

/// The results of one scenario under one policy.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// Label of the scenario.
    pub(crate) scene: String,
    /// Clients or users.
    pub(crate) clients: u32,
    /// The run with the median throughput; for an even number of runs, the slower of the two middle ones.
    pub(crate) figures: Figures,
    /// The throughput of each run.
    pub(crate) runs: Vec<f64>,
}

/// Steps of the progress bar for each run.
const STEPS: u64 = 1_000;

/// Runs each scenario under its policies `times` times. The runs are done in rounds, so that changes of the machine's load
/// affect all of them alike.
///
/// A failed run does not end the others; its row states the error. Each result is printed on stderr at once, so that an
/// interrupted command leaves the results so far.
///
/// # Errors
/// If all runs fail.
pub(crate) async fn run_all(
    larder: &Path,
    jobs: &[(Scenario, Vec<PolicyKind>)],
    times: usize,
) -> anyhow::Result<Vec<Row>> {
    let runs: usize = jobs.iter().map(|(_, policies)| policies.len() * times).sum();
    let bar = progress_bar(runs as u64 * STEPS);
    let mut done: BTreeMap<(usize, usize), Vec<Figures>> = BTreeMap::new();
    let (mut finished, mut failed) = (0, 0);
    for _ in 0..times {
        for (at, (scenario, policies)) in jobs.iter().enumerate() {
            for (nth, policy) in policies.iter().enumerate() {
                bar.set_message(format!("{}, {} clients, {policy}", scenario.label, scenario.clients()));
                let from = finished * STEPS;
                let progress =
                    |share: f64| bar.set_position(from + (share.clamp(0.0, 1.0) * STEPS as f64) as u64);
                let figures = match scenario.run(larder, *policy, &progress).await {
                    Ok(figures) => figures,
                    Err(error) if finished == failed && finished + 1 == runs as u64 => {
                        return Err(error.context(format!("while running {policy} on {}", scenario.label)));
                    }
                    Err(error) => {
                        failed += 1;
                        Figures::failed(*policy, &error)
                    }
                };
                finished += 1;
                let line = summary(scenario, &figures);
                if bar.is_hidden() {
                    tracing::info!("{line}");
                } else {
                    bar.println(line);
                }
                done.entry((at, nth)).or_default().push(figures);
            }
        }
    }
    bar.finish_and_clear();
    Ok(done.into_iter().map(|((at, _), figures)| row(&jobs[at].0, figures)).collect())
}

fn row(scenario: &Scenario, mut figures: Vec<Figures>) -> Row {
    let runs = figures.iter().map(|figures| figures.requests_per_s).collect();
    figures.sort_by(|a, b| a.requests_per_s.total_cmp(&b.requests_per_s));
    let median = figures.swap_remove((figures.len() - 1) / 2);
    Row { scene: scenario.label.clone(), clients: scenario.clients(), figures: median, runs }
}

/// Formats the result of a run as one line.
fn summary(scenario: &Scenario, figures: &Figures) -> String {
    let Figures { policy, requests_per_s, p99_ms, broken, .. } = figures;
    let run = format!("{}, {} clients, {policy}", scenario.label, scenario.clients());
    match broken {
        Some(why) => format!("{run}: {why}"),
        None => format!("{run}: {requests_per_s:.0} requests/s, p99 {p99_ms:.1} ms"),
    }
}

fn progress_bar(length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:48} [{bar:30}] {percent:>3} %  {eta} left");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style.progress_chars("=> "))
}

impl Scenario {
    /// Clients or users.
    pub(crate) fn clients(&self) -> u32 {
        match &self.load {
            LoadSource::Log { clients, .. } | LoadSource::Users { clients, .. } => *clients,
        }
    }
}
