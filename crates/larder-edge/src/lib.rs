//! A client's connection: a balancer's announcement and TLS before the first request.
//!
//! Both switch and node use this crate. It does not parse requests, but it handles header fields that depend on the
//! connection ([`client_cert`], [`https_url`], [`EntryRules`]), and writes the access log ([`access`]).
//!
//! ```text
//! accepted -> [`read_announcement`], if the peer is a trusted balancer -> [`Tls::accept`], if TLS is configured -> [`ClientIo`]
//! ```

pub mod access;
mod address_text;
mod client_address;
mod client_io;
mod entry;
mod fields;
mod header;
mod metric;
mod proxy_protocol;
mod purge;
mod secret_file;
mod server_io;
pub mod template;
mod tls;
mod token;

pub use address_text::AddressText;
pub use client_address::{client_address, forwarded_address};
pub use client_io::{ClientIo, CountedTcp};
pub use entry::{EntryRules, Forwarded, Sender, URL_FIELDS};
pub use fields::{client_cert, https_url};
pub use header::{Fields, Lookup};
pub use metric::{Metric, MetricKind};
pub use proxy_protocol::{
    AddressRange, AddressRanges, AnnouncedClient, AnnouncementError, read_announcement,
};
pub use purge::{Location, PURGE_FIELD, PURGE_PATH, Purge, PurgeError};
pub use secret_file::{CertificateFault, read_secret, refuse_exposed};
pub use server_io::ServerIo;
pub use tls::certificates;
pub use tls::{Acme, AcmeChallenge, AcmeStatus, AcmeStore, StoredCertificate, WELL_KNOWN};
pub use tls::{
    CertificateStatus, ClientCertificates, LoadedTls, OutboundTls, OwnCertificate, RELOAD_MAX, RELOAD_MIN,
    Tls, TlsConfig, TlsConfigFault, TlsConnection, TlsFault, TlsHandshakeOutcome, TlsVersion,
};
pub use token::{PermissionError, Tokens, permit};

/// Entry points for the fuzz targets: parsers of untrusted input, with checks that must hold for any input.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::proxy_protocol::fuzz_announcement;
}
