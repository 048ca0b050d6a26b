//! Who is in the cluster.

use crate::name::Name;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A member as others know it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// Its name.
    pub name: Name,
    /// Which life of that name it is: of two, the higher is the newer. Milliseconds since 1970 at its start.
    pub incarnation: u64,
    /// Where it listens, for links and for membership.
    pub address: SocketAddr,
}

/// One life of a member, as links name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// Its name.
    pub name: Name,
    /// Which life of that name.
    pub incarnation: u64,
}

impl Member {
    /// The life it is.
    pub fn peer(&self) -> Peer {
        Peer { name: self.name.clone(), incarnation: self.incarnation }
    }
}

/// Why a member has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It said so: what is under way with it may end.
    Said,
    /// It no longer answered, or others say so: what is under way with it is cut.
    Lost,
    /// There is a newer life of its name, or it has moved.
    Replaced,
}

/// A change of membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A member has come.
    Joined(Member),
    /// A member that had come has gone.
    Left(Member, Why),
}

/// This member.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) name: Name,
    /// Changes only when this host's clock proves to have gone back since its last life.
    incarnation: AtomicU64,
}

impl Own {
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
