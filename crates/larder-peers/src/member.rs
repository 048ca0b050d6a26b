//! Members of the cluster.

use crate::name::Name;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// The member's name.
    pub name: Name,
    /// Identifies one process among all processes that have had this name; the higher number is the newer process. It is
    /// the time of the process's start, in milliseconds since 1970.
    pub incarnation: u64,
    /// The address on which the member listens for links and for datagrams of membership.
    pub address: SocketAddr,
}

/// Identifies one process of a member: name and incarnation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId {
    /// The member's name.
    pub name: Name,
    /// See [`Member::incarnation`].
    pub incarnation: u64,
}

impl Member {
    /// The member's id.
    pub fn id(&self) -> PeerId {
        PeerId { name: self.name.clone(), incarnation: self.incarnation }
    }
}

/// Why a member left the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaveReason {
    /// The member announced that it leaves: requests in flight may finish.
    Announced,
    /// The failure detector declared the member down: its links are closed.
    Lost,
    /// A newer process has the member's name, or the member has another address.
    Replaced,
}

/// A change of membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A member joined.
    Joined(Member),
    /// A member that had joined has left.
    Left(Member, LeaveReason),
}

/// Identity of this process in the cluster.
#[derive(Debug)]
pub(crate) struct LocalMember {
    pub(crate) name: Name,
    /// Changes only if the host's clock has gone back since the last process of this name.
    incarnation: AtomicU64,
}

impl LocalMember {
    pub(crate) fn new(name: Name, incarnation: u64) -> Self {
        Self { name, incarnation: AtomicU64::new(incarnation) }
    }

    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation.load(Relaxed)
    }

    pub(crate) fn set_incarnation(&self, incarnation: u64) {
        self.incarnation.store(incarnation, Relaxed);
    }
}
