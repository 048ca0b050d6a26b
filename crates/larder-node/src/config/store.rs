//! Settings of the source of contents.

use super::origin::OriginConfig;
use larder_core::cost::{DiskModel, ProcessorModel};
use std::path::PathBuf;

/// The source of contents.
#[derive(Clone, Debug)]
pub enum StoreConfig {
    /// The files below a directory.
    Directory {
        /// The directory. Nothing outside of it is ever served.
        root: PathBuf,
        /// Whether reads bypass the operating system's page cache, so that the node's own cache size determines
        /// the hits.
        bypass_page_cache: bool,
    },
    /// Synthetic contents: replies of the right sizes, after the time of a modelled disk.
    Model {
        /// Text file with one line `size<TAB>target` for each target, as requested (`path?query`).
        manifest: PathBuf,
        /// The disk.
        disk: DiskModel,
        /// The processor; `None` sends replies as fast as the real processor.
        processor: Option<ProcessorModel>,
        /// The memory contents at the start.
        preload: Preload,
    },
    /// An HTTP origin, which is asked for contents that are not in the cache.
    Origin(Box<OriginConfig>),
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
