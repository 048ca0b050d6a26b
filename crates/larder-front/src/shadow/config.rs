//! What shadow mode goes by.

use crate::config_error::{ConfigError, range};
use larder_core::Bytes;
use larder_core::shadow::{Sampler, ShadowSettings};

/// Shadow mode.
#[derive(Clone, Debug)]
pub struct ShadowConfig {
    /// The policies and what their nodes' memories are like.
    pub settings: ShadowSettings,
    /// Of so many targets one is looked at, from the start. A power of two, 1 to 65,536; default 1. It doubles whenever the
    /// shadow's own memory is full.
    pub one_in: u32,
    /// What each node's memory is taken for. Default: what the config says of the node (`cache`), else what the node says
    /// (`cache_bytes_max` of `/.larder/load`), else nothing is kept there.
    pub memory: Option<Bytes>,
}

impl ShadowConfig {
    /// These policies, beside the one that runs live.
    pub fn new(settings: ShadowSettings) -> Self {
        Self { settings, one_in: 1, memory: None }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let most = Sampler::ONE_IN_MAX as usize;
        range("shadow.one_in", self.one_in as usize, 1, most)?;
        range("shadow.objects_max", self.settings.objects_max, 1_024, 100_000_000)
    }
}
