//! Errors of the guard.

use std::io;

/// An error of a guard. Its cause is always this host or its config, never a client.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The config is invalid. A retry does not help.
    #[error("guard: {0}")]
    Config(&'static str),
    /// The kernel has no `bpf_sk_assign_tcp_reqsk` (Linux 6.9), so listeners cannot accept connections from cookies.
    /// Everything else works. A retry does not help.
    #[error("guard: this kernel cannot have a listener accept a connection from a cookie (needs Linux 6.9)")]
    NoKfunc,
    /// The interface does not exist in this network namespace. Use another name, or start when it is up.
    #[error("guard: interface {interface}: {source}")]
    Interface {
        /// The interface's name.
        interface: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel rejected a program or map, usually because rights are missing (`CAP_BPF`, `CAP_NET_ADMIN`) or it is
    /// too old.
    #[error("guard: cannot {doing}: {source}")]
    Bpf {
        /// The operation.
        doing: &'static str,
        /// The kernel's error as reported by libbpf.
        source: libbpf_rs::Error,
    },
    /// A system call failed.
    #[error("guard: cannot {doing}: {source}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The kernel's error.
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
}
