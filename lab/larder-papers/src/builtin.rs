//! Experiments that are code: what a sweep of the simulator cannot express.

use super::PaperError;
use super::report::Sample;
use super::traces::Traces;

/// A source of samples, by name.
pub trait Builtin: Sync {
    /// The name that experiment files call it by.
    fn name(&self) -> &'static str;

    /// Reads the file's `[params]`.
    ///
    /// # Errors
    /// What is wrong with which key and what would be right, for people.
    fn plan(&self, params: &toml::Table) -> Result<Box<dyn Plan>, String>;
}

/// Work split into jobs. A job's samples depend on nothing but its [key](Plan::key) and the code.
pub trait Plan: Send + Sync {
    /// The lines of its samples, in the order of the legend.
    fn lines(&self) -> Vec<String>;

    /// The values its samples have.
    fn metrics(&self) -> Vec<&'static str>;

    /// How many jobs there are.
    fn jobs(&self) -> usize;

    /// Everything a job's samples depend on, as text: its parameters and its workload.
    fn key(&self, job: usize) -> String;

    /// Does a job.
    ///
    /// # Errors
    /// Why it cannot be done. [`PaperError::NoTrace`] leaves the experiment out; others end the run.
    fn run(&self, job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError>;
}

/// Reads a builtin's parameters into a type of its own, which denies unknown fields.
///
/// # Errors
/// The error of the TOML reader, in one line, after the key that it is about where that is known.
pub(super) fn params<T: serde::de::DeserializeOwned>(table: &toml::Table) -> Result<T, String> {
    table.clone().try_into().map_err(|error: toml::de::Error| {
        let (message, whole) = (error.message(), error.to_string());
        // The reader says where only in its long form, the path of keys in a line of its own.
        let path = whole.lines().find_map(|line| line.strip_prefix("in `")?.strip_suffix('`'));
        let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
        match path.or(unknown) {
            Some(key) => format!("{key}: {message}"),
            None => message.to_owned(),
        }
    })
}
