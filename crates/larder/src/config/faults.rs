//! All faults of a config, not only the first.
//!
//! The reader and the validation stop at a fault. The key at fault is then removed, or gets a valid stand-in where the
//! config cannot do without it, and the rest is read again. A later fault at a key that was removed is a consequence of the
//! removal and is not told. Each round removes a key, so that the rounds end.

use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::RawConfig;
use super::error::{ConfigError, Source, key_at};
use super::valid::Config;

/// Faults told of one file.
const FAULTS_MAX: usize = 50;
/// Rounds for one file: a fault may need several until its table is gone.
const ROUNDS_MAX: usize = 4 * FAULTS_MAX;

/// Keys that a role cannot do without, with values that are valid anywhere.
const STAND_INS: [(&str, &str); 4] = [
    ("switch.listen", "v = \"127.0.0.1:1\""),
    ("switch.nodes", "v = [\"127.0.0.1:2\"]"),
    ("node.listen", "v = \"127.0.0.1:3\""),
    ("node.root", "v = \"/\""),
];

/// All faults of a text, in the order in which they stand in it.
pub(super) fn all(source: Source<'_>) -> Vec<ConfigError> {
    let (table, broken) = DeTable::parse_recoverable(source.text());
    if !broken.is_empty() {
        // The keys after broken syntax may belong to another table than they seem to.
        return broken.iter().take(FAULTS_MAX).map(|error| source.refused(error)).collect();
    }
    let mut search = Search { source, table, faults: Vec::new(), removed: Vec::new(), indices: Vec::new() };
    for _ in 0..ROUNDS_MAX {
        if search.faults.len() >= FAULTS_MAX || !search.round() {
            break;
        }
    }
    search.faults.sort_by_key(|fault| (fault.line, fault.column));
    search.faults
}

struct Search<'a> {
    source: Source<'a>,
    table: Spanned<DeTable<'a>>,
    faults: Vec<ConfigError>,
    /// Keys that were removed or replaced, as the file has them.
    removed: Vec<String>,
    /// Entries removed from lists: the list and the index at that time.
    indices: Vec<(String, usize)>,
}

impl Search<'_> {
    /// Finds the next fault and removes its key; `false` if there is none, or no key is left to remove.
    fn round(&mut self) -> bool {
        let (now, error) = match RawConfig::deserialize(Deserializer::from(self.table.clone())) {
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                (key_at(self.table.get_ref(), at).unwrap_or_default(), self.source.refused(&error))
            }
            Ok(raw) => match Config::new(&raw) {
                Ok(_) => return false,
                Err(fault) => {
                    let now = fault.key().to_owned();
                    let original = self.original(&now);
                    (now, self.source.locate(fault.at(original)))
                }
            },
        };
        let consequence = self.removed.iter().any(|removed| related(removed, &error.key));
        if !consequence {
            self.removed.push(error.key.clone());
            self.faults.push(error);
        }
        self.remove(&now)
    }

    /// Removes the key, or its nearest ancestor that is there; `false` if nothing is.
    fn remove(&mut self, key: &str) -> bool {
        if let Some((_, value)) = STAND_INS.iter().find(|(name, _)| *name == key)
            && put(self.table.get_mut(), key, value)
        {
            return true;
        }
        let mut at = key;
        loop {
            if let Some(index) = take(self.table.get_mut(), at) {
                self.removed.push(self.original(at));
                if let Some(index) = index {
                    self.indices.push((at[..at.rfind('[').unwrap_or(0)].to_owned(), index));
                }
                return true;
            }
            // A policy may want keys that are not there: without it the rest can be read.
            let parent = at.rsplit_once('.').map(|(parent, _)| parent);
            let Some(parent) = parent else { return false };
            if take(self.table.get_mut(), &format!("{parent}.policy")).is_some() {
                return true;
            }
            at = parent;
        }
    }

    /// The key in the file, where entries before it may have been removed.
    fn original(&self, key: &str) -> String {
        let mut key = key.to_owned();
        for (list, removed) in self.indices.iter().rev() {
            let Some(rest) = key.strip_prefix(list.as_str()).and_then(|rest| rest.strip_prefix('[')) else {
                continue;
            };
            let Some((index, rest)) = rest.split_once(']') else { continue };
            if let Some(index) = index.parse::<usize>().ok().filter(|index| index >= removed) {
                key = format!("{list}[{}]{rest}", index + 1);
            }
        }
        key
    }
}

