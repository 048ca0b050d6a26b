//! Settings of dynamic content.

use super::range::{ConfigError, ensure};
use super::store::StoreConfig;
use larder_core::Bytes;
use larder_core::cost::{DiskModel, ProcessorModel};
use std::path::PathBuf;
use std::time::Duration;

/// Dynamic content: programs that answer some targets instead of the store.
#[derive(Clone, Debug)]
pub struct DynamicConfig {
    /// The programs. The first program whose path matches a request answers it. 1 to 256.
    pub handlers: Vec<HandlerConfig>,
    /// Source of the CPU time. `None` uses the modelled store's processor if there is one, otherwise all cores
    /// of this machine.
    pub cpu: Option<CpuConfig>,
    /// Longest time that a job uses a processor while others wait; then it goes to the end of the queue. 100 us
    /// to 1 h. Default `None`: a job runs to its end.
    pub turn: Option<Duration>,
    /// The disk that programs read. `None` uses the modelled store's disks. With a directory or an origin,
    /// programs that read need a disk here.
    pub disk: Option<DynamicDisk>,
    /// Requests that programs serve at one time, running or waiting; 503 with Retry-After beyond. 1 to
    /// 1,000,000, default 4,096.
    pub requests_max: usize,
    /// Bytes of a request's body; 413 beyond. The body is read and ignored. Up to 1 GiB, default 1 MiB.
    pub body_max: Bytes,
    /// Seed of the drawn amounts, which depend on the target too. Default 0.
    pub seed: u64,
}

/// The source of CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CpuConfig {
    /// The cores of this machine.
    Real {
        /// Jobs that run at one time: the node's processors. 0 for all cores; at most 400. Default 0.
        processors: u16,
        /// Factor by which jobs run faster than configured. 0.001 to 1,000,000, default 1.
        speed: f64,
    },
    /// A modelled processor, which serves all replies of the node. Its speed applies to jobs too.
    Modelled(ProcessorModel),
}

/// The disk of dynamic content.
#[derive(Clone, Debug, PartialEq)]
pub enum DynamicDisk {
    /// A file of random bytes, created in a directory at the start and read past the page cache.
    Scratch {
        /// The directory, on the disk to use.
        directory: PathBuf,
        /// Length of the file. 4 KiB to 1 TiB.
        size: Bytes,
    },
    /// Modelled disks.
    Modelled(DiskModel),
}

/// One program.
#[derive(Clone, Debug, PartialEq)]
pub struct HandlerConfig {
    /// The program's name, in the `detail` of `Cache-Status`. 1 to 64 letters, digits, `-` and `_`, beginning
    /// with a letter.
    pub name: String,
    /// Patterns of the program's targets: `*` matches any run of bytes. A pattern with `?` is compared with
    /// path and query, otherwise with the path. 1 to 64.
    pub paths: Vec<String>,
    /// CPU time per request, at speed 1. At most 60 s. Default zero.
    pub cpu: Amount<Duration>,
    /// Reads from the disk per request, one after another, after the CPU time. At most 10,000. Default 0.
    pub reads: u32,
    /// Bytes of each read. 1 byte to 64 MiB. Default 8 KiB.
    pub read_bytes: Bytes,
    /// Bytes of the replies. At most 16 MiB. Default 4 KiB.
    pub reply: Amount<Bytes>,
    /// Time for which replies to GET may be cached: `Cache-Control: max-age`. 1 s to 1 year. Default `None`:
    /// `no-store`.
    pub cacheable: Option<Duration>,
}

/// An amount: the same for every target, or drawn uniformly from `least..=most` by target and seed. One target
/// always has the same amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount<T> {
    /// The smallest amount.
    pub least: T,
    /// The largest amount; not below `least`.
    pub most: T,
}

impl<T: Copy> Amount<T> {
    /// Creates an amount that is the same for every target.
    pub const fn always(amount: T) -> Self {
        Self { least: amount, most: amount }
    }
}

