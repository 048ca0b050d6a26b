//! Search for all faults of a config.
//!
//! The reader and the validation stop at the first fault. The search then removes the key at fault, or gives it a valid
//! value if the config needs the key, and reads the rest again. A later fault at a removed key is a consequence of the
//! removal and is not reported. The same holds for a missing key if a removed table could replace it. Each round removes
//! a key, so the search ends.

use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::Sections;
use super::error::ConfigError;
use super::moved;
use super::source::{Source, key_at};
use super::valid::Config;

/// Largest number of faults that are reported for one file.
const FAULTS_MAX: usize = 50;
/// Largest number of rounds for one file. A fault may need several rounds until its table is gone.
const ROUNDS_MAX: usize = 4 * FAULTS_MAX;

/// Keys that a role requires, and the keys that get valid values if they are at fault. Indices are left out.
const STAND_INS: [(&str, &[(&str, &str)]); 9] = [
    ("switch.listen", &[("switch.listen", "v = \"127.0.0.1:1\"")]),
    ("switch.nodes", &[("switch.nodes", "v = [\"127.0.0.1:2\"]")]),
    ("switch.tls.listen", &[("switch.tls.listen", "v = \"127.0.0.1:4\"")]),
    (
        "switch.policies.ward",
        &[("switch.policies.ward.table", "v = \"/\""), ("switch.policies.ward.host", "v = \"h\"")],
    ),
    (
        "switch.routes.policies.ward",
        &[
            ("switch.routes.policies.ward.table", "v = \"/\""),
            ("switch.routes.policies.ward.host", "v = \"h\""),
        ],
    ),
    ("node.listen", &[("node.listen", "v = \"127.0.0.1:3\"")]),
    ("node.root", &[("node.root", "v = \"/\"")]),
    ("node.tls.listen", &[("node.tls.listen", "v = \"127.0.0.1:5\"")]),
    ("node.peers.ward.refresh", &[("node.peers.ward.refresh", "v = \"1h\"")]),
];

/// Keys of a role, and a table that can replace each. Within other tables, any of their tables may replace a key.
const INSTEAD: [(&str, &str); 5] = [
    ("switch.listen", "switch.tls"),
    ("switch.nodes", "switch.discover"),
    ("node.listen", "node.tls"),
    ("node.root", "node.origin"),
    ("node.root", "node.model"),
];

/// Returns all faults of a text, in the order of the text.
pub(super) fn all(source: Source<'_>) -> Vec<ConfigError> {
    let (mut table, broken) = DeTable::parse_recoverable(source.text());
    if !broken.is_empty() {
        // The keys after broken syntax may belong to another table than they seem to.
        return broken.iter().take(FAULTS_MAX).map(|error| source.refused(error)).collect();
    }
    let moved = moved::apply(table.get_mut());
    let mut search = Search {
        source,
        table,
        faults: moved.iter().filter_map(|moved| source.twice(moved)).collect(),
        told: Vec::new(),
        removed: Vec::new(),
        tables: Vec::new(),
        unknown: Vec::new(),
        indices: Vec::new(),
    };
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
    /// Keys of the reported faults, as in the file.
    told: Vec<String>,
    /// Keys that were removed or replaced, as in the file.
    removed: Vec<String>,
    /// Tables and lists that were removed, or scalars in the place of one, as in the file.
    tables: Vec<String>,
    /// Tables with an unknown key, and the remedy.
    unknown: Vec<(String, String)>,
    /// Entries removed from lists: the list and the index at that time.
    indices: Vec<(String, usize)>,
}

