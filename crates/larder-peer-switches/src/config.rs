//! Configuration of peer switches.

use larder_core::switches::SwitchesSettings;
use larder_peers::PeersConfig;

/// Configuration of peer switches.
#[derive(Clone, Debug)]
pub struct SwitchesConfig {
    /// Name of this switch, and addresses of its peers.
    pub network: PeersConfig,
    /// Periods and limits of the protocol.
    pub settings: SwitchesSettings,
}
