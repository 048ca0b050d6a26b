//! The listeners of a switch, which the master binds and the workers use.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, BorrowedFd};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::WorkerPlan;
use crate::cmd::serve;

/// Most listeners, because all must fit into one message.
const LISTENERS_MAX: usize = 240;

/// A bound listener.
#[derive(Debug)]
pub(super) struct BoundListener {
    pub(super) address: ListenAddress,
    pub(super) listener: TcpListener,
}

/// The address of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ListenAddress {
    /// The configured address. Port 0 means any free port.
    #[serde(rename = "asked")]
    pub(super) configured: SocketAddr,
    /// The bound address.
    #[serde(rename = "at")]
    pub(super) bound: SocketAddr,
}

impl BoundListener {
    fn new(configured: SocketAddr, listener: TcpListener) -> anyhow::Result<Self> {
        let bound = listener.local_addr()?;
        Ok(Self { address: ListenAddress { configured, bound }, listener })
    }

    fn duplicate(&self) -> anyhow::Result<Self> {
        Ok(Self { address: self.address, listener: self.listener.try_clone()? })
    }
}

/// All listeners: for clients and for the admin interface.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    pub(super) clients: Vec<BoundListener>,
    pub(super) admin: Option<BoundListener>,
}

impl Listeners {
    /// Returns the listeners of a new plan. Unchanged listeners are kept, and new ones are bound. No listener
    /// is closed before `self` is dropped.
    ///
    /// # Errors
    /// Returns an error if an address cannot be bound.
    pub(super) fn rebind(&self, plan: &WorkerPlan) -> anyhow::Result<Self> {
        anyhow::ensure!(
            plan.listen.len() <= LISTENERS_MAX,
            "switch.listen and switch.tls.listen have {} addresses; the limit is {LISTENERS_MAX}",
            plan.listen.len()
        );
        // If several addresses have port 0, each of their listeners is kept once.
        let mut kept: Vec<&BoundListener> = self.clients.iter().collect();
        let clients = plan.listen.iter().map(|asked| {
            match kept.iter().position(|bound| bound.address.configured == *asked) {
                Some(at) => kept.remove(at).duplicate(),
                None => BoundListener::new(
                    *asked,
                    larder_switch::listen(*asked).context("the switch cannot start")?,
                ),
            }
        });
        let clients = clients.collect::<anyhow::Result<_>>()?;
        let admin = plan.admin.map(|asked| {
            match self.admin.as_ref().filter(|bound| bound.address.configured == asked) {
                Some(bound) => bound.duplicate(),
                None => BoundListener::new(asked, serve::bind_admin(asked)?),
            }
        });
        Ok(Self { clients, admin: admin.transpose()? })
    }

    /// Returns the bound addresses for clients, in the order of the config.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.clients.iter().map(|bound| bound.address.bound).collect()
    }

    /// Returns the bound address of the admin interface.
    pub(super) fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|bound| bound.address.bound)
    }

    /// Returns all listeners, with the admin interface's at the end.
    pub(super) fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.clients.iter().chain(&self.admin).map(|bound| bound.listener.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(listen: &[&str], admin: Option<&str>) -> WorkerPlan {
        let address = |text: &&str| text.parse().unwrap();
        WorkerPlan {
            origin: String::new(),
            text: String::new(),
            listen: listen.iter().map(address).collect(),
            admin: admin.as_ref().map(address),
            run_as: None,
        }
    }

    #[test]
    fn unchanged_listeners_are_kept_and_new_ones_are_bound() {
        let any = "127.0.0.1:0";
        let first = Listeners::default().rebind(&plan(&[any, any], Some(any))).unwrap();
        let before = first.addresses();
        assert_ne!(before[0], before[1]);
        let second = first.rebind(&plan(&[any, any, any], None)).unwrap();
        assert_eq!((&second.addresses()[..2], second.admin_address()), (&before[..], None));
        let taken = before[0].to_string();
        let error = format!("{:#}", first.rebind(&plan(&[any, &taken], None)).unwrap_err());
        assert!(error.contains(&taken) && error.contains("in use"), "{error}");
    }
}
