//! TLS to nodes ([`OutboundTls`]).
//!
//! Files are read when a node is added, and so again by the process of a reload.

use larder_edge::{CertificateFault, LoadedTls, OutboundTls};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::sync::Arc;

/// TLS to one node, its files read.
pub(crate) struct Loaded {
    config: OutboundTls,
    http2: bool,
    /// Of all that a connection depends on: others may not use it.
    pub(super) key: u64,
    pub(super) server: ServerName<'static>,
    /// For the protocol of requests, and for HTTP/1.1.
    pub(super) as_traffic: Arc<ClientConfig>,
    pub(super) http1: Arc<ClientConfig>,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded")
            .field("server", &self.server)
            .field("verify", &self.config.verify)
            .finish_non_exhaustive()
    }
}

impl Loaded {
    /// For a node whose address names `host`.
    pub(crate) fn new(config: &OutboundTls, host: &str, http2: bool) -> Result<Self, CertificateFault> {
        let name = config.name.as_deref().unwrap_or(host).trim_matches(['[', ']']);
        let loaded = config.load()?;
        let server = loaded.server_name(host)?;
        let with = |protocol: &[u8]| {
            let mut client = loaded.client.clone();
            client.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(client)
        };
        let (as_traffic, http1) = (with(if http2 { b"h2" } else { b"http/1.1" }), with(b"http/1.1"));
        let key = key(config, name, &loaded);
        Ok(Self { config: config.clone(), http2, key, server, as_traffic, http1 })
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
