//! Configs of other proxies: the hosts and the policy of a cluster, and the lines that change its policy.
//!
//! To add a proxy, add its row to [`Proxy`] and its folder beside `envoy`.

mod cluster;
mod envoy;
mod field;
mod nginx;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;
use larder_core::PolicyKind;
use larder_core::dispatch::Settings;
use serde::Serialize;

use crate::outcome::usage;
pub(crate) use cluster::{Cluster, Hosts};
use field::KeyError;

/// The largest config that is read, in bytes.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// A proxy whose config can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Proxy {
    /// Envoy, with a static bootstrap.
    Envoy,
    /// nginx, with the upstreams of its `http` block.
    Nginx,
}

impl Proxy {
    /// Returns the name for texts.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Envoy => "Envoy",
            Self::Nginx => "nginx",
        }
    }

    /// Returns the word of the proxy's config for a cluster.
    pub(crate) const fn cluster(self) -> &'static str {
        match self {
            Self::Envoy => "cluster",
            Self::Nginx => "upstream",
        }
    }

    /// Returns the policies that the proxy itself has, with the words of its config.
    pub(crate) const fn own_policies(self) -> &'static [(PolicyKind, &'static str)] {
        match self {
            Self::Envoy => &envoy::OWN_POLICIES,
            Self::Nginx => &nginx::OWN_POLICIES,
        }
    }

    /// Returns the lines for the cluster that make it use `settings.policy` by larder's module.
    pub(crate) fn lines(self, settings: &Settings) -> String {
        match self {
            Self::Envoy => envoy::lines(settings),
            Self::Nginx => nginx::lines(settings),
        }
    }

    fn parse(self, text: &str, cluster: Option<&str>) -> Result<Cluster, KeyError> {
        match self {
            Self::Envoy => envoy::parse(text, cluster),
            Self::Nginx => nginx::parse(text, cluster),
        }
    }
}

/// Reads a cluster from a config. `cluster` is its name; it may be absent if the config has one cluster only.
pub(crate) fn read(proxy: Proxy, path: &Path, cluster: Option<&str>) -> anyhow::Result<Cluster> {
    let name = path.display();
    let reading = || format!("cannot read {name}");
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(reading)?;
    file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(reading)?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(usage(format!(
            "{name}: the file has more than {} MiB (write the cluster into a smaller file)",
            CONFIG_BYTES_MAX >> 20
        )));
    }
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| usage(format!("{name}: the file is not UTF-8 (give {}'s config)", proxy.name())))?;
    proxy.parse(text, cluster).map_err(|error| usage(format!("{name}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(content: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("envoy.yaml");
        std::fs::write(&path, content).unwrap();
        read(Proxy::Envoy, &path, None).unwrap_err().to_string()
    }

    #[test]
    fn files_that_are_no_config_are_refused() {
        assert!(refusal(b"\xff\xfe").contains("envoy.yaml: the file is not UTF-8"));
        let large = vec![b' '; CONFIG_BYTES_MAX as usize + 1];
        assert!(refusal(&large).contains("more than 4 MiB"));
        assert!(refusal(b"").contains("envoy.yaml: static_resources.clusters: "));
        let error = read(Proxy::Envoy, Path::new("/nonexistent.yaml"), None).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /nonexistent.yaml");
    }
}
