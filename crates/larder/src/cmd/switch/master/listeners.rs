//! The listeners that a switch has: bound by the master, used by its workers.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, BorrowedFd};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::Plan;
use crate::cmd::serve;

/// Most listeners: they travel in one message.
const LISTENERS_MAX: usize = 240;

/// One listener.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) address: Addressed,
    pub(super) listener: TcpListener,
}

/// Where a listener is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Addressed {
    /// By the config; its port may be 0, for any.
    pub(super) asked: SocketAddr,
    pub(super) at: SocketAddr,
}

impl Bound {
    fn new(asked: SocketAddr, listener: TcpListener) -> anyhow::Result<Self> {
        let at = listener.local_addr()?;
        Ok(Self { address: Addressed { asked, at }, listener })
    }

    fn again(&self) -> anyhow::Result<Self> {
        Ok(Self { address: self.address, listener: self.listener.try_clone()? })
    }
}

/// All listeners: those for clients, and the admin interface's.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    pub(super) clients: Vec<Bound>,
    pub(super) admin: Option<Bound>,
}

impl Listeners {
    /// Those of another plan: what stays is kept, what is new is bound. Nothing is closed before this is dropped.
    ///
    /// # Errors
    /// An address cannot be had.
    pub(super) fn next(&self, plan: &Plan) -> anyhow::Result<Self> {
        anyhow::ensure!(
            plan.listen.len() <= LISTENERS_MAX,
            "switch.listen and switch.tls.listen name {} addresses: at most {LISTENERS_MAX}",
            plan.listen.len()
        );
        // Of several that ask for any port each is kept once.
        let mut kept: Vec<&Bound> = self.clients.iter().collect();
        let clients = plan.listen.iter().map(|asked| {
            match kept.iter().position(|bound| bound.address.asked == *asked) {
                Some(at) => kept.remove(at).again(),
                None => Bound::new(*asked, larder_switch::listen(*asked).context("the switch cannot start")?),
            }
        });
        let clients = clients.collect::<anyhow::Result<_>>()?;
        let admin =
            plan.admin.map(|asked| match self.admin.as_ref().filter(|bound| bound.address.asked == asked) {
                Some(bound) => bound.again(),
                None => Bound::new(asked, serve::bind_admin(asked)?),
            });
        Ok(Self { clients, admin: admin.transpose()? })
    }

    /// Where clients connect, in the order of the config.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.clients.iter().map(|bound| bound.address.at).collect()
    }

    /// Where the admin interface is.
    pub(super) fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|bound| bound.address.at)
    }

    /// All of them, the admin interface's last.
    pub(super) fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.clients.iter().chain(&self.admin).map(|bound| bound.listener.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(listen: &[&str], admin: Option<&str>) -> Plan {
        let address = |text: &&str| text.parse().unwrap();
        Plan {
            origin: String::new(),
            text: String::new(),
            listen: listen.iter().map(address).collect(),
            admin: admin.as_ref().map(address),
            run_as: None,
        }
    }

    #[test]
    fn what_stays_is_kept_and_what_is_new_is_bound() {
        let any = "127.0.0.1:0";
        let first = Listeners::default().next(&plan(&[any, any], Some(any))).unwrap();
        let before = first.addresses();
        assert_ne!(before[0], before[1]);
        let second = first.next(&plan(&[any, any, any], None)).unwrap();
        assert_eq!((&second.addresses()[..2], second.admin_address()), (&before[..], None));
        let taken = before[0].to_string();
        let error = format!("{:#}", first.next(&plan(&[any, &taken], None)).unwrap_err());
        assert!(error.contains(&taken) && error.contains("in use"), "{error}");
    }
}
