//! Other switches, as they are configured.

use larder_core::switches::SwitchesSettings;
use larder_peers::PeersConfig;

/// The work of this switch with others.
#[derive(Clone, Debug)]
pub struct SwitchesConfig {
    /// The name of this switch, and the addresses of the others.
    pub network: PeersConfig,
    /// The protocol: its periods and limits.
    pub settings: SwitchesSettings,
}
