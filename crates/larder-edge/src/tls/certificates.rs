//! Certificates and keys in files, and selection of a certificate for a client.

use super::acme::AcmeStore;
use super::staple::Staple;
use crate::secret_file::{CertificateFault, refuse_exposed};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Maximum number of certificates; a folder with more is rejected.
const CERTIFICATES_MAX: usize = 10_000;
/// Maximum size of a file, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// A warning is logged if a certificate expires within this time, in seconds.
const EXPIRY_WARNING_S: i64 = 7 * 24 * 3600;
const NO_CERTIFICATE: &str = "holds no certificate: PEM is needed, with a line -----BEGIN CERTIFICATE-----";
const NO_KEY: &str = "has no key: a line -----BEGIN PRIVATE KEY----- is needed";

/// A loaded certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CertificateStatus {
    /// Its file.
    pub file: String,
    /// Source of the file: `file` (config) or `acme`.
    pub source: &'static str,
    /// Hosts of the certificate.
    pub names: Vec<String>,
    /// End of validity, in seconds since 1970.
    pub not_after: i64,
    /// Whether it is used for clients that send no host.
    pub default: bool,
}

/// A certificate with its chain and key.
#[derive(Debug)]
pub(super) struct Entry {
    file: PathBuf,
    /// It comes from the ACME store.
    pub(super) acme: bool,
    /// In lower case; wildcards as `*.example.org`.
    pub(super) names: Vec<String>,
    pub(super) not_before: i64,
    pub(super) not_after: i64,
    pub(super) key: Arc<CertifiedKey>,
    staple: Staple,
    /// Hash of the file contents.
    digest: u64,
}

/// All loaded certificates. Two sets are equal if their files have the same contents.
#[derive(Debug)]
pub(super) struct Certificates {
    /// The default certificate is first.
    entries: Vec<Entry>,
    /// Hosts whose certificates have not been issued yet: no other certificate is used for them.
    pending_hosts: HashSet<String>,
}

impl PartialEq for Certificates {
    fn eq(&self, other: &Self) -> bool {
        let told =
            |all: &Self| -> Vec<_> { all.entries.iter().map(|e| (e.file.clone(), e.digest)).collect() };
        let staples = self.entries.iter().map(|entry| &entry.staple);
        told(self) == told(other) && staples.eq(other.entries.iter().map(|entry| &entry.staple))
    }
}