impl Amount<u64> {
    /// Returns the amount for a draw that is uniform over all of `u64`.
    pub(crate) fn value_for(self, draw: u64) -> u64 {
        let span = u128::from(self.most.saturating_sub(self.least)) + 1;
        // The upper half of the product is uniform over the span, up to one part in 2^64.
        self.least + ((u128::from(draw) * span) >> 64) as u64
    }
}

impl HandlerConfig {
    /// Creates a program that replies with 4 KiB and does nothing else.
    pub fn new(name: impl Into<String>, path: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            paths: vec![path.into()],
            cpu: Amount::always(Duration::ZERO),
            reads: 0,
            read_bytes: Bytes::kib(8),
            reply: Amount::always(Bytes::kib(4)),
            cacheable: None,
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
        ensure(named && begins && self.name.len() <= 64, "dynamic.handlers.name", expected)?;
        let fit = |path: &String| path.starts_with(['/', '*']) && path.len() <= 1_024;
        let expected = "1 to 64 patterns of up to 1,024 bytes that begin with '/' or '*'";
        ensure(
            (1..=64).contains(&self.paths.len()) && self.paths.iter().all(fit),
            "dynamic.handlers.paths",
            expected,
        )?;
        let Amount { least, most } = self.cpu;
        let expected = "at most 60 s, and the least not above the most";
        ensure(least <= most && most <= Duration::from_secs(60), "dynamic.handlers.cpu", expected)?;
        ensure(self.reads <= 10_000, "dynamic.handlers.reads", "at most 10,000")?;
        let expected = "1 byte to 64 MiB";
        ensure((1..=64 << 20).contains(&self.read_bytes.0), "dynamic.handlers.read_bytes", expected)?;
        let Amount { least, most } = self.reply;
        let expected = "at most 16 MiB, and the least not above the most";
        ensure(least <= most && most.0 <= 16 << 20, "dynamic.handlers.reply", expected)?;
        let is_in_range = self.cacheable.is_none_or(|age| (1..=31_536_000).contains(&age.as_secs()));
        ensure(is_in_range, "dynamic.handlers.cacheable", "1 s to 365 days")
    }
}

impl DynamicConfig {
    /// Creates the default settings for these programs.
    pub fn new(handlers: Vec<HandlerConfig>) -> Self {
        Self {
            handlers,
            cpu: None,
            turn: None,
            disk: None,
            requests_max: 4_096,
            body_max: Bytes::mib(1),
            seed: 0,
        }
    }

