//! Workloads, made or read once and shared by the jobs that use them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use larder_trace::synth::{Hot, Recipe, generate};
use larder_trace::{LoadOptions, Trace};

use super::PaperError;
use larder_sim::Workload;

/// Which workload. Two equal specs give the same one.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadSpec {
    /// Made by a recipe.
    Synthetic {
        /// The recipe's name.
        recipe: String,
        /// The seed.
        seed: u64,
        /// Targets, requests and bytes relative to the recipe, above 0 and at most 1.
        scale: f64,
        /// Requests instead of the recipe's; the targets stay, so first uses weigh more.
        requests: Option<u64>,
        /// Hot targets instead of the recipe's.
        hot: Option<Hot>,
    },
    /// Read from a file.
    File {
        /// Its name in the directory of traces, or its path.
        path: String,
        /// Only so many requests from the beginning.
        requests: Option<u64>,
    },
}

impl WorkloadSpec {
    /// A recipe at full size.
    pub fn recipe(name: &str, seed: u64) -> Self {
        Self::Synthetic { recipe: name.to_owned(), seed, scale: 1.0, requests: None, hot: None }
    }

    /// What it is, in one line: also the key under which jobs keep their results.
    pub fn describe(&self) -> String {
        match self {
            Self::Synthetic { recipe, seed, scale, requests, hot } => {
                let mut text = format!("{recipe}, seed {seed}");
                if *scale != 1.0 {
                    text += &format!(", scale {scale}");
                }
                if let Some(requests) = requests {
                    text += &format!(", {requests} requests");
                }
                if let Some(hot) = hot {
                    let Hot { share, targets, size } = hot;
                    text += &format!(", {share} of them to {targets} hot targets of {} bytes", size.get());
                }
                text
            }
            Self::File { path, requests: None } => path.clone(),
            Self::File { path, requests: Some(requests) } => format!("{path}, first {requests} requests"),
        }
    }

    fn make(&self, directory: &Path) -> Result<Trace, PaperError> {
        match self {
            Self::Synthetic { recipe, seed, scale, requests, hot } => {
                let wrong = |error: larder_trace::synth::SynthError| PaperError::Workload(error.to_string());
                let mut recipe = Recipe::by_name(recipe).map_err(wrong)?;
                recipe.requests = requests.unwrap_or(recipe.requests);
                recipe.hot = hot.or(recipe.hot);
                generate(&recipe, *seed, *scale).map_err(wrong)
            }
            Self::File { path, requests } => {
                let path = directory.join(path);
                if !path.is_file() {
                    return Err(PaperError::NoTrace(path.display().to_string()));
                }
                let (mut trace, _) = Trace::load(&path, &LoadOptions::default())
                    .map_err(|error| PaperError::Workload(error.to_string()))?;
                if let Some(requests) = requests {
                    trace.requests.truncate(usize::try_from(*requests).unwrap_or(usize::MAX));
                }
                Ok(trace)
            }
        }
    }
}

/// How many workloads stay in memory after their use, of each kind; the least recently used leaves first.
const KEPT: usize = 4;

/// The workloads of a session.
#[derive(Debug)]
pub struct Traces {
    directory: PathBuf,
    workloads: Shelf<Workload>,
    traces: Shelf<Trace>,
}

impl Traces {
    /// None yet; trace files are looked for in `directory`.
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), workloads: Shelf::default(), traces: Shelf::default() }
    }

    /// The workload for the simulator, made by whoever asks first; others wait for it.
    ///
    /// # Errors
    /// The trace is not there, or the recipe makes no sense.
    pub fn workload(&self, spec: &WorkloadSpec) -> Result<Arc<Workload>, PaperError> {
        self.workloads.get(&spec.describe(), || Ok(Workload::from_trace(&spec.make(&self.directory)?)))
    }

    /// The trace itself, with times, clients and names.
    ///
    /// # Errors
    /// As [`Traces::workload`].
    pub fn trace(&self, spec: &WorkloadSpec) -> Result<Arc<Trace>, PaperError> {
        self.traces.get(&spec.describe(), || spec.make(&self.directory))
    }
}

type Slot<T> = Arc<OnceLock<Result<Arc<T>, PaperError>>>;

/// Things by name, the most recently used last.
#[derive(Debug)]
struct Shelf<T>(Mutex<Vec<(String, Slot<T>)>>);

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

impl<T> Shelf<T> {
    fn get(&self, name: &str, make: impl FnOnce() -> Result<T, PaperError>) -> Result<Arc<T>, PaperError> {
        let slot = {
            // Nothing is half done under this lock, so a panic elsewhere leaves it good.
            let mut shelf = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let slot = match shelf.iter().position(|(known, _)| known == name) {
                Some(at) => shelf.remove(at).1,
                None => Slot::default(),
            };
            shelf.push((name.to_owned(), Arc::clone(&slot)));
            let surplus = shelf.len().saturating_sub(KEPT);
            shelf.drain(..surplus);
            slot
        };
        slot.get_or_init(|| make().map(Arc::new)).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::Bytes;

    #[test]
    fn a_workload_is_made_once_and_forgotten_when_others_came() {
        let shelf = Shelf::<u32>::default();
        let get = |name: &str, made: &mut u32| {
            *shelf
                .get(name, || {
                    *made += 1;
                    Ok(*made)
                })
                .unwrap()
        };
        let mut made = 0;
        assert_eq!((get("a", &mut made), get("a", &mut made), made), (1, 1, 1));
        for name in ["b", "c", "d", "e"] {
            get(name, &mut made);
        }
        assert_eq!(get("a", &mut made), 6, "four others drove it out");
    }

    #[test]
    fn a_missing_trace_is_named() {
        let traces = Traces::new(Path::new("/nowhere"));
        let spec = WorkloadSpec::File { path: "epa.zst".to_owned(), requests: None };
        assert_eq!(traces.workload(&spec), Err(PaperError::NoTrace("/nowhere/epa.zst".to_owned())));
    }

    #[test]
    fn the_description_tells_workloads_apart() {
        let plain = WorkloadSpec::recipe("rice-like", 1);
        let WorkloadSpec::Synthetic { recipe, seed, scale, .. } = plain.clone() else { unreachable!() };
        let hot = Some(Hot { share: 0.3, targets: 5, size: Bytes(20_480) });
        let other = WorkloadSpec::Synthetic { recipe, seed, scale, requests: Some(1_000), hot };
        assert_eq!(plain.describe(), "rice-like, seed 1");
        assert_eq!(
            other.describe(),
            "rice-like, seed 1, 1000 requests, 0.3 of them to 5 hot targets of 20480 bytes"
        );
    }
}
