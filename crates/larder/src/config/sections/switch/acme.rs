//! `[switch.tls.acme]`.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use larder_edge::OutboundTls;
use larder_switch::{AcmeChallenge, AcmeStore};
use rustix::fs::Access;

use crate::acme::{AcmeRole, folder_of};
use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::sections::switch::process::{RunAs, may};
use crate::config::text::Texts;
use crate::config::words::Word;

keys! {
    /// `[switch.tls.acme]`.
    table AcmeSection;

    /// Hosts that get certificates, one for each host. Wildcards are not possible. Required.
    domains: Texts, entries 1000, example ["example.org", "www.example.org"];
    /// Whether you agree to the authority's terms of service. Must be true.
    agree_tos: bool = false;
    /// Contact address for the authority: "mailto:NAME@HOST", or a list. Unset: none.
    contact: Texts, example "mailto:ops@example.org";
    /// Directory for the account, the certificates and their keys, writable for the switch's user. Switches with the
    /// same directory share the certificates. Required.
    store: Option<String>, example "/var/lib/larder/acme";
    /// Challenge that proves the ownership of a host: "http-01" uses port 80 of the host, "tls-alpn-01" port 443.
    challenge: Word<AcmeChallenge> = Word(AcmeChallenge::Http01);
    /// URL of the authority's directory.
    directory: String = "https://acme-v02.api.letsencrypt.org/directory".to_owned();
    /// PEM file with the authorities that sign the certificate of the ACME server. Unset: the authorities that the
    /// system trusts.
    ca: Option<String>, example "/etc/larder/authority.pem";
}

/// RFC 1035 section 2.3.4.
const HOST_CHARS_MAX: usize = 253;
const LABEL_CHARS_MAX: usize = 63;

/// Creates a fault of a key of the section.
fn wrong(key: &str, what: impl Into<String>, hint: impl Into<String>) -> Fault {
    Fault::new(format!("switch.tls.acme.{key}"), what).hint(hint)
}

/// Validates ACME for a switch with the listen addresses `clear` (without TLS) and `secure` (with TLS).
pub(crate) fn acme(
    raw: &AcmeSection,
    clear: &[SocketAddr],
    secure: &[SocketAddr],
    warnings: &mut Vec<Fault>,
) -> Result<AcmeRole, Fault> {
    let hosts = hosts(&raw.domains.0)?;
    if !raw.agree_tos {
        return Err(wrong(
            "agree_tos",
            "is not true: an authority issues certificates only if you agree to its terms of service",
            "read them, then write agree_tos = true; Let's Encrypt's are at https://letsencrypt.org/repository/",
        ));
    }
    if let Some(contact) = raw.contact.0.iter().find(|contact| !is_contact(contact)) {
        let bare = contact.strip_prefix("mailto:").unwrap_or(contact);
        let hint = if bare.contains('@') { format!("write \"mailto:{bare}\"") } else { MAIL.to_owned() };
        return Err(wrong("contact", format!("'{}' is no contact address", contact.escape_debug()), hint));
    }
    let challenge = raw.challenge.0;
    let uri = raw.directory.parse::<http::Uri>().ok();
    if !uri.is_some_and(|uri| {
        uri.scheme_str() == Some("https") && uri.host().is_some_and(|host| !host.is_empty())
    }) {
        let what = format!("'{}' is no https URL", raw.directory.escape_debug());
        return Err(wrong(
            "directory",
            what,
            "write \"https://acme-v02.api.letsencrypt.org/directory\", or that of another authority",
        ));
    }
    let tls = OutboundTls { authorities: raw.ca.as_ref().map(PathBuf::from), ..OutboundTls::default() };
    if tls.authorities.is_some() {
        tls.load().map_err(|fault| {
            wrong(
                "ca",
                fault.to_string(),
                "name a PEM file with the roots that the authority's own certificate comes from",
            )
            .of_machine()
        })?;
    }
    reached(challenge, clear, secure, warnings)?;
    let Some(store) = raw.store.as_ref().map(PathBuf::from).filter(|store| store.is_absolute()) else {
        let what = raw.store.as_ref().map_or_else(
            || "missing: certificates and their keys must be kept somewhere".to_owned(),
            |store| format!("'{}' is no absolute path", store.escape_debug()),
        );
        return Err(wrong("store", what, "write store = \"/var/lib/larder/acme\""));
    };
    let store = AcmeStore { folder: store.join(folder_of(&raw.directory)), hosts, challenge };
    Ok(AcmeRole { store, directory: raw.directory.clone(), contact: raw.contact.0.clone(), tls })
}

const MAIL: &str = "write \"mailto:ops@example.org\"";
const OTHER_CLIENT: &str = "let another ACME client get it, such as certbot or lego, and write its directory into switch.tls.certificates";

fn is_contact(text: &str) -> bool {
    let at = text.strip_prefix("mailto:").and_then(|bare| bare.split_once('@'));
    at.is_some_and(|(name, host)| !name.is_empty() && !host.is_empty() && !text.contains(char::is_whitespace))
}

