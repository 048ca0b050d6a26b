//! URL paths for the resources of a generated site. The prefix of a path determines the class of the request, so that a
//! switch's class rules and a node's handlers need one line for each class.

use std::collections::HashMap;

use larder_trace::synth::ServiceClass;
use larder_trace::synth::sessions::SiteItem;

use super::ScriptError;
use crate::target::request_target;

/// Sizes of query replies. On the HACC paper's Domino site their mean is 6 KB and their maximum 8 KB.
const QUERY_REPLY_BYTES: [u64; 5] = [4 << 10, 5 << 10, 6 << 10, 7 << 10, 8 << 10];

/// Path prefixes by kind of resource. Each begins with `/` and does not end with one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPrefixes {
    /// Static documents.
    pub fixed: String,
    /// Programs that use little CPU time. Class N.
    pub light: String,
    /// Database queries. Class DB.
    pub db: String,
    /// Programs that use much CPU time. Class CB.
    pub cpu: String,
    /// Programs that use CPU time and a disk. Class DCB.
    pub disk: String,
}

impl Default for PathPrefixes {
    /// `/static`, `/cgi/light`, `/cgi/db`, `/cgi/cpu` and `/cgi/disk`.
    fn default() -> Self {
        let [fixed, light, db, cpu, disk] = Self::DEFAULTS.map(|(_, path)| path.to_owned());
        Self { fixed, light, db, cpu, disk }
    }
}

impl PathPrefixes {
    /// Kinds and their default prefixes.
    pub const DEFAULTS: [(&str, &str); 5] = [
        ("static", "/static"),
        ("light", "/cgi/light"),
        ("db", "/cgi/db"),
        ("cpu", "/cgi/cpu"),
        ("disk", "/cgi/disk"),
    ];

    /// Prefixes for the HACC paper's workloads: `/asp` for its scripts and `/domino` for its database. With them,
    /// `{host}{path:3}?{query:#1}` is the paper's key: the database's view and the action.
    pub fn hacc() -> Self {
        Self { cpu: "/asp".to_owned(), disk: "/domino".to_owned(), ..Self::default() }
    }

    /// Sets the prefix of a kind, which is one of the names in [`PathPrefixes::DEFAULTS`]. Returns whether the kind exists.
    pub fn set(&mut self, kind: &str, prefix: &str) -> bool {
        let target = match kind {
            "static" => &mut self.fixed,
            "light" => &mut self.light,
            "db" => &mut self.db,
            "cpu" => &mut self.cpu,
            "disk" => &mut self.disk,
            _ => return false,
        };
        prefix.clone_into(target);
        true
    }

    pub(super) fn check(&self) -> Result<(), ScriptError> {
        let prefixes = [&self.fixed, &self.light, &self.db, &self.cpu, &self.disk];
        for ((kind, usual), prefix) in Self::DEFAULTS.into_iter().zip(prefixes) {
            let fit = prefix.starts_with('/')
                && !prefix.ends_with('/')
                && !prefix.contains(['?', '#'])
                && request_target(prefix) == prefix.as_str();
            if !fit {
                let prefix = prefix.chars().take(80).collect();
                return Err(ScriptError::Prefix { kind, prefix, usual });
            }
        }
        Ok(())
    }
}

/// The path of a resource.
#[derive(Debug)]
pub(super) struct ResourcePath {
    pub(super) path: String,
    pub(super) dynamic: bool,
    /// Size of the reply if it differs from the item's size.
    pub(super) reply_bytes: Option<u64>,
}

/// Computes the path of each item. Items with equal keys, such as the documents of a database's view, get one more segment,
/// `doc` and a number.
pub(super) fn resource_paths(items: &[SiteItem], prefixes: &PathPrefixes) -> Vec<ResourcePath> {
    let mut counts: HashMap<&str, u32> = HashMap::new();
    for item in items {
        *counts.entry(&item.key).or_default() += 1;
    }
    let mut page_stats: HashMap<&str, u32> = HashMap::new();
    let resource_path = |item: &SiteItem, nth: Option<u32>| {
        let (prefix, rest) = prefix_of(item, prefixes);
        let dynamic = prefix != prefixes.fixed;
        let path = match (rest.split_once('?'), nth) {
            (Some((path, query)), Some(nth)) => format!("{prefix}{path}/doc{nth}?{query}"),
            (None, Some(nth)) => format!("{prefix}{rest}/doc{nth}"),
            (_, None) => format!("{prefix}{rest}"),
        };
        ResourcePath { path, dynamic, reply_bytes: None }
    };
    let mut paths = Vec::with_capacity(items.len());
    for (number, item) in items.iter().enumerate() {
        let nth = (counts.get(&*item.key) > Some(&1)).then(|| {
            let nth = page_stats.entry(&item.key).or_default();
            *nth += 1;
            *nth - 1
        });
        let mut path = resource_path(item, nth);
        if item.key.contains(".nsf/") {
            path.reply_bytes = Some(QUERY_REPLY_BYTES[number % QUERY_REPLY_BYTES.len()]);
        }
        paths.push(path);
    }
    paths
}

/// The prefix of an item's kind and the rest of its key. The first segment of the key names the kind; otherwise the class
/// decides.
fn prefix_of<'a>(item: &'a SiteItem, prefixes: &'a PathPrefixes) -> (&'a str, &'a str) {
    let named = item.key.strip_prefix('/').and_then(|key| key.split_once('/'));
    let known = named.and_then(|(kind, _)| match kind {
        "static" => Some(&prefixes.fixed),
        "light" => Some(&prefixes.light),
        "db" => Some(&prefixes.db),
        "cb" | "cpu" => Some(&prefixes.cpu),
        "dcb" | "disk" => Some(&prefixes.disk),
        _ => None,
    });
    match (known, named) {
        // The slash after the kind is kept.
        (Some(prefix), Some((kind, _))) => (prefix, &item.key[kind.len() + 1..]),
        _ => {
            let prefix = match item.class {
                ServiceClass::N => &prefixes.fixed,
                ServiceClass::Db => &prefixes.db,
                ServiceClass::Cb => &prefixes.cpu,
                ServiceClass::Dcb => &prefixes.disk,
            };
            (prefix, &item.key)
        }
    }
}
