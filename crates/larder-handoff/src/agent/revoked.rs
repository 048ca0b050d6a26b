//! The end of a front-end whose key is revoked.
//!
//! Its channel ends at once, and what it wanted leaves the kernel: its listen addresses if no other front-end has them, its
//! keys of cookies, its tag and its tunnel. So it opens no further connection here. Connections that it has opened live in
//! sockets of this host and go on while their packets arrive, which by a tunnel that is removed they do not.

use super::core::Core;
use super::link::Input;
use crate::channel::identity::PublicKey;
use crate::channel::server::{Admission, Admitted, Outcomes, Peer};
use std::collections::BTreeSet;
use tokio::sync::mpsc;

impl Core {
    /// Takes a front-end that has shaken hands, unless its key was revoked since.
    pub(super) fn admit(&mut self, peer: Peer, admitted: &Admitted, inputs: &mpsc::Sender<Input>) {
        if admitted.allows(&peer.key) {
            self.connected(peer, inputs);
        }
    }

    /// Ends the channels of front-ends whose keys were revoked since the last call.
    pub(super) fn revoke(&mut self, admission: &Admission, outcomes: &Outcomes) {
        if std::mem::replace(&mut self.revocations, admission.revocations) == admission.revocations {
            return;
        }
        let known: BTreeSet<PublicKey> = self.fronts.keys().copied().chain(self.switches.known()).collect();
        let revoked: Vec<PublicKey> = known.into_iter().filter(|key| !admission.keeps(key)).collect();
        for key in &revoked {
            if let Some(front) = self.fronts.get(key) {
                outcomes.add_revoked();
                tracing::warn!(%key, address = %front.link.address, "switch channel ended: its key is revoked");
            }
            self.forget(*key);
            self.switches.revoked(*key);
        }
        for key in revoked {
            self.unasked(key);
        }
        self.apply(None);
    }
}
