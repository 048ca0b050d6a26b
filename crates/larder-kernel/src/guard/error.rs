//! What can go wrong with a guard.

use std::io;

/// A failure of a guard. All are of this host or its config; none is a client's.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The config asks for what cannot be. Retrying does not help.
    #[error("guard: {0}")]
    Config(&'static str),
    /// The kernel has no `bpf_sk_assign_tcp_reqsk` (Linux 6.9): listeners cannot accept from cookies here. All else
    /// works. Retrying does not help.
    #[error("guard: this kernel cannot have a listener accept a connection from a cookie (needs Linux 6.9)")]
    NoKfunc,
    /// The interface is not there in this network namespace. Helps: another name, or starting when it is up.
    #[error("guard: interface {interface}: {source}")]
    Interface {
        /// Its name.
        interface: String,
        /// From the kernel.
        source: io::Error,
    },
    /// A program or table was refused, mostly for lack of rights (`CAP_BPF`, `CAP_NET_ADMIN`) or an old kernel.
    #[error("guard: cannot {doing}: {source}")]
    Bpf {
        /// What was tried.
        doing: &'static str,
        /// From the kernel, by way of libbpf.
        source: libbpf_rs::Error,
    },
    /// A call to the kernel failed.
    #[error("guard: cannot {doing}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// From the kernel.
        source: io::Error,
    },
}

impl GuardError {
    pub(crate) fn bpf(doing: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Self {
        move |source| Self::Bpf { doing, source }
    }

    pub(crate) fn io<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { doing, source: source.into() }
    }

    /// Whether rights are what is missing.
    pub fn is_permission(&self) -> bool {
        match self {
            Self::Bpf { source, .. } => source.kind() == libbpf_rs::ErrorKind::PermissionDenied,
            Self::Io { source, .. } | Self::Interface { source, .. } => {
                source.kind() == io::ErrorKind::PermissionDenied
            }
            Self::Config(_) | Self::NoKfunc => false,
        }
    }
}
