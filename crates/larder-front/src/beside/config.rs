//! Other switches, as they are configured.

use larder_core::switches::SwitchesSettings;
use larder_peers::PeersConfig;

/// How this switch works with others.
#[derive(Clone, Debug)]
pub struct SwitchesConfig {
    /// Who it is, and where the others are.
    pub network: PeersConfig,
    /// What is told when.
    pub settings: SwitchesSettings,
}
