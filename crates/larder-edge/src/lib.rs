//! A client's connection: the announcement of a balancer and TLS before its first request.
//!
//! Switch and node use it alike. It parses no requests, but it knows the header fields of a request that depend on its connection
//! ([`client_cert`], [`under_https`], [`EntryRules`]), and it writes the access log ([`access`]).
//!
//! ```text
//! accepted -> [`read_announcement`], where a balancer is trusted -> [`Tls::accept`], where there is TLS -> [`ClientIo`]
//! ```

pub mod access;
mod address_text;
mod client_address;
mod client_io;
mod entry;
mod fields;
mod header;
mod proxy_protocol;
mod purge;
mod secret_file;
mod seldom;
mod server_io;
pub mod template;
mod tls;
mod token;

pub use address_text::AddressText;
pub use client_address::{client_address, forwarded_address};
pub use client_io::{ClientIo, Counted};
pub use entry::{EntryRules, Forwarded, Sender, URL_FIELDS};
pub use fields::{client_cert, under_https};
pub use header::{Fields, Lookup};
pub use proxy_protocol::{AddressRange, Announcers, Named, Unannounced, read_announcement};
pub use purge::{BadPurge, Location, PURGE_FIELD, PURGE_PATH, Purge};
pub use secret_file::{CertificateFault, read_secret, refuse_exposed};
pub use seldom::Seldom;
pub use server_io::ServerIo;
pub use tls::certificates;
pub use tls::{Acme, AcmeChallenge, AcmeStatus, AcmeStore, AcmeStored, WELL_KNOWN};
pub use tls::{
    CertificateStatus, ClientCertificates, LoadedTls, OutboundTls, OwnCertificate, RELOAD_MAX, RELOAD_MIN,
    Secured, Shaken, Tls, TlsConfig, TlsConfigFault, TlsFault, TlsVersion,
};
pub use token::{Tokens, Unpermitted, permit};

/// Entry points for the fuzz targets: parsers of what anybody says, with the checks that must hold for any input.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::proxy_protocol::fuzz_announcement;
}
