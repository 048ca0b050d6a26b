//! Errors of the forwarding plane.

use std::io;

/// An error of the forwarding plane. Its cause is always this host or its config, never a client or a node.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    /// The config is invalid. A retry does not help.
    #[error("forwarding plane: {0}")]
    Config(&'static str),
    /// The interface does not exist in this network namespace. Use another name, or start when it is up.
    #[error("forwarding plane: interface {interface}: {source}")]
    Interface {
        /// The interface's name.
        interface: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel rejected the programs, usually because rights are missing (`CAP_BPF`, `CAP_NET_ADMIN`) or it is too
    /// old.
    #[error("forwarding plane: cannot {doing}: {source}")]
    Bpf {
        /// The operation.
        doing: &'static str,
        /// The kernel's error as reported by libbpf.
        source: libbpf_rs::Error,
    },
    /// A system call failed.
    #[error("forwarding plane: cannot {doing}: {source}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The kernel's error.
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
