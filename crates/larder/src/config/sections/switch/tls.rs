//! `[switch.tls]`, and the validation that `[node.tls]` shares with it.

use std::net::SocketAddr;
use std::path::PathBuf;

use larder_edge::{AcmeStore, AddressRange, ClientCertificates, TlsConfig, TlsVersion};
use larder_switch::{HandoffConfig, MechanismSetting};

use crate::acme::AcmeRole;
use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::sections::switch::acme::{AcmeSection, acme, handed_over};
use crate::config::text::{Span, Texts};
use crate::config::values::addresses;
use crate::config::words::{Word, choice};

keys! {
    /// `[switch.tls]`.
    table TlsSection;

    /// Address for clients with TLS: one "address:port" or a list. Required.
    listen: Texts, example "0.0.0.0:443";
    /// PEM files or directories with certificates, chains and keys: a file with all of them, FILE.crt beside
    /// FILE.key, or a directory of certbot. The host that the client names selects the certificate; the first one is
    /// for clients that name none. Required, unless there is [switch.tls.acme].
    certificates: Texts, example "/etc/larder/tls";
    /// Interval at which the files are checked for changes. New connections use changed files. If a file is invalid,
    /// nothing changes.
    reload: Span = Span(std::time::Duration::from_secs(60)), range "1s to 24h";
    /// Oldest version of TLS that is accepted.
    min_version: Word<TlsVersion> = Word(TlsVersion::Tls12);
    /// Whether HTTP/2 is offered.
    http2: bool = true;
    /// Whether clients are asked for certificates: "off", "optional" or "required". Nodes get the certificate in
    /// Client-Cert (RFC 9440).
    client_certificates: ClientCertificate = ClientCertificate::Off;
    /// PEM file with the authorities of clients' certificates. Required unless client_certificates is "off".
    client_ca: Option<String>, example "/etc/larder/clients.pem";
    /// Whether requests without TLS are redirected to https (308). ACME challenges are an exception.
    redirect: bool = false;
    /// Certificates that an authority such as Let's Encrypt issues by ACME. The switch orders and renews them while
    /// it serves.
    acme: Option<AcmeSection>;
}

choice! {
    /// The words of `client_certificates`.
    ClientCertificate { Off, Optional, Required }
}

/// Validates TLS of a switch.
pub(crate) fn tls(
    raw: &TlsSection,
    clear: &[SocketAddr],
    warnings: &mut Vec<Fault>,
) -> Result<(TlsConfig, Option<AcmeRole>), Fault> {
    let section = Section("switch");
    let listen = section.listen(raw, clear)?;
    if raw.certificates.0.is_empty() && raw.acme.is_none() {
        let hint = "name a PEM file with both, or a folder of such files, or write [switch.tls.acme]";
        return Err(section.no_certificates().hint(hint));
    }
    let role = raw.acme.as_ref().map(|raw| acme(raw, clear, &listen, warnings)).transpose()?;
    let store = role.as_ref().map(|role| role.store.clone());
    Ok((section.tls(raw, listen, clear, store)?, role))
}

/// Validates TLS of a node, whose section has a part of the switch's keys.
pub(crate) fn node_tls(raw: &TlsSection, clear: Option<SocketAddr>) -> Result<TlsConfig, Fault> {
    let section = Section("node");
    let listen = section.listen(raw, clear.as_slice())?;
    if raw.certificates.0.is_empty() {
        return Err(section.no_certificates().hint("name a PEM file with both, or a folder of such files"));
    }
    section.tls(raw, listen, clear.as_slice(), None)
}

/// Validates TLS of a picker, whose listener has no other address.
pub(crate) fn picker_tls(
    certificates: &Texts,
    reload: Span,
    client_ca: Option<String>,
    listen: SocketAddr,
) -> Result<TlsConfig, Fault> {
    let asked = if client_ca.is_some() { ClientCertificate::Required } else { ClientCertificate::Off };
    let raw = TlsSection {
        certificates: certificates.clone(),
        reload,
        client_certificates: asked,
        client_ca,
        ..TlsSection::default()
    };
    Section("picker").tls(&raw, vec![listen], &[], None)
}

