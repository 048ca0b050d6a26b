//! Envoy's config: a static bootstrap, as YAML or JSON.
//!
//! A key may be written as in Envoy's documentation or in camel case, and an enum's value as its name or number.

mod clusters;
mod document;
mod lines;
mod policy;
mod routes;
mod warnings;

#[cfg(test)]
mod tests;

pub(super) use lines::lines;
pub(super) use policy::OWN_POLICIES;

use super::cluster::{Cluster, Hosts};
use super::field::{Field, KeyError};

/// Reads a cluster from the text of a config.
pub(super) fn parse(text: &str, name: Option<&str>) -> Result<Cluster, KeyError> {
    let document = document::parse(text)?;
    let root = Field::root(&document);
    let clusters = clusters::Clusters::read(&root)?;
    let found = clusters.choose(name)?;
    let hosts = clusters::HostCount::read(&found.field)?;
    let routes = routes::Routes::read(&root, &found.name)?;
    let used = policy::Used::read(&found.field)?;
    let in_use = used.equivalent(&hosts, &routes)?;
    let mut warnings = warnings::collect(&found.field, &hosts, &used, &routes)?;
    warnings.extend(clusters.warning());
    Ok(Cluster {
        name: found.name.clone(),
        replaced: warnings::replaced_keys(&found.field)?,
        hosts: match hosts.unlisted {
            Some(reason) => Hosts::Unlisted(reason),
            None => Hosts::Listed(hosts.count),
        },
        in_use,
        warnings,
        lines_warnings: warnings::collect_for_lines(&found.field)?,
    })
}