    /// Checks that every value is in its range, for a node with this store.
    ///
    /// # Errors
    /// Returns the first value that is out of range, or that repeats a setting of the store.
    pub fn check(&self, store: &StoreConfig) -> Result<(), ConfigError> {
        let (store_disk, store_cpu) = match store {
            StoreConfig::Directory { .. } | StoreConfig::Origin(_) => (false, false),
            StoreConfig::Model { processor, .. } => (true, processor.is_some()),
        };
        ensure((1..=256).contains(&self.handlers.len()), "dynamic.handlers", "1 to 256 of them")?;
        self.handlers.iter().try_for_each(HandlerConfig::check)?;
        let expected = "absent, since the modelled store has a processor, which is the node's";
        ensure(self.cpu.is_none() || !store_cpu, "dynamic.cpu", expected)?;
        match self.cpu {
            Some(CpuConfig::Real { processors, speed }) => {
                ensure(processors <= 400, "dynamic.processors", "0 (all cores) to 400")?;
                ensure((0.001..=1e6).contains(&speed), "dynamic.speed", "0.001 to 1,000,000")?;
            }
            Some(CpuConfig::Modelled(model)) => model.check()?,
            None => {}
        }
        let turn = Duration::from_micros(100)..=Duration::from_secs(3_600);
        ensure(self.turn.is_none_or(|time| turn.contains(&time)), "dynamic.turn", "100 us to 1 h")?;
        let expected = "absent, since the modelled store has disks, which are the node's";
        ensure(self.disk.is_none() || !store_disk, "dynamic.disk", expected)?;
        match &self.disk {
            Some(DynamicDisk::Scratch { size, .. }) => {
                ensure((4_096..=1 << 40).contains(&size.0), "dynamic.scratch_size", "4 KiB to 1 TiB")?;
            }
            Some(DynamicDisk::Modelled(model)) => model.check()?,
            None => {
                let reads = self.handlers.iter().any(|handler| handler.reads > 0);
                let expected = "given, since a handler reads: a scratch file, or modelled disks";
                ensure(store_disk || !reads, "dynamic.disk", expected)?;
            }
        }
        ensure((1..=1_000_000).contains(&self.requests_max), "dynamic.requests_max", "1 to 1,000,000")?;
        ensure(self.body_max.0 <= 1 << 30, "dynamic.body_max", "at most 1 GiB")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn directory() -> StoreConfig {
        StoreConfig::Directory { root: "/".into(), bypass_page_cache: false }
    }

    fn model(processor: bool) -> StoreConfig {
        let processor = processor.then(ProcessorModel::default);
        StoreConfig::Model {
            manifest: "m".into(),
            disk: DiskModel::default(),
            processor,
            preload: super::super::Preload::Nothing,
        }
    }

    #[test]
    fn values_out_of_range_are_named() {
        type Mutation = fn(&mut DynamicConfig);
        let cases: [(&str, Mutation); 13] = [
            ("dynamic.handlers", |c| c.handlers.clear()),
            ("dynamic.handlers.name", |c| c.handlers[0].name = "1".to_owned()),
            ("dynamic.handlers.paths", |c| c.handlers[0].paths = vec!["cgi".to_owned()]),
            ("dynamic.handlers.cpu", |c| c.handlers[0].cpu = Amount::always(Duration::from_secs(61))),
            ("dynamic.handlers.reply", |c| {
                c.handlers[0].reply = Amount { least: Bytes(2), most: Bytes(1) };
            }),
            ("dynamic.handlers.read_bytes", |c| c.handlers[0].read_bytes = Bytes(0)),
            ("dynamic.handlers.cacheable", |c| c.handlers[0].cacheable = Some(Duration::ZERO)),
            ("dynamic.disk", |c| c.handlers[0].reads = 1),
            ("dynamic.speed", |c| c.cpu = Some(CpuConfig::Real { processors: 1, speed: 0.0 })),
            ("processor.speed", |c| {
                c.cpu = Some(CpuConfig::Modelled(ProcessorModel { speed: -1.0, ..Default::default() }));
            }),
            ("dynamic.turn", |c| c.turn = Some(Duration::ZERO)),
            ("dynamic.requests_max", |c| c.requests_max = 0),
            ("dynamic.body_max", |c| c.body_max = Bytes(u64::MAX)),
        ];
        let config = DynamicConfig::new(vec![HandlerConfig::new("a", "/a*")]);
        assert_eq!(config.check(&directory()), Ok(()));
        for (field, mutate) in cases {
            let mut config = config.clone();
            mutate(&mut config);
            assert_eq!(config.check(&directory()).map_err(|error| error.field), Err(field));
        }
    }

    #[test]
    fn a_model_of_the_store_excludes_a_model_of_programs() {
        let mut config = DynamicConfig::new(vec![HandlerConfig::new("a", "/a*")]);
        config.handlers[0].reads = 1;
        assert_eq!(config.check(&model(true)), Ok(()));
        config.cpu = Some(CpuConfig::Real { processors: 0, speed: 1.0 });
        assert_eq!(config.check(&model(true)).map_err(|error| error.field), Err("dynamic.cpu"));
        assert_eq!(config.check(&model(false)), Ok(()));
        config.disk = Some(DynamicDisk::Modelled(DiskModel::default()));
        assert_eq!(config.check(&model(false)).map_err(|error| error.field), Err("dynamic.disk"));
    }

    proptest! {
        #[test]
        fn each_amount_is_within_its_range(least: u64, more in 0..=u64::MAX, draw: u64) {
            let amount = Amount { least, most: least.saturating_add(more) };
            prop_assert!((amount.least..=amount.most).contains(&amount.value_for(draw)));
            prop_assert_eq!(amount.value_for(0), amount.least);
            prop_assert_eq!(amount.value_for(u64::MAX), amount.most);
        }
    }
}