impl Search<'_> {
    /// Finds the next fault and removes its key; `false` if there is none, or no key is left to remove.
    fn round(&mut self) -> bool {
        let (now, error) = match Sections::deserialize(Deserializer::from(self.table.clone())) {
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                (key_at(self.table.get_ref(), at).unwrap_or_default(), self.source.refused(&error))
            }
            Ok(raw) => match Config::new(&raw) {
                Ok(_) => return false,
                Err(fault) => {
                    let now = fault.key().to_owned();
                    (now, self.source.locate(fault.map(|text| self.original(text))))
                }
            },
        };
        let wants_table =
            ["expected a table", "expected a list"].iter().any(|text| error.what.starts_with(text));
        let told = self.told.contains(&error.key);
        if !told && !self.follows(&error.key) {
            if let Some(hint) = error.hint.as_ref().filter(|_| error.what.starts_with("unknown key")) {
                self.unknown.push((parent(&error.key).to_owned(), hint.to_string()));
            }
            self.told.push(error.key.clone());
            self.faults.push(error);
        }
        self.stand_in(&now) || self.remove(&now, wants_table)
    }

    /// Whether a fault at this key may be a consequence of what was removed.
    fn follows(&self, key: &str) -> bool {
        let missing = !self.source.has(key);
        self.removed.iter().any(|removed| related(removed, key))
            || missing && self.tables.iter().any(|table| stands_in(table, key))
            || missing && self.unknown.iter().any(|(table, hint)| is_misspelt(table, hint, key))
    }

    /// Sets a key that a role requires to a valid value; `false` if there is none, or if it is set already.
    fn stand_in(&mut self, key: &str) -> bool {
        let (bare, at) = (without_indices(key), key.rfind('.').map_or("", |dot| &key[..dot]));
        if key.ends_with(']') {
            return false;
        }
        let Some((_, values)) = STAND_INS.iter().find(|(name, _)| *name == bare) else { return false };
        let mut put_any = false;
        for (to, value) in *values {
            // The table that is meant has the indices of the fault's key.
            let name = to.rsplit('.').next().unwrap_or(to);
            let whole = if *to == bare { format!("{at}.{name}") } else { format!("{key}.{name}") };
            let replaces = *to == bare;
            if put(self.table.get_mut(), &whole, value, replaces) {
                put_any = true;
                self.removed.push(self.original(&whole));
            }
        }
        put_any
    }

    /// Removes the key, or its nearest ancestor; `false` if there is none.
    fn remove(&mut self, key: &str, wants_table: bool) -> bool {
        let mut at = key;
        loop {
            let original = self.original(at);
            let is_table = at.ends_with(']') || inner(self.table.get_mut(), at).is_some();
            if let Some(index) = take(self.table.get_mut(), at) {
                if is_table || wants_table && at == key {
                    self.tables.push(original.clone());
                }
                self.removed.push(original);
                // A key without its certificate would be a fault of its own.
                if let Some(table) = at.strip_suffix(".certificate")
                    && take(self.table.get_mut(), &format!("{table}.key")).is_some()
                {
                    self.removed.push(self.original(&format!("{table}.key")));
                }
                if let Some(index) = index {
                    self.indices.push((at[..at.rfind('[').unwrap_or(0)].to_owned(), index));
                }
                return true;
            }
            // A policy may want keys that are not there: without it the rest can be read.
            let parent = at.rsplit_once('.').map(|(parent, _)| parent);
            let Some(parent) = parent else { return false };
            let owner = parent.strip_suffix(".policies").unwrap_or(parent);
            let policy = format!("{owner}.policy");
            if take(self.table.get_mut(), &policy).is_some() {
                self.removed.push(self.original(&policy));
                return true;
            }
            at = parent;
        }
    }

    /// Returns a text with the indices of keys as in the file, although entries before may have been removed.
    fn original(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (list, removed) in self.indices.iter().rev() {
            let (mut done, mut rest) = (String::new(), text.as_str());
            while let Some(at) = rest.find(&format!("{list}[")) {
                let (before, after) = rest.split_at(at + list.len() + 1);
                done.push_str(before);
                let digits = after.bytes().take_while(u8::is_ascii_digit).count();
                match after[..digits].parse::<usize>() {
                    Ok(index) if index >= *removed => done.push_str(&(index + 1).to_string()),
                    _ => done.push_str(&after[..digits]),
                }
                rest = &after[digits..];
            }
            done.push_str(rest);
            text = done;
        }
        text
    }
}

/// Removes indices: `a[1].b[2]` becomes `a.b`.
fn without_indices(key: &str) -> String {
    key.split('.').map(|part| part.split('[').next().unwrap_or(part)).collect::<Vec<_>>().join(".")
}

/// Whether the keys are equal or one contains the other.
fn related(one: &str, other: &str) -> bool {
    let within = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    within(one, other) || within(other, one)
}

/// Returns the table of a key; empty for the file.
fn parent(key: &str) -> &str {
    key.rsplit_once('.').map_or("", |(parent, _)| parent)
}

/// Whether an unknown key of a table is a misspelling of the missing one, according to its hint.
fn is_misspelt(table: &str, hint: &str, missing: &str) -> bool {
    let name = missing.rsplit('.').next().unwrap_or(missing);
    let suggested = [format!("'{name}'"), format!("{name} = ")].iter().any(|text| hint.contains(text));
    suggested && (table.is_empty() || table == parent(missing))
}

