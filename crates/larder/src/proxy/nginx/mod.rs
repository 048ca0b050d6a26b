//! nginx's config: its file, or the output of `nginx -T`, which has the included files too.

mod lines;
mod policy;
mod syntax;
mod upstreams;

#[cfg(test)]
mod tests;

pub(super) use lines::lines;
pub(super) use policy::OWN_POLICIES;

use super::cluster::{Cluster, Hosts};
use super::field::KeyError;
use syntax::Directive;
use upstreams::{Servers, Upstreams, is_cached};

/// Reads an upstream from the text of a config.
pub(super) fn parse(text: &str, name: Option<&str>) -> Result<Cluster, KeyError> {
    let config = syntax::parse(text)?;
    let upstreams = Upstreams::find(&config);
    let upstream = upstreams.choose(name)?;
    let unnamed = || upstream.error("the upstream has no name", "write it before the block");
    let name = upstream.first().ok_or_else(unnamed)?.to_owned();
    let servers = Servers::read(upstream)?;
    let in_use = policy::equivalent(upstream)?;
    let mut warnings = warnings(upstream, &servers);
    if is_cached(&config, &name) {
        warnings.push(
            "proxy_cache: nginx replies to some of these requests itself, and its log has them too. Give a log without \
             the requests whose $upstream_cache_status is HIT."
                .to_owned(),
        );
    }
    warnings.extend(upstreams.warning());
    Ok(Cluster {
        name,
        replaced: policy::directives(upstream).map(Directive::written).collect(),
        hosts: servers.unlisted.map_or(Hosts::Listed(servers.count), Hosts::Unlisted),
        in_use,
        warnings,
        lines_warnings: Vec::new(),
    })
}

fn warnings(upstream: &Directive, servers: &Servers) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some((least, most)) = servers.different_weights() {
        warnings.push(format!(
            "weight: larder's module uses the weights ({least} to {most}), but the plan simulates equal servers."
        ));
    }
    if servers.backup > 0 && servers.unlisted.is_none() {
        warnings.push(format!("backup: the plan leaves out the backup servers ({}).", servers.backup));
    }
    if servers.down > 0 {
        warnings.push(format!("down: the plan leaves out the servers that are down ({}).", servers.down));
    }
    if servers.are_names && servers.unlisted.is_none() {
        warnings.push(
            "server: the plan counts each name as one server; give --nodes if a name has several addresses."
                .to_owned(),
        );
    }
    if servers.slow_start {
        warnings.push(
            "slow_start: larder's module does not use it; the key join of the policy replaces it.".to_owned(),
        );
    }
    if servers.count == 1 {
        warnings.push(
            "The upstream has one server, so no policy has a choice. Give --nodes to plan for more."
                .to_owned(),
        );
    }
    for commercial in ["sticky", "queue"] {
        if upstream.block.iter().any(|directive| directive.name == commercial) {
            warnings
                .push(format!("{commercial}: larder's module does not support this directive; remove it."));
        }
    }
    warnings
}
