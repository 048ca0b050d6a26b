//! Configuration of shadow mode.

use crate::config_error::{ConfigError, range};
use larder_core::Bytes;
use larder_core::shadow::{Sampler, ShadowSettings};

/// Configuration of shadow mode.
#[derive(Clone, Debug)]
pub struct ShadowConfig {
    /// Policies, and properties of their nodes' memory caches.
    pub settings: ShadowSettings,
    /// One in this number of targets is sampled at the start. A power of two, 1 to 65,536; default 1. It doubles
    /// whenever the shadow's own memory is full.
    pub one_in: u32,
    /// Assumed memory cache of each node. Default: the node's `cache` in the config, otherwise the size that the node
    /// reports (`cache_bytes_max` of `/.larder/load`), otherwise 0.
    pub memory: Option<Bytes>,
}

impl ShadowConfig {
    /// Returns a configuration with these policies, besides the live one.
    pub fn new(settings: ShadowSettings) -> Self {
        Self { settings, one_in: 1, memory: None }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let most = Sampler::ONE_IN_MAX as usize;
        range("shadow.one_in", self.one_in as usize, 1, most)?;
        range("shadow.objects_max", self.settings.objects_max, 1_024, 100_000_000)
    }
}
