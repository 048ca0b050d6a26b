//! What can go wrong in the forwarding plane.

use std::io;

/// A failure of the forwarding plane. All are of this host or its config; none is a client's or a node's.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    /// The config asks for what cannot be. Retrying does not help.
    #[error("handoff plane: {0}")]
    Config(&'static str),
    /// The interface is not there in this network namespace. Helps: another name, or starting when it is up.
    #[error("handoff plane: interface {interface}: {source}")]
    Interface {
        /// Its name.
        interface: String,
        /// From the kernel.
        source: io::Error,
    },
    /// The programs were refused, mostly for lack of rights (`CAP_BPF`, `CAP_NET_ADMIN`) or an old kernel.
    #[error("handoff plane: cannot {doing}: {source}")]
    Bpf {
        /// What was tried.
        doing: &'static str,
        /// From the kernel, by way of libbpf.
        source: libbpf_rs::Error,
    },
    /// A call to the kernel failed.
    #[error("handoff plane: cannot {doing}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// From the kernel.
        source: io::Error,
    },
}

impl PlaneError {
    pub(super) fn bpf(doing: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Self {
        move |source| Self::Bpf { doing, source }
    }

    pub(super) fn io<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { doing, source: source.into() }
    }
}
