//! Differences between the config of a running node and another config, and whether a reload can apply them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::schema::reloadable_keys;
use super::sections::Sections;

/// Keys with different values, dotted and sorted by name. A table that only one side has is one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Keys that a reload applies.
    pub(crate) reloadable: Vec<String>,
    /// Keys that only a restart applies.
    pub(crate) needs_restart: Vec<String>,
}

impl Changes {
    /// Compares the sections that a node uses.
    ///
    /// # Errors
    /// A config cannot be written as JSON, which is our own bug.
    pub(crate) fn of_node(before: &Sections, after: &Sections) -> serde_json::Result<Self> {
        let mut keys = BTreeSet::new();
        let written = |raw: &Sections| {
            Ok(
                serde_json::json!({ "admin": raw.admin, "log": raw.log, "node": serde_json::to_value(&raw.node)? }),
            )
        };
        collect("", (&written(before)?, &written(after)?), &mut keys);
        let known = reloadable_keys();
        let within = |key: &str, table: &str| {
            key.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let (reloadable, needs_restart) =
            keys.into_iter().partition(|key| known.iter().any(|table| within(key, table)));
        Ok(Self { reloadable, needs_restart })
    }
}

/// Adds the keys below `path` that differ.
fn collect(path: &str, (before, after): (&Value, &Value), keys: &mut BTreeSet<String>) {
    let (Value::Object(then), Value::Object(now)) = (before, after) else {
        if before != after {
            keys.insert(path.to_owned());
        }
        return;
    };
    for name in then.keys().chain(now.keys()) {
        let of = |table: &serde_json::Map<String, Value>| table.get(name).cloned().unwrap_or_default();
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        collect(&path, (&of(then), &of(now)), keys);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Written;
    use super::super::schema::Part;
    use super::*;

    const TLS: &str = "[node.tls]\nlisten = \"127.0.0.1:2\"\ncertificates = \"/a\"\n";

    fn changes(before: &str, after: &str) -> (String, String) {
        let raw = |text: &str| {
            let head = "[node]\nlisten = \"127.0.0.1:1\"\n";
            Written::parse("f", &format!("{head}{text}")).unwrap().raw
        };
        let Changes { reloadable, needs_restart } = Changes::of_node(&raw(before), &raw(after)).unwrap();
        (reloadable.join(" "), needs_restart.join(" "))
    }

    #[test]
    fn keys_that_differ_are_named_and_sorted_by_whether_a_node_takes_them() {
        let root = "root = \"/\"\n";
        for (before, after, reloadable, needs_restart) in [
            (root, "root = \"/\"\nname = \"node\"\ncache.size = \"256MiB\"\n", "", ""),
            (root, "root = \"/\"\ncache.size = 268435456\n[switch]\nlisten = \"x\"\n", "", ""),
            (
                root,
                "root = \"/\"\ncache = { size = \"1MiB\", object_max = 9 }\n",
                "node.cache.object_max node.cache.size",
                "",
            ),
            (root, "root = \"/b\"\nlimits.head_timeout = \"1s\"\n", "node.limits.head_timeout", "node.root"),
            (root, "root = \"/\"\nname = \"b\"\n[admin]\nlisten = \"off\"\n", "", "admin.listen node.name"),
            (root, "origin.url = \"http://a\"\n", "", "node.origin node.root"),
            (
                "origin.url = \"http://a\"\n",
                "origin = { url = \"http://a\", idle_max = 1, host = \"origin\" }\n",
                "node.origin.idle_max",
                "node.origin.host",
            ),
            (TLS, "", "", "node.tls"),
            (TLS, &TLS.replace("/a", "/b"), "node.tls.certificates", ""),
            (TLS, &TLS.replace(":2", ":3"), "", "node.tls.listen"),
            (root, "root = \"/\"\n[log]\nlevel = \"warn\"\n", "log.level", ""),
            (
                root,
                "root = \"/\"\ntrust.proxy_protocol_from = [\"::1\", \"10.0.0.0/8\"]\n",
                "node.trust.proxy_protocol_from",
                "",
            ),
        ] {
            assert_eq!(
                changes(before, after),
                (reloadable.to_owned(), needs_restart.to_owned()),
                "{before} -> {after}"
            );
        }
    }

    #[test]
    fn no_table_is_taken_by_mistake() {
        let tables = |key: &String| Part::find(key).is_some_and(Part::has_keys);
        let tables: Vec<String> = reloadable_keys().into_iter().filter(tables).collect();
        assert_eq!(tables, ["node.limits", "node.origin.failover", "node.origin.sign", "node.origin.tls"]);
        assert_eq!(reloadable_keys().len(), 57);
    }

    #[test]
    fn the_document_names_what_is_taken() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/reload.md");
        let document = std::fs::read_to_string(path).unwrap();
        let heading = "\n## Keys of a node that a reload applies\n";
        let section = document.split(heading).nth(1).unwrap().split("\n## ").next().unwrap();
        for key in reloadable_keys() {
            let (_, name) = key.rsplit_once('.').unwrap();
            assert!(section.contains(&format!("`{key}`")) || section.contains(&format!("`{name}`")), "{key}");
        }
    }
}