fn hosts(domains: &[String]) -> Result<Vec<String>, Fault> {
    let key = "domains";
    if domains.is_empty() {
        return Err(wrong(
            key,
            "missing: the hosts that get certificates",
            "write domains = [\"example.org\", \"www.example.org\"]",
        ));
    }
    let (mut seen, mut hosts) = (BTreeSet::new(), Vec::new());
    for text in domains {
        let (host, quoted) = (text.to_ascii_lowercase(), text.escape_debug());
        if host.contains('*') {
            let what = format!(
                "'{quoted}' is a wildcard, which needs the challenge dns-01, which larder does not support"
            );
            return Err(wrong(key, what, format!("name each host, or {OTHER_CLIENT}")));
        }
        if host.parse::<IpAddr>().is_ok() {
            return Err(wrong(
                key,
                format!("'{quoted}' is an IP address, and only names get certificates"),
                OTHER_CLIENT,
            ));
        }
        if !is_host(&host) {
            let hint = "letters, digits, hyphens and dots, without port; other alphabets as xn--";
            return Err(wrong(key, format!("'{quoted}' is no host name"), hint));
        }
        if !seen.insert(host.clone()) {
            return Err(wrong(key, format!("'{quoted}' is listed twice"), "name each host once"));
        }
        hosts.push(host);
    }
    Ok(hosts)
}

fn is_host(host: &str) -> bool {
    let label = |label: &str| {
        (1..=LABEL_CHARS_MAX).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    host.len() <= HOST_CHARS_MAX && host.split('.').all(label)
}

/// Checks the port of the challenge. Authorities use fixed ports (RFC 8555 section 8.3, RFC 8737 section 3), which a
/// device before the switch may forward to it.
fn reached(
    challenge: AcmeChallenge,
    clear: &[SocketAddr],
    secure: &[SocketAddr],
    warnings: &mut Vec<Fault>,
) -> Result<(), Fault> {
    let (listen, key, port, name) = match challenge {
        AcmeChallenge::Http01 => (clear, "switch.listen", 80, "http-01"),
        AcmeChallenge::TlsAlpn01 => (secure, "switch.tls.listen", 443, "tls-alpn-01"),
    };
    if listen.is_empty() {
        let what = "http-01 needs an address without TLS, and there is none";
        return Err(wrong(
            "challenge",
            what,
            "write switch.listen = \"0.0.0.0:80\", or challenge = \"tls-alpn-01\"",
        ));
    }
    if !listen.iter().any(|address| address.port() == port) {
        let what = format!("{name} uses port {port}, which is not in {key}");
        warnings.push(wrong(
            "challenge",
            what,
            format!("forward port {port} of each host to an address of {key}"),
        ));
    }
    Ok(())
}

/// Refuses http-01 with handoff, because the switch does not read connections that are handed off.
pub(crate) fn handed_over(store: &AcmeStore) -> Result<(), Fault> {
    if store.challenge != AcmeChallenge::Http01 {
        return Ok(());
    }
    let what = "http-01 contradicts switch.handoff: nodes would reply to handed-off challenges";
    let hint = "write challenge = \"tls-alpn-01\", or mechanism = \"relay\" in [switch.handoff]";
    Err(wrong("challenge", what, hint))
}

/// Checks that the process that does the work can write the store.
pub(crate) fn writable(
    role: AcmeRole,
    run_as: Option<RunAs>,
    absent: &mut Vec<Fault>,
) -> Result<AcmeRole, Fault> {
    let store = role.store.folder.parent().unwrap_or(Path::new("/"));
    // A missing directory is created.
    let Some(there) = store.ancestors().find(|folder| folder.exists()) else { return Ok(role) };
    let shown = store.display();
    let told = |why: String| {
        let hint = "make a directory that the switch's user may write: mkdir -p -m 0700, and chown to switch.process.user if it is set";
        wrong("store", format!("{shown} cannot be written: {why}"), hint).of_machine()
    };
    if !there.is_dir() {
        return Err(told(format!("{} is no directory", there.display())));
    }
    let may = may(run_as, there, Access::WRITE_OK | Access::EXEC_OK);
    // The user who checks a config may differ from the user who runs it.
    absent.extend((!may).then(|| told(format!("this user may not write {}", there.display()))));
    Ok(role)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_of_hosts() {
        for good in ["example.org", "a-b.c", "xn--bcher-kva.example", "localhost", "1.example"] {
            assert!(is_host(good), "{good}");
        }
        for bad in
            ["", ".", "a..b", "a.", "-a.b", "a-.b", "a_b.c", "a/b", "../x", "a b", "bücher.example", "a:80"]
        {
            assert!(!is_host(bad), "{bad}");
        }
        assert_eq!(hosts(&["WWW.Example.ORG".to_owned()]).unwrap(), ["www.example.org"]);
    }

    #[test]
    fn who_may_write_the_store_is_seen_before_it_is_needed() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let role = |path: &Path| AcmeRole {
            store: AcmeStore {
                folder: path.join("authority"),
                hosts: Vec::new(),
                challenge: AcmeChallenge::Http01,
            },
            directory: String::new(),
            contact: Vec::new(),
            tls: OutboundTls::default(),
        };
        let below = folder.path().join("some/where");
        let mut absent = Vec::new();
        assert!(writable(role(&below), None, &mut absent).is_ok() && absent.is_empty());
        std::fs::write(folder.path().join("some"), "x").unwrap();
        assert!(writable(role(&below), None, &mut absent).is_err());
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
            let other = Some(RunAs { user: 65_534, group: 65_534 });
            writable(role(folder.path()), other, &mut absent).unwrap();
            assert_eq!(absent.len(), 1);
        }
    }
}