impl Certificates {
    /// Reads files, folders, and an ACME store. Invalid certificates in the store are ignored: the process that orders
    /// them handles this.
    pub(super) fn read(
        paths: &[PathBuf],
        store: Option<&AcmeStore>,
        provider: &CryptoProvider,
    ) -> Result<Self, CertificateFault> {
        let mut entries = Vec::new();
        for path in paths {
            if path.is_dir() {
                let before = entries.len();
                for file in folder(path)? {
                    entries.extend(entry(&file, provider, true)?);
                }
                if entries.len() == before {
                    let what = "holds no certificate: put FILE.pem there (chain and key), FILE.crt beside FILE.key, or \
                                folders with fullchain.pem and privkey.pem";
                    return Err(CertificateFault::new(path, what));
                }
            } else {
                entries.extend(entry(path, provider, false)?);
            }
        }
        let mut pending_hosts = HashSet::new();
        for (store, host) in
            store.into_iter().flat_map(|store| store.hosts.iter().map(move |host| (store, host)))
        {
            match store.entry(host, provider) {
                Ok(Some(entry)) => entries.push(entry),
                Ok(None) | Err(_) => drop(pending_hosts.insert(host.clone())),
            }
        }
        if entries.len() > CERTIFICATES_MAX {
            let what = format!("{} certificates; at most {CERTIFICATES_MAX} are allowed", entries.len());
            return Err(CertificateFault::new("", what));
        }
        Ok(Self { entries, pending_hosts })
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns a resolver that selects a certificate for a client. If several match a name, the one that expires last
    /// is used.
    pub(super) fn resolver(&self) -> Arc<dyn ResolvesServerCert> {
        let mut best: BTreeMap<&str, &Entry> = BTreeMap::new();
        for entry in &self.entries {
            for name in &entry.names {
                let first = best.entry(name).or_insert(entry);
                if entry.not_after > first.not_after {
                    *first = entry;
                }
            }
        }
        let (mut by_name, mut by_parent) = (HashMap::new(), HashMap::new());
        for (name, entry) in best {
            match name.strip_prefix("*.") {
                Some(parent) => by_parent.insert(parent.to_owned(), entry.key.clone()),
                None => by_name.insert(name.to_owned(), entry.key.clone()),
            };
        }
        let default = self.entries.first().map(|entry| entry.key.clone());
        Arc::new(ByName { by_name, by_parent, pending_hosts: self.pending_hosts.clone(), default })
    }

    pub(super) fn status(&self) -> Vec<CertificateStatus> {
        let entries = self.entries.iter().enumerate();
        let status = entries.map(|(i, entry)| CertificateStatus {
            file: entry.file.display().to_string(),
            source: if entry.acme { "acme" } else { "file" },
            names: entry.names.clone(),
            not_after: entry.not_after,
            default: i == 0,
        });
        status.collect()
    }

    /// Logs warnings for certificates that have expired or will expire soon.
    pub(super) fn log_warnings(&self) {
        let now = now_s() as i64;
        for entry in &self.entries {
            if let Staple::Unusable { file, why } = &entry.staple {
                tracing::warn!(file = %file.display(), error = why, "certificate: OCSP response not stapled");
            }
            let (file, left_s) = (entry.file.display(), entry.not_after - now);
            if left_s < 0 {
                tracing::error!(%file, "certificate: expired, clients reject it");
            } else if left_s < EXPIRY_WARNING_S {
                tracing::warn!(%file, days = left_s / 86_400, "certificate: expires soon");
            }
        }
    }
}

/// Selects by the host that a client sends (RFC 6066 section 3); a wildcard matches one label (RFC 6125 section 6.4.3).
#[derive(Debug)]
struct ByName {
    by_name: HashMap<String, Arc<CertifiedKey>>,
    by_parent: HashMap<String, Arc<CertifiedKey>>,
    pending_hosts: HashSet<String>,
    default: Option<Arc<CertifiedKey>>,
}

impl ByName {
    fn find(&self, host: &str) -> Option<&Arc<CertifiedKey>> {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let own = self.by_name.get(&host).or_else(|| self.by_parent.get(host.split_once('.')?.1));
        own.or(self.default.as_ref().filter(|_| !self.pending_hosts.contains(&host)))
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        match hello.server_name() {
            Some(host) => self.find(host).cloned(),
            None => self.default.clone(),
        }
    }
}

/// Lists the files of a folder that may contain certificates, and those of certbot's subfolders, sorted by name.
fn folder(path: &Path) -> Result<Vec<PathBuf>, CertificateFault> {
    let failed = |error: std::io::Error| CertificateFault::new(path, format!("cannot be read: {error}"));
    let mut files = Vec::new();
    for item in std::fs::read_dir(path).map_err(failed)? {
        let item = item.map_err(failed)?.path();
        let extension = item.extension().and_then(|extension| extension.to_str());
        let below = item.join("fullchain.pem");
        if item.is_file() && matches!(extension, Some("pem" | "crt" | "cer")) {
            files.push(item);
        } else if below.is_file() {
            files.push(below);
        }
        if files.len() > CERTIFICATES_MAX {
            return Err(CertificateFault::new(path, format!("holds more than {CERTIFICATES_MAX} files")));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// The contents and permissions of a PEM file.
#[derive(Debug)]
struct PemFile<'a> {
    path: &'a Path,
    text: Vec<u8>,
    metadata: Metadata,
}

impl<'a> PemFile<'a> {
    fn read(path: &'a Path) -> Result<Self, CertificateFault> {
        let failed = |error: io::Error| CertificateFault::new(path, format!("cannot be read: {error}"));
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let mut text = Vec::new();
        file.take(FILE_MAX + 1).read_to_end(&mut text).map_err(failed)?;
        if text.len() as u64 > FILE_MAX {
            let what = format!("is larger than {FILE_MAX} bytes, too large for a certificate file");
            return Err(CertificateFault::new(path, what));
        }
        Ok(Self { path, text, metadata })
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, CertificateFault> {
        self.items()
    }

    /// Parses the private keys in the file. Rejects a file with a key that other users may read.
    fn keys(&self) -> Result<Vec<PrivateKeyDer<'static>>, CertificateFault> {
        let keys: Vec<PrivateKeyDer<'static>> = self.items()?;
        if !keys.is_empty() {
            refuse_exposed(self.path, &self.metadata)?;
        }
        Ok(keys)
    }

    fn items<T: PemObject>(&self) -> Result<Vec<T>, CertificateFault> {
        let all: Result<Vec<T>, pem::Error> = T::pem_slice_iter(&self.text).collect();
        all.map_err(|error| CertificateFault::new(self.path, format!("is not PEM: {error}")))
    }
}

/// Reads the certificates in a file. At least one.
///
/// # Errors
/// The file cannot be read, is too large, or contains no certificate.
pub fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateFault> {
    let chain = PemFile::read(path)?.certificates()?;
    if chain.is_empty() { Err(CertificateFault::new(path, NO_CERTIFICATE)) } else { Ok(chain) }
}

/// Reads the first private key in a file.
///
/// # Errors
/// The file cannot be read, is too large, contains no key, or other users may read it.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, CertificateFault> {
    let keys = PemFile::read(path)?.keys()?;
    keys.into_iter().next().ok_or_else(|| CertificateFault::new(path, NO_KEY))
}

/// Returns possible paths of a certificate's key, for certificate files without the key.
fn key_paths(path: &Path) -> Vec<PathBuf> {
    let mut paths = vec![path.with_extension("key")];
    let mut beside = path.as_os_str().to_owned();
    beside.push(".key");
    paths.push(beside.into());
    if path.file_name().is_some_and(|name| name == "fullchain.pem") {
        paths.insert(0, path.with_file_name("privkey.pem"));
    }
    paths
}

/// Reads the certificate in a file, with its key. Returns `None` if the file is part of a folder and contains none.
pub(super) fn entry(
    path: &Path,
    provider: &CryptoProvider,
    of_folder: bool,
) -> Result<Option<Entry>, CertificateFault> {
    let mut file = PemFile::read(path)?;
    let chain = file.certificates()?;
    if chain.is_empty() {
        return if of_folder { Ok(None) } else { Err(CertificateFault::new(path, NO_CERTIFICATE)) };
    }
    let mut keys = file.keys()?;
    if keys.is_empty() {
        let beside = key_paths(path);
        let Some(beside) = beside.iter().find(|file| file.is_file()) else {
            let names: Vec<String> = beside.iter().map(|file| file.display().to_string()).collect();
            let what = format!("has no key: put it into the same file, or into {}", names.join(" or "));
            return Err(CertificateFault::new(path, what));
        };
        let more = PemFile::read(beside)?;
        keys = more.keys()?;
        file.text.extend_from_slice(&more.text);
    }
    let Some(key) = keys.into_iter().next() else { return Err(CertificateFault::new(path, NO_KEY)) };
    let wrong = |what: String| CertificateFault::new(path, what);
    let signing =
        provider.key_provider.load_private_key(key).map_err(|error| wrong(format!("its key: {error}")))?;
    let CertificateSummary { names, not_before, not_after } = summarize(&chain[0]).map_err(wrong)?;
    let staple = Staple::read(path, &chain[0], now_s());
    let mut key = CertifiedKey::new(chain, signing);
    key.ocsp = staple.response().map(<[u8]>::to_vec);
    key.keys_match().map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => CertificateFault::other_key(path),
        // For example a certificate of version 1, which has no extensions.
        error => wrong(format!("its certificate cannot be used ({error}); TLS needs X.509 version 3")),
    })?;
    let digest = xxhash_rust::xxh3::xxh3_64(&file.text);
    let (file, key) = (path.to_owned(), Arc::new(key));
    Ok(Some(Entry { file, acme: false, names, not_before, not_after, key, staple, digest }))
}

/// Seconds since 1970.
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The hosts of a certificate, in lower case, and its validity, in seconds since 1970.
struct CertificateSummary {
    names: Vec<String>,
    not_before: i64,
    not_after: i64,
}

fn summarize(certificate: &CertificateDer<'_>) -> Result<CertificateSummary, String> {
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|error| format!("is not a certificate: {error}"))?;
    let alternatives =
        parsed.subject_alternative_name().map_err(|error| format!("its alternative names: {error}"))?;
    let names = alternatives.iter().flat_map(|names| &names.value.general_names);
    let names = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    let validity = parsed.validity();
    let (not_before, not_after) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    Ok(CertificateSummary { names: names.collect(), not_before, not_after })
}
