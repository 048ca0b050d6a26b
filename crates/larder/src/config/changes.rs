//! What differs between the config that a node runs with and another one, and whether it can take that while it runs.

use std::collections::BTreeSet;

use serde_json::Value;

use super::raw::RawConfig;

/// What a node takes while it runs; a table stands for all that is in it. Everything else needs a restart.
pub(crate) const TAKEN: [&str; 57] = [
    "log.level",
    "node.access_log",
    "node.access_log_format",
    "node.cache.object_max",
    "node.cache.size",
    "node.forwarded",
    "node.handoff.switches",
    "node.health_path",
    "node.limits",
    "node.origin.body_rate_min",
    "node.origin.body_timeout",
    "node.origin.client_no_cache",
    "node.origin.client_share",
    "node.origin.connect_timeout",
    "node.origin.failover",
    "node.origin.head_max",
    "node.origin.head_timeout",
    "node.origin.headers",
    "node.origin.headers_max",
    "node.origin.idle_max",
    "node.origin.idle_timeout",
    "node.origin.negative",
    "node.origin.prefix_v4",
    "node.origin.prefix_v6",
    "node.origin.queue_max",
    "node.origin.queue_timeout",
    "node.origin.range_fill",
    "node.origin.request_body_timeout",
    "node.origin.requests_max",
    "node.origin.sign",
    "node.origin.stale_if_error",
    "node.origin.stream_timeout",
    "node.origin.tls",
    "node.origin.tunnel_idle_timeout",
    "node.origin.tunnels_max",
    "node.origin.variants_max",
    "node.peers.secret",
    "node.proxy_protocol_from",
    "node.purge_token",
    "node.report.backlog_max",
    "node.report.events_path",
    "node.report.from",
    "node.report.heartbeat",
    "node.report.load_path",
    "node.report.secret",
    "node.report.subscribers_max",
    "node.revalidate",
    "node.tls.certificates",
    "node.tls.client_ca",
    "node.tls.client_certificates",
    "node.tls.http2",
    "node.tls.min_version",
    "node.tls.redirect",
    "node.tls.reload",
    "node.trusted_relays",
    "node.underscores_in_headers",
    "node.url_fields_in_headers",
];

/// Keys whose values differ, dotted, in the order of their names. A table that is there on one side alone is one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// What a running node takes.
    pub(crate) taken: Vec<String>,
    /// What it cannot take.
    pub(crate) fixed: Vec<String>,
}

impl Changes {
    /// Of all that concerns a node.
    ///
    /// # Errors
    /// A config cannot be written as JSON, which is our own bug.
    pub(crate) fn of_node(before: &RawConfig, after: &RawConfig) -> serde_json::Result<Self> {
        let mut keys = BTreeSet::new();
        let written = |raw: &RawConfig| {
            Ok(
                serde_json::json!({ "admin": raw.admin, "log": raw.log, "node": serde_json::to_value(&raw.node)? }),
            )
        };
        collect("", (&written(before)?, &written(after)?), &mut keys);
        let (taken, fixed) = keys.into_iter().partition(|key| is_taken(key));
        Ok(Self { taken, fixed })
    }
}

fn is_taken(key: &str) -> bool {
    let within =
        |table: &str| key.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    TAKEN.into_iter().any(within)
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
    use super::super::{Written, schema};
    use super::*;

    const TLS: &str = "[node.tls]\nlisten = \"127.0.0.1:2\"\ncertificates = \"/a\"\n";

    fn changes(before: &str, after: &str) -> (String, String) {
        let raw = |text: &str| {
            let head = "[node]\nlisten = \"127.0.0.1:1\"\n";
            Written::parse("f", &format!("{head}{text}")).unwrap().raw
        };
        let Changes { taken, fixed } = Changes::of_node(&raw(before), &raw(after)).unwrap();
        (taken.join(" "), fixed.join(" "))
    }

    #[test]
    fn keys_that_differ_are_named_and_sorted_by_whether_a_node_takes_them() {
        let root = "root = \"/\"\n";
        for (before, after, taken, fixed) in [
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
                "root = \"/\"\nproxy_protocol_from = [\"::1\", \"10.0.0.0/8\"]\n",
                "node.proxy_protocol_from",
                "",
            ),
        ] {
            assert_eq!(changes(before, after), (taken.to_owned(), fixed.to_owned()), "{before} -> {after}");
        }
    }

    #[test]
    fn what_is_taken_are_keys_that_there_are_and_no_table_by_mistake() {
        let schema = schema();
        let resolve = |at: &Value| {
            // Optional tables are one of two things.
            let inner = at.get("anyOf").and_then(|kinds| kinds.get(0)).unwrap_or(at);
            let named = inner.get("$ref").and_then(Value::as_str);
            named.map_or_else(|| inner.clone(), |name| schema.pointer(&name[1..]).unwrap().clone())
        };
        for key in TAKEN {
            let found = key.split('.').fold(schema.clone(), |at, name| {
                resolve(&at)
                    .pointer(&format!("/properties/{name}"))
                    .unwrap_or_else(|| panic!("{key}"))
                    .clone()
            });
            let is_table = resolve(&found).get("properties").is_some();
            assert_eq!(
                is_table,
                ["node.limits", "node.origin.failover", "node.origin.sign", "node.origin.tls"].contains(&key),
                "{key}"
            );
        }
    }

    #[test]
    fn the_document_names_what_is_taken() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating.md");
        let document = std::fs::read_to_string(path).unwrap();
        let section =
            document.split("\n## Reload of a node\n").nth(1).unwrap().split("\n## ").next().unwrap();
        for key in TAKEN {
            let (_, name) = key.rsplit_once('.').unwrap();
            assert!(section.contains(&format!("`{key}`")) || section.contains(&format!("`{name}`")), "{key}");
        }
    }
}
