//! TLS to nodes ([`OutboundTls`]).
//!
//! Files are read when a node is added, and again by the new process of a reload.

use larder_edge::{CertificateFault, LoadedTls, OutboundTls};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::sync::Arc;

/// TLS client for one node, with its files loaded.
pub(crate) struct NodeTlsClient {
    config: OutboundTls,
    http2: bool,
    /// Hash of all settings that a connection depends on. Connections with another key must not be used.
    pub(super) key: u64,
    pub(super) server: ServerName<'static>,
    /// Configurations for requests, and for HTTP/1.1.
    pub(super) for_requests: Arc<ClientConfig>,
    pub(super) http1: Arc<ClientConfig>,
}

impl std::fmt::Debug for NodeTlsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeTlsClient")
            .field("server", &self.server)
            .field("verify", &self.config.verify)
            .finish_non_exhaustive()
    }
}

impl NodeTlsClient {
    /// Creates the client of a node whose address names `host`.
    pub(crate) fn new(config: &OutboundTls, host: &str, http2: bool) -> Result<Self, CertificateFault> {
        let name = config.name.as_deref().unwrap_or(host).trim_matches(['[', ']']);
        let loaded = config.load()?;
        let server = loaded.server_name(host)?;
        let with = |protocol: &[u8]| {
            let mut client = loaded.client.clone();
            client.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(client)
        };
        let (for_requests, http1) = (with(if http2 { b"h2" } else { b"http/1.1" }), with(b"http/1.1"));
        let key = key(config, name, &loaded);
        Ok(Self { config: config.clone(), http2, key, server, for_requests, http1 })
    }

    /// Returns the client for the same node at another host. If the files cannot be read now, the old settings stay,
    /// which trust nobody new.
    pub(super) fn moved(self: &Arc<Self>, host: &str) -> Arc<Self> {
        if self.config.name.is_some() {
            return self.clone();
        }
        match Self::new(&self.config, host, self.http2) {
            Ok(loaded) => Arc::new(loaded),
            Err(error) => {
                tracing::warn!(host, %error, "node: TLS files of the new address not loaded, the old settings stay");
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
