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

    /// Where clients connect with TLS: one "address:port" or a list. Required.
    listen: Texts = listen, example "0.0.0.0:443";
    /// Certificates with their chains and keys, PEM, as in [switch.tls]. Required.
    certificates: Texts = certificates, example "/etc/larder/tls", reload true;
    /// Time from one look at the files to the next.
    reload: Span = reload, range "1s to 24h", reload true;
    /// The oldest version of TLS spoken.
    min_version: Word<TlsVersion> = min_version, reload true;
    /// Whether HTTP/2 is offered.
    http2: bool = http2, reload true;
    /// Whether clients are asked for certificates of their own: "off", "optional" or "required". What is shown goes to an origin
    /// in Client-Cert (RFC 9440).
    client_certificates: ClientCertificate = client_certificates, reload true;
    /// The authorities whose certificates clients may show: a file, PEM. Needed unless client_certificates is "off".
    client_ca: Option<String> = client_ca, example "/etc/larder/clients.pem", reload true;
    /// Whether requests that come without TLS are sent to the same under https (308), except challenges of ACME and the node's
    /// own paths.
    redirect: bool = redirect, reload true;
}

impl NodeTlsSection {
    /// The same, as a switch would have it.
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
