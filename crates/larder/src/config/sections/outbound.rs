//! Validation of TLS to nodes and origins, including its files.

use larder_edge::{LoadedTls, OutboundTls};

use crate::config::error::Fault;

/// Reads the files of TLS to a server, so that `larder check` finds their faults. `at` is the table, and `role` the role
/// that connects.
pub(crate) fn outbound(at: &str, tls: &OutboundTls, role: &str) -> Result<LoadedTls, Fault> {
    let key = |name: &str| format!("{at}.{name}");
    let files = [("ca", &tls.authorities), ("certificate", &tls.certificate), ("key", &tls.key)];
    let mut empty =
        files.iter().filter(|(_, file)| file.as_ref().is_some_and(|file| file.as_os_str().is_empty()));
    if let Some((name, _)) = empty.next() {
        return Err(Fault::new(key(name), "empty").hint("leave it out, or name a file"));
    }
    if tls.name.as_deref() == Some("") {
        return Err(Fault::new(key("name"), "empty").hint("leave it out, or name a host"));
    }
    if tls.key.is_some() && tls.certificate.is_none() {
        let what = format!("is not used: the {role} has no certificate of its own");
        return Err(Fault::new(key("key"), what).hint("write certificate = \"FILE\", or leave key out"));
    }
    if tls.authorities.is_some() && !tls.verify {
        return Err(Fault::new(key("ca"), "contradicts verify = false: no certificate is verified")
            .hint("leave verify out"));
    }
    let name_alone = OutboundTls { name: tls.name.clone(), verify: false, ..OutboundTls::default() };
    tls.load().map_err(|fault| {
        let wrong_name = name_alone.load().is_err();
        let of = |file: &Option<std::path::PathBuf>| file.as_ref().is_some_and(|file| fault.file == *file);
        let (name, hint) = if of(&tls.key) {
            ("key", "a file with a line -----BEGIN PRIVATE KEY-----, which only its owner may read")
        } else if of(&tls.certificate) {
            ("certificate", "a PEM file with the certificate and its chain; the key in it, or in `key`")
        } else if of(&tls.authorities) {
            ("ca", "a PEM file with the certificates of authorities")
        } else if wrong_name {
            ("name", "a host's name such as \"store.example.internal\", or an IP address")
        } else {
            ("ca", "write ca = \"FILE\", with the certificate of the server's authority")
        };
        let fault = Fault::new(key(name), fault.to_string()).hint(hint);
        if name == "name" { fault } else { fault.of_machine() }
    })
}
