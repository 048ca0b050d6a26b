//! Settings of the source of contents.

use super::origin::OriginConfig;
use larder_core::cost::{DiskModel, ProcessorModel};
use std::path::PathBuf;

/// A source of contents.
#[derive(Clone, Debug)]
pub enum StoreConfig {
    /// The files below a directory.
    Directory {
        /// The directory. Nothing outside of it is ever served.
        root: PathBuf,
        /// Read past the operating system's page cache, so that the node's own cache size is what counts.
        bypass_page_cache: bool,
    },
    /// No contents at all: replies of the right sizes after the time a modelled disk would have taken.
    Model {
        /// Text file with a line `size<TAB>target` for each target, as requested (`path?query`).
        manifest: PathBuf,
        /// The disk.
        disk: DiskModel,
        /// The processor; `None` leaves replies as fast as the real one.
        processor: Option<ProcessorModel>,
        /// What is in memory from the start.
        preload: Preload,
    },
    /// An HTTP origin, asked for what the cache does not have.
    Origin(Box<OriginConfig>),
}

/// What a node with a modelled store has in memory from the start: for experiments with a tier that has long been warm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preload {
    /// Nothing.
    #[default]
    Nothing,
    /// Its targets, in the manifest's order until the next would evict one; those above [`crate::CacheConfig::object_max`] are passed
    /// over.
    Targets,
    /// The same, and its peers hear of them. Not behind a switch, which has other names for targets.
    Shared,
}
