//! Execution of experiments: all their jobs on all cores, each once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::PaperError;
use super::experiment::{Experiment, Job};
use super::report::{Report, Sample};
use super::store::Store;
use super::traces::Traces;
use larder_sim::sweep;

/// The options of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The name of the set, for the report.
    pub set: String,
    /// Whether to do the small run: each experiment's `[ci]` part and the claims marked for it.
    pub ci: bool,
    /// The directory of trace files.
    pub traces: PathBuf,
    /// The directory for finished jobs; `None` to keep none.
    pub state: Option<PathBuf>,
    /// The version of the code. Results of other versions are not used.
    pub version: String,
    /// Whether to discard finished jobs first.
    pub fresh: bool,
}

/// The progress of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'p> {
    /// The number of jobs; jobs found in the store count as done.
    pub jobs: usize,
    /// The number of jobs done.
    pub done: usize,
    /// The experiment of the last job; empty at the beginning.
    pub experiment: &'p str,
}

/// A session with the experiments to run.
#[derive(Debug)]
pub struct Session {
    experiments: Vec<Experiment>,
    options: Options,
}

/// A job with the experiment that it belongs to.
struct Task<'e> {
    experiment: &'e str,
    job: &'e Job,
}

type JobResults<'e> = BTreeMap<&'e str, Result<Vec<Sample>, PaperError>>;

impl Session {
    /// Creates a session; nothing runs yet.
    pub fn new(experiments: Vec<Experiment>, options: Options) -> Self {
        Self { experiments, options }
    }

    /// Runs all jobs and judges all claims. `progress` is called at the beginning and after each job, from
    /// any thread.
    ///
    /// The report depends only on the experiments, and not on the number of threads or on stored results.
    ///
    /// # Errors
    /// Returns an error if the state directory cannot be used. An experiment whose jobs fail is left out, and
    /// the report states the reason.
    pub fn run(&self, progress: impl Fn(Progress<'_>) + Sync) -> std::io::Result<Report> {
        let ci = self.options.ci;
        let jobs: Vec<_> = self.experiments.iter().map(|experiment| experiment.jobs(ci)).collect();
        let store = match &self.options.state {
            Some(directory) => Some(Store::open(directory, &self.options.version, self.options.fresh)?),
            None => None,
        };
        let outcomes = self.run_jobs(&jobs, store.as_ref(), &progress);
        let reports = self.experiments.iter().zip(&jobs).map(|(experiment, jobs)| match jobs {
            Err(error) => experiment.report(&[], Err(error.clone()), ci),
            Ok(jobs) => {
                let samples = jobs.iter().map(|job| match outcomes.get(job.key()) {
                    Some(Ok(samples)) => Ok(job.label_samples(samples)),
                    Some(Err(error)) => Err(error.clone()),
                    None => Err(PaperError::Builtin("a job was lost".to_owned())),
                });
                let samples: Result<Vec<_>, _> = samples.collect();
                experiment.report(jobs, samples.map(|all| all.concat()), ci)
            }
        });
        Ok(Report::new(&self.options.set, reports.collect()))
    }

    /// Returns the samples of every job by its key. Equal jobs of several experiments run once.
    fn run_jobs<'e>(
        &'e self,
        jobs: &'e [Result<Vec<Job>, PaperError>],
        store: Option<&Store>,
        progress: &(impl Fn(Progress<'_>) + Sync),
    ) -> JobResults<'e> {
        let mut outcomes = JobResults::new();
        let mut tasks: BTreeMap<&str, Task<'_>> = BTreeMap::new();
        for (experiment, jobs) in self.experiments.iter().zip(jobs) {
            for job in jobs.iter().flatten() {
                match store.and_then(|store| store.get(job.key())) {
                    Some(samples) => {
                        outcomes.insert(job.key(), Ok(samples.to_vec()));
                    }
                    None => {
                        tasks.entry(job.key()).or_insert(Task { experiment: &experiment.id, job });
                    }
                }
            }
        }
        let total = tasks.len() + outcomes.len();
        let done = AtomicUsize::new(outcomes.len());
        progress(Progress { jobs: total, done: outcomes.len(), experiment: "" });
        // Tasks are sorted by key. A key begins with the run and its workload, so neighbours share workloads.
        let tasks: Vec<Task<'_>> = tasks.into_values().collect();
        let traces = Traces::new(&self.options.traces);
        let results = sweep(tasks.len(), |at| {
            let Task { experiment, job } = &tasks[at];
            let result = job.run(&traces);
            if let (Ok(samples), Some(store)) = (&result, store) {
                // If the disk is full, the run cannot be resumed, but it continues.
                let _ = store.put(job.key(), samples);
            }
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(Progress { jobs: total, done, experiment });
            result
        });
        outcomes.extend(tasks.iter().map(|task| task.job.key()).zip(results));
        outcomes
    }
}
