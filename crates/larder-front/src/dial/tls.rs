//! TLS to nodes ([`OutboundTls`]), for the engine and for this crate's own connections.
//!
//! Files are read when a node is added, and so again by the process of a reload.

use larder_edge::{CertificateFault, LoadedTls, OutboundTls};
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::utils::tls::{CertKey, WrappedX509, parse_x509};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use std::sync::Arc;

/// A certificate of nobody, whose key was thrown away. The engine wants an authority also where none is asked.
const NOBODY: &[u8] = include_bytes!("nobody.pem");

/// TLS to one node, its files read.
pub(crate) struct Loaded {
    config: OutboundTls,
    http2: bool,
    /// As the engine has it.
    name: String,
    verify: bool,
    authorities: Arc<[WrappedX509]>,
    own: Option<Arc<CertKey>>,
    /// Of all that a connection depends on: others may not use it.
    pub(super) key: u64,
    /// As this crate's own connections have it: as traffic does, and for HTTP/1.1.
    pub(super) server: ServerName<'static>,
    pub(super) as_traffic: Arc<ClientConfig>,
    pub(super) http1: Arc<ClientConfig>,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded")
            .field("name", &self.name)
            .field("verify", &self.verify)
            .finish_non_exhaustive()
    }
}

impl Loaded {
    /// For a node whose address names `host`.
    pub(crate) fn new(config: &OutboundTls, host: &str, http2: bool) -> Result<Self, CertificateFault> {
        let name = config.name.as_deref().unwrap_or(host).trim_matches(['[', ']']).to_owned();
        let loaded = config.load()?;
        let server = loaded.server_name(host)?;
        let with = |protocol: &[u8]| {
            let mut client = loaded.client.clone();
            client.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(client)
        };
        let (as_traffic, http1) = (with(if http2 { b"h2" } else { b"http/1.1" }), with(b"http/1.1"));
        let key = key(config, &name, &loaded);
        let LoadedTls { authorities, own, .. } = loaded;
        let wrap = |der: &CertificateDer<'_>| WrappedX509::new(der.to_vec(), parse_x509);
        let own = own.map(|(chain, key)| {
            let chain = chain.iter().map(|one| one.to_vec()).collect();
            Arc::new(CertKey::new(chain, key.secret_der().to_vec()))
        });
        let authorities = if config.verify { authorities } else { pem_chain(NOBODY)? };
        Ok(Self {
            config: config.clone(),
            http2,
            name,
            verify: config.verify,
            authorities: authorities.iter().map(wrap).collect(),
            own,
            key,
            server,
            as_traffic,
            http1,
        })
    }

    /// For the same node when its address names another host. What cannot be read now stays as it was: nobody is believed by it
    /// who was not before.
    pub(super) fn moved(self: &Arc<Self>, host: &str) -> Arc<Self> {
        if self.config.name.is_some() {
            return self.clone();
        }
        match Self::new(&self.config, host, self.http2) {
            Ok(loaded) => Arc::new(loaded),
            Err(error) => {
                tracing::warn!(host, %error, "TLS to a node that has moved is as before");
                self.clone()
            }
        }
    }

    /// Has the engine connect by it.
    pub(super) fn lay(&self, peer: &mut HttpPeer) {
        peer.sni.clone_from(&self.name);
        peer.options.verify_cert = self.verify;
        peer.options.verify_hostname = self.verify;
        peer.options.ca = Some(self.authorities.clone());
        peer.client_cert_key.clone_from(&self.own);
        peer.group_key = self.key;
    }
}

fn key(config: &OutboundTls, name: &str, loaded: &LoadedTls) -> u64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    hash.update(&[u8::from(config.verify), 1]);
    hash.update(name.as_bytes());
    let chain = loaded.own.as_ref().map_or(&[][..], |(chain, _)| chain);
    for certificate in loaded.authorities.iter().chain(chain) {
        hash.update(&certificate.len().to_le_bytes());
        hash.update(certificate);
    }
    hash.digest()
}

fn pem_chain(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateFault> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    chain.map_err(|error| CertificateFault::new("", error.to_string()))
}
