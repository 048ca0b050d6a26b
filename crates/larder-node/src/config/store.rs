//! Settings of the source of contents.

use super::model::ModelConfig;
use super::origin::OriginConfig;
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
    Model(ModelConfig),
    /// An HTTP origin, which is asked for contents that are not in the cache.
    Origin(Box<OriginConfig>),
}