/// Whether a removed table could replace a missing key.
fn stands_in(table: &str, missing: &str) -> bool {
    let (table, missing) = (without_indices(table), without_indices(missing));
    let parent = parent(&missing);
    if !parent.contains('.') {
        return INSTEAD.iter().any(|(key, instead)| *key == missing && *instead == table);
    }
    table.strip_prefix(parent).is_some_and(|rest| rest.starts_with('.'))
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

/// Sets a key to a value; `false` if it is set already, or if its table does not exist.
fn put(table: &mut DeTable<'_>, key: &str, value: &'static str, replaces: bool) -> bool {
    let (path, name) = key.rsplit_once('.').unwrap_or(("", key));
    let Some(table) = inner(table, path) else { return false };
    let given = DeTable::parse(value).ok().and_then(|given| given.into_inner().into_iter().next());
    let Some((_, given)) = given else { return false };
    let there = table.iter().find(|(found, _)| found.get_ref() == name);
    if there.is_some_and(|(_, value)| !replaces || same(value.get_ref(), given.get_ref())) {
        return false;
    }
    let name = Spanned::new(0..0, name.to_owned().into());
    table.remove(&name);
    table.insert(name, given);
    true
}

/// Returns the table at a dotted key.
fn inner<'t, 'a>(table: &'t mut DeTable<'a>, path: &str) -> Option<&'t mut DeTable<'a>> {
    let (head, rest) = path.split_once('.').unwrap_or((path, ""));
    let (name, index) = match head.split_once('[') {
        Some((name, index)) => (name, Some(index.trim_end_matches(']').parse::<usize>().ok()?)),
        None => (head, None),
    };
    let (_, value) = table.iter_mut().find(|(found, _)| found.get_ref() == name)?;
    let value = match (index, value.get_mut()) {
        (Some(index), DeValue::Array(items)) => items.get_mut(index)?.get_mut(),
        (None, value) => value,
        _ => return None,
    };
    let DeValue::Table(found) = value else { return None };
    if rest.is_empty() { Some(found) } else { inner(found, rest) }
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
                    polcy = \"lard\"\n  process.shards = 63\nadmission.queue_max = true\n[switch.health]\ncheck = \"soup\"\n\
                    [[switch.routes]]\nname = \"a\"\npath = \"/a*\"\nredirect = \"/b\"\n\
                    [node]\nlisten = \"[::]:1\"\ncache = { size = \"big\" }\n[log]\nlevl = 1\n";
        let expected = [
            "2:1 switch.listen",
            "3:17 switch.nodes[1]",
            "3:29 switch.nodes[3]",
            "4:1 switch.polcy",
            "5:11 switch.process.shards",
            "6:23 switch.admission.queue_max",
            "8:1 switch.health.check",
            "12:12 switch.routes[0].redirect",
            "13:2 node.root",
            "15:18 node.cache.size",
            "17:1 log.levl",
        ];
        assert_eq!(found(text), expected);
    }

    #[test]
    fn a_policy_without_its_table_hides_no_fault_of_its_keys() {
        let text = "[switch]\nlisten = \"[::]:80\"\nnodes = [\"a:1\"]\npolicy = \"ward\"\n[switch.policies.ward]\nhost = \"\"\n";
        assert_eq!(found(text), ["5:18 switch.policies.ward", "6:1 switch.policies.ward.host"]);
        // Without the table of a policy there is nothing to hide.
        let text = "[switch]\nlisten = \"here\"\nnodes = [\"a:1\"]\npolicy = \"ward\"\nprocess.shards = 63\n";
        assert_eq!(
            found(text),
            ["1:2 switch.policies.ward", "2:1 switch.listen", "5:9 switch.process.shards"]
        );
    }

    #[test]
    fn a_missing_key_is_told_beside_wrong_types() {
        let text = "[switch]\nlisten = 80\nnodes = [\"a:1\"]\nadmission.queue_max = true\n[switch.tls]\nmin_version = 1\n";
        let expected = [
            "2:10 switch.listen",
            "4:23 switch.admission.queue_max",
            "5:9 switch.tls.listen",
            "5:9 switch.tls.certificates",
            "6:15 switch.tls.min_version",
        ];
        assert_eq!(found(text), expected);
        assert_eq!(found("[switch]\nlisten = 80\n"), ["1:2 switch.nodes", "2:10 switch.listen"]);
    }

    #[test]
    fn a_key_that_a_removed_table_stands_in_for_is_not_told_as_missing() {
        for (text, expected) in [
            ("[node]\nlisten = \"[::]:1\"\norigin = 5\n", &["3:10 node.origin"][..]),
            ("[node]\nlisten = \"[::]:1\"\n[node.origin]\nurl = 5\n", &["4:7 node.origin.url"]),
            ("[switch]\nlisten = \"[::]:1\"\ndiscover = 5\n", &["3:12 switch.discover"]),
            ("[switch]\nnodes = [\"a:1\"]\ntls = true\n", &["3:7 switch.tls"]),
            (
                "[switch]\nnodes = [\"a:1\"]\n[switch.tls]\nlisten = \"[::]:1\"\nacme = 5\n",
                &["5:8 switch.tls.acme"],
            ),
            // A key of another name is in its place.
            ("[switch]\nlisten_addr = \":80\"\nnodes = [\"a:1\"]\n", &["2:1 switch.listen_addr"]),
            ("[switch]\nlisten = \"[::]:1\"\n[upstream]\na = 1\n", &["3:2 upstream"]),
            ("[switch]\nlisten = \"[::]:1\"\nnode = [\"a:1\"]\n", &["3:1 switch.node"]),
        ] {
            assert_eq!(found(text), expected, "{text}");
        }
    }

    #[test]
    fn keys_in_sentences_have_the_indices_of_the_file() {
        let text = "[switch]\nlisten = \"[::]:80\"\nnodes = [\"a\", \"b:1\", \"c\", \"b:1\"]\n";
        let all = all(Source::new("f", text));
        let said: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[2].starts_with("f:3:27: switch.nodes[3]: "), "{said:?}");
        assert!(said[2].contains("is that of switch.nodes[1] already"), "{said:?}");
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
