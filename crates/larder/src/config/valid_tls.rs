//! `[switch.tls]`, `[node.tls]` and who is believed to announce clients, checked and turned into what switch and node are told.

use std::net::SocketAddr;
use std::path::PathBuf;

use larder_edge::{AcmeStore, AddressRange, ClientCertificates, TlsConfig, TlsVersion};
use larder_front::{HandoffConfig, MechanismSetting};

use super::error::Fault;
use super::explain::suggest;
use super::raw_node_tls::RawNodeTls;
use super::raw_tls::RawTls;
use super::text::Texts;
use super::valid::addresses;
use super::valid_acme::{acme, handed_over};
use crate::acme::AcmeRole;

const VERSIONS: [&str; 2] = ["1.2", "1.3"];
const CLIENTS: [&str; 3] = ["off", "optional", "required"];

/// TLS of a switch.
pub(super) fn tls(
    raw: &RawTls,
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

/// TLS of a node.
pub(super) fn node_tls(raw: &RawNodeTls, clear: Option<SocketAddr>) -> Result<TlsConfig, Fault> {
    let (section, raw) = (Section("node"), raw.as_switch());
    let listen = section.listen(&raw, clear.as_slice())?;
    if raw.certificates.0.is_empty() {
        return Err(section.no_certificates().hint("name a PEM file with both, or a folder of such files"));
    }
    section.tls(&raw, listen, clear.as_slice(), None)
}

/// The role that a section is of, for what is said of its keys.
#[derive(Clone, Copy)]
struct Section(&'static str);

impl Section {
    fn key(self, name: &str) -> String {
        format!("{}.tls.{name}", self.0)
    }

    fn no_certificates(self) -> Fault {
        Fault::new(self.key("certificates"), "missing: TLS needs a certificate and its key")
    }

    fn listen(self, raw: &RawTls, clear: &[SocketAddr]) -> Result<Vec<SocketAddr>, Fault> {
        let listen = addresses(&self.key("listen"), &raw.listen, "0.0.0.0:443")?;
        let twice = listen.iter().find(|address| address.port() != 0 && clear.contains(address));
        twice.map_or(Ok(()), |twice| {
            let what = format!("{twice} is in {}.listen too", self.0);
            Err(Fault::new(self.key("listen"), what).hint("an address is with TLS or without"))
        })?;
        Ok(listen)
    }

    /// The rest, with the certificates read once, so that `larder check` finds them wrong.
    fn tls(
        self,
        raw: &RawTls,
        listen: Vec<SocketAddr>,
        clear: &[SocketAddr],
        acme: Option<AcmeStore>,
    ) -> Result<TlsConfig, Fault> {
        let min_version = match raw.min_version.as_str() {
            "1.2" => TlsVersion::Tls12,
            "1.3" => TlsVersion::Tls13,
            other => {
                let what = format!("unknown version '{}'", other.escape_debug());
                return Err(Fault::new(self.key("min_version"), what).hint(suggest(other, &VERSIONS)));
            }
        };
        let config = TlsConfig {
            min_version,
            http2: raw.http2,
            clients: self.clients(raw)?,
            reload: raw.reload.0,
            redirect: raw.redirect,
            acme,
            ..TlsConfig::new(listen, raw.certificates.0.iter().map(PathBuf::from).collect())
        };
        if config.redirect && clear.is_empty() {
            let what = "there is nothing to send on: no address is without TLS";
            let hint = format!("write {}.listen = \"0.0.0.0:80\"", self.0);
            return Err(Fault::new(self.key("redirect"), what).hint(hint));
        }
        config.check().map_err(|fault| {
            let of_clients = raw.client_ca.as_ref().is_some_and(|file| fault.file == *file);
            let key = self.key(if of_clients { "client_ca" } else { "certificates" });
            let hint = if fault.what.contains("key is that of another") {
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

    fn clients(self, raw: &RawTls) -> Result<ClientCertificates, Fault> {
        let key = self.key("client_certificates");
        let file = raw.client_ca.as_ref().map(PathBuf::from);
        match (raw.client_certificates.as_str(), file) {
            ("off", None) => Ok(ClientCertificates::Off),
            ("off", Some(_)) => {
                Err(Fault::new(self.key("client_ca"), "is not used: clients are asked for nothing")
                    .hint("write client_certificates = \"required\""))
            }
            ("optional", Some(file)) => Ok(ClientCertificates::Optional(file)),
            ("required", Some(file)) => Ok(ClientCertificates::Required(file)),
            ("optional" | "required", None) => {
                Err(Fault::new(key, "nobody's certificates would do: client_ca is missing")
                    .hint("write client_ca = \"FILE\", with the authorities' certificates"))
            }
            (other, _) => {
                let what = format!("unknown value '{}'", other.escape_debug());
                Err(Fault::new(key, what).hint(suggest(other, &CLIENTS)))
            }
        }
    }
}

/// A list of ranges of addresses.
pub(super) fn ranges(key: &str, raw: &Texts) -> Result<Vec<AddressRange>, Fault> {
    raw.0
        .iter()
        .map(|text| {
            text.parse().map_err(|what: String| {
                Fault::new(key, what).hint("write \"10.0.0.0/8\", \"2001:db8::/32\" or \"192.0.2.1\"")
            })
        })
        .collect()
}

/// What must be read before it is decided cannot be delivered before it is read.
pub(super) fn against_handoff(
    tls: Option<&TlsConfig>,
    announcers: &[AddressRange],
    handoff: &HandoffConfig,
) -> Result<(), Fault> {
    if handoff.setting == MechanismSetting::Relay {
        return Ok(());
    }
    let hint = "leave it out, or write mechanism = \"relay\" in [switch.handoff]";
    if !announcers.is_empty() {
        let what =
            "contradicts switch.handoff: a connection that begins with an announcement cannot be handed over";
        return Err(Fault::new("switch.proxy_protocol_from", what).hint(hint));
    }
    tls.and_then(|tls| tls.acme.as_ref()).map_or(Ok(()), handed_over)?;
    if tls.is_some_and(|tls| tls.redirect) {
        let what = "contradicts switch.handoff: nodes that are handed a connection would answer";
        return Err(Fault::new("switch.tls.redirect", what).hint(hint));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Written;
    use larder_edge::TlsVersion;

    #[test]
    fn certificates_and_an_address_are_enough() {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
        let file = folder.path().join("a.pem");
        std::fs::write(&file, made.cert.pem() + &made.signing_key.serialize_pem()).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let text = format!(
            "[switch]\nnodes = [\"10.0.0.1:80\"]\nproxy_protocol_from = [\"10.0.0.0/8\"]\n[switch.tls]\nlisten = \
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
            "[switch]\nlisten = \"127.0.0.1:1\"\nnodes = [\"10.0.0.1:80\"]\n[switch.node_tls]\nca = {certificate:?}\n\
             certificate = {certificate:?}\nkey = {key:?}\n"
        );
        let error = Written::parse("f", &text).unwrap().validate().unwrap_err();
        assert_eq!((error.key.as_str(), error.more.len()), ("switch.node_tls.certificate", 0), "{error}");
        assert!(error.what.ends_with("its key is that of another certificate"), "{error}");
    }
}