/// Whether one key is the other or stands in it.
fn related(one: &str, other: &str) -> bool {
    let within = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    within(one, other) || within(other, one)
}

/// Removes a key. `Some` if it was there, with its index if it was an entry of a list.
fn take(table: &mut DeTable<'_>, key: &str) -> Option<Option<usize>> {
    let (head, rest) = key.split_once('.').unwrap_or((key, ""));
    let (name, index) = match head.split_once('[') {
        Some((name, index)) => (name, Some(index.trim_end_matches(']').parse::<usize>().ok()?)),
        None => (head, None),
    };
    let (_, value) = table.iter_mut().find(|(found, _)| found.get_ref() == name)?;
    let Some(index) = index else {
        if rest.is_empty() {
            table.remove(&Spanned::new(0..0, name.to_owned().into()));
            return Some(None);
        }
        return match value.get_mut() {
            DeValue::Table(inner) => take(inner, rest),
            _ => None,
        };
    };
    let DeValue::Array(items) = value.get_mut() else { return None };
    let kept = std::mem::replace(items, std::iter::empty().collect());
    if !rest.is_empty() {
        *items = kept;
        return match items.get_mut(index)?.get_mut() {
            DeValue::Table(inner) => take(inner, rest),
            _ => None,
        };
    }
    let there = index < kept.len();
    *items = kept.into_iter().enumerate().filter(|(i, _)| *i != index).map(|(_, item)| item).collect();
    there.then_some(Some(index))
}

/// Puts a stand-in in the place of a key; `false` if it is there already.
fn put(table: &mut DeTable<'_>, key: &str, value: &'static str) -> bool {
    let Some((role, name)) = key.split_once('.') else { return false };
    let (Ok(given), Some((_, role))) =
        (DeTable::parse(value), table.iter_mut().find(|(found, _)| found.get_ref() == role))
    else {
        return false;
    };
    let (Some((_, given)), DeValue::Table(role)) = (given.into_inner().into_iter().next(), role.get_mut())
    else {
        return false;
    };
    if role.iter().any(|(found, value)| found.get_ref() == name && same(value.get_ref(), given.get_ref())) {
        return false;
    }
    let name = Spanned::new(0..0, name.to_owned().into());
    role.remove(&name);
    role.insert(name, given);
    true
}

fn same(one: &DeValue<'_>, other: &DeValue<'_>) -> bool {
    format!("{one:?}") == format!("{other:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let all = all(Source::new("f", text));
        all.iter()
            .map(|fault| format!("{}:{} {}", fault.line.unwrap_or(0), fault.column.unwrap_or(0), fault.key))
            .collect()
    }

    #[test]
    fn every_fault_is_told_once_at_its_place() {
        let text = "[switch]\nlisten = \"here\"\nnodes = [\"a:1\", \"b\", \"c:1\", { address = \"d\" }]\n\
                    polcy = \"lard\"\n  shards = 63\nqueue_max = true\n[switch.health]\ncheck = \"soup\"\n\
                    [[switch.routes]]\nname = \"a\"\npath = \"/a*\"\nredirect = \"/b\"\n\
                    [node]\nlisten = \"[::]:1\"\ncache = { size = \"big\" }\n[log]\nlevl = 1\n";
        let expected = [
            "2:1 switch.listen",
            "3:17 switch.nodes[1]",
            "3:29 switch.nodes[3]",
            "4:1 switch.polcy",
            "5:3 switch.shards",
            "6:13 switch.queue_max",
            "8:1 switch.health.check",
            "12:12 switch.routes[0].redirect",
            "13:2 node.root",
            "15:18 node.cache.size",
            "17:1 log.levl",
        ];
        assert_eq!(found(text), expected);
    }

    #[test]
    fn a_valid_config_has_none_and_broken_syntax_is_told_alone() {
        assert!(found("[switch]\nlisten = \"[::]:80\"\nnodes = [\"a:1\"]\n").is_empty());
        assert_eq!(found("[switch\nlisten = 1\n").len(), 1);
    }

    #[test]
    fn faults_have_a_limit() {
        let text: String = (0..200).map(|i| format!("key{i} = 1\n")).collect();
        assert_eq!(found(&text).len(), FAULTS_MAX);
    }
}
