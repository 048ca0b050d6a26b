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

    /// The hosts that are to have certificates, each one of its own. No wildcards. Required.
    domains: Texts, entries 1000, example ["example.org", "www.example.org"];
    /// Whether you agree to the authority's terms of service; it issues nothing otherwise. Must be true.
    agree_tos: bool = false;
    /// Whom the authority may write to: "mailto:NAME@HOST", or several.
    contact: Texts, example "mailto:ops@example.org";
    /// Where the account, the certificates and their keys are kept: a folder that the switch's user may write. Switches that share
    /// it share the certificates. Required.
    store: Option<String>, example "/var/lib/larder/acme";
    /// How the authority is shown whose names these are: "http-01", asked at port 80 of each host, or "tls-alpn-01", at port 443.
    challenge: Word<AcmeChallenge> = Word(AcmeChallenge::Http01);
    /// The authority's directory: a URL.
    directory: String = "https://acme-v02.api.letsencrypt.org/directory".to_owned();
    /// Whom to trust when the authority is asked: a file, PEM. Unset: whom the system trusts.
    ca: Option<String>, example "/etc/larder/authority.pem";
}

/// RFC 1035 section 2.3.4.
const HOST_CHARS_MAX: usize = 253;
const LABEL_CHARS_MAX: usize = 63;

/// What is wrong with a key of the section.
fn wrong(key: &str, what: impl Into<String>, hint: impl Into<String>) -> Fault {
    Fault::new(format!("switch.tls.acme.{key}"), what).hint(hint)
}

/// Certificates from an authority, for a switch that listens there without TLS and with it.
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
            "is not true: an authority issues certificates only to who agrees to its terms of service",
            "read them, then write agree_tos = true; Let's Encrypt's are at https://letsencrypt.org/repository/",
        ));
    }
    if let Some(contact) = raw.contact.0.iter().find(|contact| !is_contact(contact)) {
        let bare = contact.strip_prefix("mailto:").unwrap_or(contact);
        let hint = if bare.contains('@') { format!("write \"mailto:{bare}\"") } else { MAIL.to_owned() };
        return Err(wrong("contact", format!("'{}' is no address", contact.escape_debug()), hint));
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
            |store| format!("'{}' is no whole path", store.escape_debug()),
        );
        return Err(wrong("store", what, "write store = \"/var/lib/larder/acme\""));
    };
    let store = AcmeStore { folder: store.join(folder_of(&raw.directory)), hosts, challenge };
    Ok(AcmeRole { store, directory: raw.directory.clone(), contact: raw.contact.0.clone(), tls })
}

const MAIL: &str = "write \"mailto:ops@example.org\"";
const OTHER_CLIENT: &str = "let another client of ACME get it, such as certbot or lego, and name its folder in switch.tls.certificates";

fn is_contact(text: &str) -> bool {
    let at = text.strip_prefix("mailto:").and_then(|bare| bare.split_once('@'));
    at.is_some_and(|(name, host)| !name.is_empty() && !host.is_empty() && !text.contains(char::is_whitespace))
}

fn hosts(domains: &[String]) -> Result<Vec<String>, Fault> {
    let key = "domains";
    if domains.is_empty() {
        return Err(wrong(
            key,
            "missing: for which hosts?",
            "write domains = [\"example.org\", \"www.example.org\"]",
        ));
    }
    let (mut seen, mut hosts) = (BTreeSet::new(), Vec::new());
    for text in domains {
        let (host, quoted) = (text.to_ascii_lowercase(), text.escape_debug());
        if host.contains('*') {
            let what = format!(
                "'{quoted}' is a wildcard, which needs the challenge dns-01, which is not spoken here"
            );
            return Err(wrong(key, what, format!("name each host, or {OTHER_CLIENT}")));
        }
        if host.parse::<IpAddr>().is_ok() {
            return Err(wrong(
                key,
                format!("'{quoted}' is an address, and only names are asked for"),
                OTHER_CLIENT,
            ));
        }
        if !is_host(&host) {
            let hint = "letters, digits, hyphens and dots, without port; other alphabets as xn--";
            return Err(wrong(key, format!("'{quoted}' is no host"), hint));
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

/// Authorities ask at fixed ports (RFC 8555 section 8.3, RFC 8737 section 3), which something before the switch may lead here.
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
        let what = "http-01 is asked without TLS, and no address is without";
        return Err(wrong(
            "challenge",
            what,
            "write switch.listen = \"0.0.0.0:80\", or challenge = \"tls-alpn-01\"",
        ));
    }
    if !listen.iter().any(|address| address.port() == port) {
        let what = format!("{name} is asked at port {port}, which is not in {key}");
        warnings.push(wrong(
            "challenge",
            what,
            format!("lead port {port} of each host to an address of {key}"),
        ));
    }
    Ok(())
}

/// Connections that nodes are handed are not read here.
pub(crate) fn handed_over(store: &AcmeStore) -> Result<(), Fault> {
    if store.challenge != AcmeChallenge::Http01 {
        return Ok(());
    }
    let what = "http-01 contradicts switch.handoff: nodes that are handed a connection would answer";
    let hint = "write challenge = \"tls-alpn-01\", or mechanism = \"relay\" in [switch.handoff]";
    Err(wrong("challenge", what, hint))
}

/// The same, if whoever does the work could keep something in the store.
pub(crate) fn writable(
    role: AcmeRole,
    run_as: Option<RunAs>,
    absent: &mut Vec<Fault>,
) -> Result<AcmeRole, Fault> {
    let store = role.store.folder.parent().unwrap_or(Path::new("/"));
    // What is not there is made.
    let Some(there) = store.ancestors().find(|folder| folder.exists()) else { return Ok(role) };
    let shown = store.display();
    let told = |why: String| {
        let hint = "a folder that the switch's user may write: mkdir -p -m 0700, and chown to switch.process.user if there is one";
        wrong("store", format!("{shown} cannot be written: {why}"), hint).of_machine()
    };
    if !there.is_dir() {
        return Err(told(format!("{} is no folder", there.display())));
    }
    let may = may(run_as, there, Access::WRITE_OK | Access::EXEC_OK);
    // Who checks a config need not be who runs it.
    absent.extend((!may).then(|| told(format!("{} is not for this user to write", there.display()))));
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
