//! The interface of experiments that are code, because a sweep of the simulator cannot express them.

use super::PaperError;
use super::report::Sample;
use super::traces::Traces;

/// A source of samples with a name.
pub trait Builtin: Sync {
    /// Returns the builtin's name in experiment files.
    fn name(&self) -> &'static str;

    /// Reads the file's `[params]`.
    ///
    /// # Errors
    /// Returns a message with the wrong key and the valid values.
    fn plan(&self, params: &toml::Table) -> Result<Box<dyn Plan>, String>;
}

/// The work of a builtin, split into jobs. A job's samples depend only on its [key](Plan::key) and the code.
pub trait Plan: Send + Sync {
    /// Returns the lines of the samples, in the order of the legend.
    fn lines(&self) -> Vec<String>;

    /// Returns the metrics of the samples.
    fn metrics(&self) -> Vec<&'static str>;

    /// Returns the number of jobs.
    fn jobs(&self) -> usize;

    /// Returns everything that a job's samples depend on, as text: its parameters and its workload.
    fn key(&self, job: usize) -> String;

    /// Runs a job.
    ///
    /// # Errors
    /// Returns the reason why the job cannot run. [`PaperError::NoTrace`] leaves the experiment out; other
    /// errors end the run.
    fn run(&self, job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError>;
}

/// Reads a builtin's parameters into a type that denies unknown fields.
///
/// # Errors
/// Returns the error of the TOML reader in one line, after the key if it is known.
pub(super) fn params<T: serde::de::DeserializeOwned>(table: &toml::Table) -> Result<T, String> {
    table.clone().try_into().map_err(|error: toml::de::Error| {
        let (message, whole) = (error.message(), error.to_string());
        // The reader states the key only in its long form, as a path on a line of its own.
        let path = whole.lines().find_map(|line| line.strip_prefix("in `")?.strip_suffix('`'));
        let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
        match path.or(unknown) {
            Some(key) => format!("{key}: {message}"),
            None => message.to_owned(),
        }
    })
}