/// The role of a section, for the names of its keys.
#[derive(Clone, Copy)]
struct Section(&'static str);

impl Section {
    fn key(self, name: &str) -> String {
        format!("{}.tls.{name}", self.0)
    }

    fn no_certificates(self) -> Fault {
        Fault::new(self.key("certificates"), "missing: TLS needs a certificate and its key")
    }

    fn listen(self, raw: &TlsSection, clear: &[SocketAddr]) -> Result<Vec<SocketAddr>, Fault> {
        let listen = addresses(&self.key("listen"), &raw.listen, "0.0.0.0:443")?;
        let twice = listen.iter().find(|address| address.port() != 0 && clear.contains(address));
        twice.map_or(Ok(()), |twice| {
            let what = format!("{twice} is in {}.listen too", self.0);
            Err(Fault::new(self.key("listen"), what)
                .hint("an address serves with TLS or without it: write another address or port"))
        })?;
        Ok(listen)
    }

    /// Validates the other keys. The certificates are read, so that `larder check` finds their faults.
    fn tls(
        self,
        raw: &TlsSection,
        listen: Vec<SocketAddr>,
        clear: &[SocketAddr],
        acme: Option<AcmeStore>,
    ) -> Result<TlsConfig, Fault> {
        let config = TlsConfig {
            min_version: raw.min_version.0,
            http2: raw.http2,
            clients: self.clients(raw)?,
            reload: raw.reload.0,
            redirect: raw.redirect,
            acme,
            ..TlsConfig::new(listen, raw.certificates.0.iter().map(PathBuf::from).collect())
        };
        if config.redirect && clear.is_empty() {
            let what = "has nothing to redirect: no address is without TLS";
            let hint = format!("write {}.listen = \"0.0.0.0:80\"", self.0);
            return Err(Fault::new(self.key("redirect"), what).hint(hint));
        }
        config.check().map_err(|fault| {
            let of_clients = raw.client_ca.as_ref().is_some_and(|file| fault.file == *file);
            let key = self.key(if of_clients { "client_ca" } else { "certificates" });
            let hint = if fault.is_other_key {
                "put the key that the certificate was issued for into this file, or beside it into FILE.key"
            } else if !fault.file.as_os_str().is_empty() && !fault.file.exists() {
                "correct the path; PEM files with certificate, chain and key are read, and folders of such files"
            } else {
                "PEM: files with certificate, chain and key, FILE.crt beside FILE.key, or folders of such files"
            };
            Fault::new(key, fault.to_string()).hint(hint).of_machine()
        })?;
        Ok(config)
    }

    fn clients(self, raw: &TlsSection) -> Result<ClientCertificates, Fault> {
        let key = self.key("client_certificates");
        let file = raw.client_ca.as_ref().map(PathBuf::from);
        match (raw.client_certificates, file) {
            (ClientCertificate::Off, None) => Ok(ClientCertificates::Off),
            (ClientCertificate::Off, Some(_)) => {
                Err(Fault::new(self.key("client_ca"), "is not used: clients are not asked for certificates")
                    .hint("write client_certificates = \"required\""))
            }
            (ClientCertificate::Optional, Some(file)) => Ok(ClientCertificates::Optional(file)),
            (ClientCertificate::Required, Some(file)) => Ok(ClientCertificates::Required(file)),
            (ClientCertificate::Optional | ClientCertificate::Required, None) => {
                Err(Fault::new(key, "needs client_ca: without it no certificate is valid")
                    .hint("write client_ca = \"FILE\", with the authorities' certificates"))
            }
        }
    }
}

/// Refuses settings that handoff excludes, because the switch would have to read the connection first.
pub(crate) fn against_handoff(
    tls: Option<&TlsConfig>,
    announcers: &[AddressRange],
    handoff: &HandoffConfig,
) -> Result<(), Fault> {
    if handoff.setting == MechanismSetting::Relay {
        return Ok(());
    }
    let hint = "leave it out, or write mechanism = \"relay\" in [switch.handoff]";
    if !announcers.is_empty() {
        let what = "contradicts switch.handoff: a connection that begins with the PROXY protocol cannot be handed off";
        return Err(Fault::new("switch.trust.proxy_protocol_from", what).hint(hint));
    }
    tls.and_then(|tls| tls.acme.as_ref()).map_or(Ok(()), handed_over)?;
    if tls.is_some_and(|tls| tls.redirect) {
        let what = "contradicts switch.handoff: nodes would reply on handed-off connections";
        return Err(Fault::new("switch.tls.redirect", what).hint(hint));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::Written;
    use larder_edge::TlsVersion;

    #[test]
    fn certificates_and_an_address_are_enough() {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
        let file = folder.path().join("a.pem");
        std::fs::write(&file, made.cert.pem() + &made.signing_key.serialize_pem()).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let text = format!(
            "[switch]\nnodes = [\"10.0.0.1:80\"]\ntrust.proxy_protocol_from = [\"10.0.0.0/8\"]\n[switch.tls]\nlisten = \
             \"127.0.0.1:443\"\ncertificates = {:?}\n",
            folder.path().display().to_string()
        );
        let switch = Written::parse("f", &text).unwrap().validate().unwrap().switch.unwrap().switch;
        let tls = switch.tls.unwrap();
        assert_eq!((tls.min_version, tls.http2, tls.listen.len()), (TlsVersion::Tls12, true, 1));
        assert!(switch.listen.is_empty() && switch.announcers.len() == 1);
        let node = text.replace("nodes = [\"10.0.0.1:80\"]", "root = \"/\"").replace("switch", "node");
        let role = Written::parse("f", &node).unwrap().validate().unwrap().node.unwrap();
        let tls = role.node.tls.unwrap();
        assert_eq!((tls.min_version, tls.http2, tls.listen.len()), (TlsVersion::Tls12, true, 1));
        assert!(role.listen.is_none() && role.node.announcers.len() == 1);
    }

    #[test]
    fn a_key_of_another_certificate_is_one_fault() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            file
        };
        let made = || rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
        let (one, other) = (made(), made());
        let certificate = write("a.crt", one.cert.pem());
        let key = write("b.key", other.signing_key.serialize_pem());
        let text = format!(
            "[switch]\nlisten = \"127.0.0.1:1\"\nnodes = [\"10.0.0.1:80\"]\n[switch.connect.tls]\nca = {certificate:?}\n\
             certificate = {certificate:?}\nkey = {key:?}\n"
        );
        let error = Written::parse("f", &text).unwrap().validate().unwrap_err();
        assert_eq!((error.key.as_str(), error.more.len()), ("switch.connect.tls.certificate", 0), "{error}");
        assert!(error.what.ends_with("its key belongs to another certificate"), "{error}");
    }
}
