//! Many runs: scenes under policies, with progress, and what came of each.

use std::collections::BTreeMap;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use larder_core::PolicyKind;
use serde::Serialize;

use super::run::Figures;
use super::scene::{Drive, Scene};

/// What came of the runs of one scene under one policy.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// The scene.
    pub(crate) scene: String,
    /// Clients or users.
    pub(crate) clients: u32,
    /// The run with the median throughput; of an even number the slower of the two in the middle.
    pub(crate) figures: Figures,
    /// The throughput of each run.
    pub(crate) runs: Vec<f64>,
}

/// Steps of the progress bar for a run.
const STEPS: u64 = 1_000;

/// Runs every scene under its policies, `times` each, in rounds, so that what changes on the machine meanwhile meets all.
///
/// A run that breaks off, or in which requests fail, does not end the others: its row says so. What is done is told on
/// stderr as it comes, so that an hour's work leaves something even if the machine does not last.
///
/// # Errors
/// No run came to anything.
pub(crate) async fn all(
    larder: &Path,
    jobs: &[(Scene, Vec<PolicyKind>)],
    times: usize,
) -> anyhow::Result<Vec<Row>> {
    let runs: usize = jobs.iter().map(|(_, policies)| policies.len() * times).sum();
    let bar = bar(runs as u64 * STEPS);
    let mut done: BTreeMap<(usize, usize), Vec<Figures>> = BTreeMap::new();
    let (mut finished, mut failed) = (0, 0);
    for _ in 0..times {
        for (at, (scene, policies)) in jobs.iter().enumerate() {
            for (nth, policy) in policies.iter().enumerate() {
                bar.set_message(format!("{}, {} clients, {policy}", scene.label, scene.clients()));
                let from = finished * STEPS;
                let progress =
                    |share: f64| bar.set_position(from + (share.clamp(0.0, 1.0) * STEPS as f64) as u64);
                let figures = match scene.run(larder, *policy, &progress).await {
                    Ok(figures) => figures,
                    Err(error) if finished == failed && finished + 1 == runs as u64 => {
                        return Err(error.context(format!("while running {policy} on {}", scene.label)));
                    }
                    Err(error) => {
                        failed += 1;
                        Figures::broken(*policy, &error)
                    }
                };
                finished += 1;
                let said = said(scene, &figures);
                if bar.is_hidden() {
                    tracing::info!("{said}");
                } else {
                    bar.println(said);
                }
                done.entry((at, nth)).or_default().push(figures);
            }
        }
    }
    bar.finish_and_clear();
    Ok(done.into_iter().map(|((at, _), figures)| row(&jobs[at].0, figures)).collect())
}

fn row(scene: &Scene, mut figures: Vec<Figures>) -> Row {
    let runs = figures.iter().map(|figures| figures.requests_per_s).collect();
    figures.sort_by(|a, b| a.requests_per_s.total_cmp(&b.requests_per_s));
    let median = figures.swap_remove((figures.len() - 1) / 2);
    Row { scene: scene.label.clone(), clients: scene.clients(), figures: median, runs }
}

fn said(scene: &Scene, figures: &Figures) -> String {
    let Figures { policy, requests_per_s, p99_ms, broken, .. } = figures;
    let of = format!("{}, {} clients, {policy}", scene.label, scene.clients());
    match broken {
        Some(why) => format!("{of}: {why}"),
        None => format!("{of}: {requests_per_s:.0} requests/s, p99 {p99_ms:.1} ms"),
    }
}

fn bar(length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:48} [{bar:30}] {percent:>3} %  {eta} left");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style.progress_chars("=> "))
}

impl Scene {
    /// Clients or users.
    pub(crate) fn clients(&self) -> u32 {
        match &self.drive {
            Drive::Log { clients, .. } | Drive::Users { clients, .. } => *clients,
        }
    }
}
