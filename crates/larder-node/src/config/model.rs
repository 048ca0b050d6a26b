//! Settings of a modelled store.

use super::range::{ConfigError, ensure};
use larder_core::Bytes;
use larder_core::cost::{DiskModel, ProcessorModel};
use std::path::PathBuf;
use std::time::Duration;

/// A modelled store: synthetic contents, after the time of a modelled disk and processor.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Text file with one line `size<TAB>target` for each target, as requested (`path?query`).
    pub manifest: PathBuf,
    /// The disk. Default: the LARD paper's.
    pub disk: DiskModel,
    /// The processor. Default `None`: replies are sent as fast as the real processor makes them.
    pub processor: Option<ProcessorModel>,
    /// Longest time that a program uses the processor while others wait; then it goes to the end of the queue.
    /// 100 us to 1 h. Default `None`: a program runs to its end.
    pub turn: Option<Duration>,
    /// Programs that answer some targets instead of the manifest. The first program with a matching pattern
    /// answers. They need a processor. At most 256, default none.
    pub programs: Vec<ProgramConfig>,
    /// The memory contents at the start. Default: none.
    pub preload: Preload,
}

/// A program: the targets that it answers, and the cost of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramConfig {
    /// The program's name, in the `detail` of `Cache-Status`. 1 to 64 letters, digits, `-` and `_`, beginning
    /// with a letter.
    pub name: String,
    /// Patterns of the program's targets: `*` matches any run of bytes. A pattern with `?` is compared with
    /// path and query, otherwise with the path. 1 to 64.
    pub paths: Vec<String>,
    /// CPU time of a reply on a processor of speed 1. At most 60 s. Default zero.
    pub cpu: Duration,
    /// Reads of 8 KiB from the disk for a reply, one after another, after the CPU time. At most 10,000.
    /// Default 0.
    pub reads: u32,
    /// Bytes of a reply. At most 16 MiB. Default 4 KiB.
    pub reply: Bytes,
}

/// The memory contents of a node with a modelled store at its start, for experiments with a cache that has long
/// been warm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preload {
    /// The memory is empty.
    #[default]
    Nothing,
    /// The memory has the targets in the manifest's order, until the next one would evict another. Objects
    /// above [`crate::CacheConfig::object_max`] are skipped.
    Targets,
    /// The memory has the same targets, and peers learn of them. Not behind a switch, which uses other ids for
    /// targets.
    Shared,
}

impl ModelConfig {
    /// Creates the default settings of a store with this manifest.
    pub fn new(manifest: impl Into<PathBuf>) -> Self {
        Self {
            manifest: manifest.into(),
            disk: DiskModel::default(),
            processor: None,
            turn: None,
            programs: Vec::new(),
            preload: Preload::Nothing,
        }
    }

    /// Checks that every value is in its range.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.disk.check()?;
        self.processor.iter().try_for_each(ProcessorModel::check)?;
        let turn = Duration::from_micros(100)..=Duration::from_secs(3_600);
        ensure(self.turn.is_none_or(|time| turn.contains(&time)), "model.turn", "100 us to 1 h")?;
        ensure(self.programs.len() <= 256, "model.programs", "at most 256 of them")?;
        self.programs.iter().try_for_each(ProgramConfig::check)?;
        let needs_processor = !self.programs.is_empty() || self.turn.is_some();
        let expected = "given, since programs and turn are of the modelled processor";
        ensure(self.processor.is_some() || !needs_processor, "model.processor_speed", expected)
    }
}

impl ProgramConfig {
    /// Creates a program that replies with 4 KiB and does nothing else.
    pub fn new(name: impl Into<String>, path: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            paths: vec![path.into()],
            cpu: Duration::ZERO,
            reads: 0,
            reply: Bytes::kib(4),
        }
    }

    /// Checks that every value is in its range.
    ///
    /// # Errors
    /// Returns the first value that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let named = self.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        let begins = self.name.starts_with(|c: char| c.is_ascii_alphabetic());
        let expected = "1 to 64 letters, digits, '-' and '_', beginning with a letter";
        ensure(named && begins && self.name.len() <= 64, "model.programs.name", expected)?;
        let fit = |path: &String| path.starts_with(['/', '*']) && path.len() <= 1_024;
        let paths = (1..=64).contains(&self.paths.len()) && self.paths.iter().all(fit);
        let expected = "1 to 64 patterns of up to 1,024 bytes that begin with '/' or '*'";
        ensure(paths, "model.programs.paths", expected)?;
        ensure(self.cpu <= Duration::from_secs(60), "model.programs.cpu", "at most 60 s")?;
        ensure(self.reads <= 10_000, "model.programs.reads", "at most 10,000")?;
        ensure(self.reply.0 <= 16 << 20, "model.programs.reply", "at most 16 MiB")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
        type Mutation = fn(&mut ModelConfig);
        let cases: [(&str, Mutation); 8] = [
            ("model.turn", |c| c.turn = Some(Duration::ZERO)),
            ("model.programs", |c| c.programs = vec![c.programs[0].clone(); 257]),
            ("model.programs.name", |c| c.programs[0].name = "1".to_owned()),
            ("model.programs.paths", |c| c.programs[0].paths = vec!["cgi".to_owned()]),
            ("model.programs.cpu", |c| c.programs[0].cpu = Duration::from_secs(61)),
            ("model.programs.reply", |c| c.programs[0].reply = Bytes::mib(17)),
            ("model.processor_speed", |c| c.processor = None),
            ("model.processor_speed", |c| {
                (c.processor, c.turn) = (None, Some(Duration::from_millis(10)));
                c.programs.clear();
            }),
        ];
        let config = ModelConfig {
            processor: Some(ProcessorModel::default()),
            programs: vec![ProgramConfig::new("a", "/a*")],
            ..ModelConfig::new("m")
        };
        assert_eq!(config.check(), Ok(()));
        for (field, mutate) in cases {
            let mut config = config.clone();
            mutate(&mut config);
            assert_eq!(config.check().map_err(|error| error.field), Err(field));
        }
    }
}
