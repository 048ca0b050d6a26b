//! From what a generated site offers to URL paths: a class of requests is told by the path's beginning, so that a
//! switch's class rules and a node's handlers need one line each.

use std::collections::HashMap;

use larder_trace::synth::ServiceClass;
use larder_trace::synth::sessions::SiteItem;

use super::ScriptError;
use crate::target::wire;

/// Mean reply of a query of the HACC paper's Domino site is 6 KB and none exceeds 8 KB: replies are 4 to 8 KiB.
const QUERY_REPLY_BYTES: [u64; 5] = [4 << 10, 5 << 10, 6 << 10, 7 << 10, 8 << 10];

/// With what the paths of each kind begin: each with a `/` and without one at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Static documents.
    pub fixed: String,
    /// Programs that take little processor time. Class N.
    pub light: String,
    /// Database queries. Class DB.
    pub db: String,
    /// Programs that take much processor time. Class CB.
    pub cpu: String,
    /// Programs that take processor time and a disk. Class DCB.
    pub disk: String,
}

impl Default for Paths {
    /// `/static`, `/cgi/light`, `/cgi/db`, `/cgi/cpu` and `/cgi/disk`.
    fn default() -> Self {
        let [fixed, light, db, cpu, disk] = Self::USUAL.map(|(_, path)| path.to_owned());
        Self { fixed, light, db, cpu, disk }
    }
}

impl Paths {
    /// Kinds and their default prefixes.
    pub const USUAL: [(&str, &str); 5] = [
        ("static", "/static"),
        ("light", "/cgi/light"),
        ("db", "/cgi/db"),
        ("cpu", "/cgi/cpu"),
        ("disk", "/cgi/disk"),
    ];

    /// For the HACC paper's workloads: `/asp` for its scripts and `/domino` for its database, so that
    /// `{host}{path:3}?{query:#1}` is the paper's key: the database's view and the action.
    pub fn hacc() -> Self {
        Self { cpu: "/asp".to_owned(), disk: "/domino".to_owned(), ..Self::default() }
    }

    /// Sets the prefix of a kind, one of the names in [`Paths::USUAL`]. Whether there is such a kind.
    pub fn set(&mut self, kind: &str, prefix: &str) -> bool {
        let place = match kind {
            "static" => &mut self.fixed,
            "light" => &mut self.light,
            "db" => &mut self.db,
            "cpu" => &mut self.cpu,
            "disk" => &mut self.disk,
            _ => return false,
        };
        prefix.clone_into(place);
        true
    }

    pub(super) fn check(&self) -> Result<(), ScriptError> {
        let prefixes = [&self.fixed, &self.light, &self.db, &self.cpu, &self.disk];
        for ((kind, usual), prefix) in Self::USUAL.into_iter().zip(prefixes) {
            let fit = prefix.starts_with('/')
                && !prefix.ends_with('/')
                && !prefix.contains(['?', '#'])
                && wire(prefix) == prefix.as_str();
            if !fit {
                let prefix = prefix.chars().take(80).collect();
                return Err(ScriptError::Prefix { kind, prefix, usual });
            }
        }
        Ok(())
    }
}

/// Where an item is.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) path: String,
    pub(super) made: bool,
    /// Bytes of its reply, if they are not those of the item.
    pub(super) reply_bytes: Option<u64>,
}

/// The path of each item. Items that share a key, as the documents of a database's view do, are told apart by one more
/// segment, `doc` and a number.
pub(super) fn paths_of(items: &[SiteItem], paths: &Paths) -> Vec<Placed> {
    let mut counts: HashMap<&str, u32> = HashMap::new();
    for item in items {
        *counts.entry(&item.key).or_default() += 1;
    }
    let mut seen: HashMap<&str, u32> = HashMap::new();
    let place = |item: &SiteItem, nth: Option<u32>| {
        let (prefix, rest) = prefix_of(item, paths);
        let made = prefix != paths.fixed;
        let path = match (rest.split_once('?'), nth) {
            (Some((path, query)), Some(nth)) => format!("{prefix}{path}/doc{nth}?{query}"),
            (None, Some(nth)) => format!("{prefix}{rest}/doc{nth}"),
            (_, None) => format!("{prefix}{rest}"),
        };
        Placed { path, made, reply_bytes: None }
    };
    let mut placed = Vec::with_capacity(items.len());
    for (number, item) in items.iter().enumerate() {
        let nth = (counts.get(&*item.key) > Some(&1)).then(|| {
            let nth = seen.entry(&item.key).or_default();
            *nth += 1;
            *nth - 1
        });
        let mut place = place(item, nth);
        if item.key.contains(".nsf/") {
            place.reply_bytes = Some(QUERY_REPLY_BYTES[number % QUERY_REPLY_BYTES.len()]);
        }
        placed.push(place);
    }
    placed
}

/// The prefix of an item's kind, and the rest of its key. A key's first segment names the kind; where it does not, the
/// class decides.
fn prefix_of<'a>(item: &'a SiteItem, paths: &'a Paths) -> (&'a str, &'a str) {
    let named = item.key.strip_prefix('/').and_then(|key| key.split_once('/'));
    let known = named.and_then(|(kind, _)| match kind {
        "static" => Some(&paths.fixed),
        "light" => Some(&paths.light),
        "db" => Some(&paths.db),
        "cb" | "cpu" => Some(&paths.cpu),
        "dcb" | "disk" => Some(&paths.disk),
        _ => None,
    });
    match (known, named) {
        // The slash before what follows the kind stays.
        (Some(prefix), Some((kind, _))) => (prefix, &item.key[kind.len() + 1..]),
        _ => {
            let prefix = match item.class {
                ServiceClass::N => &paths.fixed,
                ServiceClass::Db => &paths.db,
                ServiceClass::Cb => &paths.cpu,
                ServiceClass::Dcb => &paths.disk,
            };
            (prefix, &item.key)
        }
    }
}
