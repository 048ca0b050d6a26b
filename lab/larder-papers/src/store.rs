//! Finished jobs on disk, so that an interrupted session can be resumed.
//!
//! There is one file for each version of the code, with a JSON line for each finished job. A torn last line,
//! which an interruption may leave, is skipped. Files of other versions are removed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::report::Sample;

const PREFIX: &str = "samples-";
const SUFFIX: &str = ".jsonl";

/// A stored job: a line of the file.
#[derive(Serialize, Deserialize)]
struct StoredJob {
    key: String,
    samples: Vec<Sample>,
}

/// The finished jobs of one version of the code.
#[derive(Debug)]
pub(super) struct Store {
    known: BTreeMap<String, Vec<Sample>>,
    file: Mutex<File>,
}

impl Store {
    /// Opens the store in a directory, which is created if necessary. `fresh` discards the stored jobs.
    pub(super) fn open(directory: &Path, version: &str, fresh: bool) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let name = format!("{PREFIX}{version}{SUFFIX}");
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let other = entry.file_name().to_string_lossy().into_owned();
            if other.starts_with(PREFIX) && other.ends_with(SUFFIX) && (fresh || other != name) {
                fs::remove_file(entry.path())?;
            }
        }
        let path = directory.join(name);
        let mut known = BTreeMap::new();
        let mut torn = false;
        if path.exists() {
            for line in BufReader::new(File::open(&path)?).lines() {
                match serde_json::from_str::<StoredJob>(&line?) {
                    Ok(entry) => {
                        known.insert(entry.key, entry.samples);
                    }
                    Err(_) => torn = true,
                }
            }
        }
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        if torn {
            // The next entry must start on a new line.
            file.write_all(b"\n")?;
        }
        Ok(Self { known, file: Mutex::new(file) })
    }

    /// Returns the stored samples of a job.
    pub(super) fn get(&self, key: &str) -> Option<&[Sample]> {
        self.known.get(key).map(Vec::as_slice)
    }

    /// Stores the samples of a job.
    pub(super) fn put(&self, key: &str, samples: &[Sample]) -> io::Result<()> {
        let entry = StoredJob { key: key.to_owned(), samples: samples.to_vec() };
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(value: f64) -> Vec<Sample> {
        vec![Sample::new("a", 1.0, [("m", value)])]
    }

    fn directory(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("larder-store-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn stored_samples_are_read_back_exactly() {
        let directory = directory("again");
        let odd = 0.1 + 0.2;
        Store::open(&directory, "1", false).unwrap().put("k", &sample(odd)).unwrap();
        let again = Store::open(&directory, "1", false).unwrap();
        assert_eq!(again.get("k"), Some(&sample(odd)[..]));
        assert_eq!(Store::open(&directory, "1", true).unwrap().get("k"), None, "forgotten");
        again.put("k", &sample(odd)).unwrap();
        assert_eq!(Store::open(&directory, "2", false).unwrap().get("k"), None, "another version");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "the old version's file is gone");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_torn_line_costs_one_job() {
        let directory = directory("torn");
        let store = Store::open(&directory, "1", false).unwrap();
        store.put("a", &sample(1.0)).unwrap();
        store.file.lock().unwrap().write_all(b"{\"key\":\"b\",\"sam").unwrap();
        let store = Store::open(&directory, "1", false).unwrap();
        assert!(store.get("a").is_some() && store.get("b").is_none());
        store.put("c", &sample(3.0)).unwrap();
        let store = Store::open(&directory, "1", false).unwrap();
        assert!(store.get("a").is_some() && store.get("c").is_some());
        fs::remove_dir_all(directory).unwrap();
    }
}
