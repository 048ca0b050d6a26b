//! Revocation of a switch's key.
//!
//! The switch's channel ends at once, and its settings leave the kernel: its listen addresses unless another switch has
//! them, its cookie keys, its tag and its tunnel. The switch can therefore open no further connection here. Connections
//! that it has opened are sockets of this host. They continue while their packets arrive, but not if these came through
//! its tunnel.

use super::core::Core;
use super::link::LinkInput;
use crate::channel::identity::PublicKey;
use crate::channel::server::{AccessControl, AccessState, HandshakeCounters, SwitchConnection};
use std::collections::BTreeSet;
use tokio::sync::mpsc;

impl Core {
    /// Adds a switch that has completed the handshake, unless its key was revoked since.
    pub(super) fn admit(
        &mut self,
        connection: SwitchConnection,
        access: &AccessControl,
        inputs: &mpsc::Sender<LinkInput>,
    ) {
        if access.may_connect(&connection.key) {
            self.switch_connected(connection, inputs);
        }
    }

    /// Ends the channels of switches whose keys were revoked since the last call.
    pub(super) fn revoke(&mut self, access: &AccessState, counters: &HandshakeCounters) {
        if std::mem::replace(&mut self.revocations, access.revocations) == access.revocations {
            return;
        }
        let known: BTreeSet<PublicKey> =
            self.connected.keys().copied().chain(self.switches.known()).collect();
        let revoked: Vec<PublicKey> =
            known.into_iter().filter(|key| !access.may_stay_connected(key)).collect();
        for key in &revoked {
            if let Some(switch) = self.connected.get(key) {
                counters.add_revoked();
                tracing::info!(%key, address = %switch.link.address, "switch: disconnected, its key is revoked");
            }
            self.remove_switch(*key);
            self.switches.remove(*key);
        }
        for key in revoked {
            self.withdraw_offers(key);
        }
        self.apply_settings(None);
    }
}
