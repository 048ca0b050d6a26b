//! `[node.tls]` as written, with its defaults: the keys of [`TlsSection`] that a node has.

use larder_edge::TlsVersion;

use crate::config::keys::keys;
use crate::config::sections::switch::tls::{ClientCertificate, TlsSection};
use crate::config::text::{Span, Texts};
use crate::config::words::Word;

keys! {
    /// `[node.tls]`.
    table NodeTlsSection,
        TlsSection { listen, certificates, reload, min_version, http2, client_certificates, client_ca, redirect, .. } = TlsSection::default();

    /// Address for clients with TLS: one "address:port" or a list. Required.
    listen: Texts = listen, example "0.0.0.0:443";
    /// PEM files or directories with certificates, chains and keys, as in [switch.tls]. Required.
    certificates: Texts = certificates, example "/etc/larder/tls", reload true;
    /// Interval at which the files are checked for changes.
    reload: Span = reload, range "1s to 24h", reload true;
    /// Oldest version of TLS that is accepted.
    min_version: Word<TlsVersion> = min_version, reload true;
    /// Whether HTTP/2 is offered.
    http2: bool = http2, reload true;
    /// Whether clients are asked for certificates: "off", "optional" or "required". An origin gets the certificate in
    /// Client-Cert (RFC 9440).
    client_certificates: ClientCertificate = client_certificates, reload true;
    /// PEM file with the authorities of clients' certificates. Required unless client_certificates is "off".
    client_ca: Option<String> = client_ca, example "/etc/larder/clients.pem", reload true;
    /// Whether requests without TLS are redirected to https (308). Exceptions are ACME challenges and the node's own
    /// paths.
    redirect: bool = redirect, reload true;
}

impl NodeTlsSection {
    /// Returns the settings as a section of a switch.
    pub(crate) fn as_switch(&self) -> TlsSection {
        let Self {
            listen,
            certificates,
            reload,
            min_version,
            http2,
            client_certificates,
            client_ca,
            redirect,
        } = self.clone();
        let own = TlsSection { listen, certificates, reload, min_version, ..TlsSection::default() };
        TlsSection { http2, client_certificates, client_ca, redirect, ..own }
    }
}
