//! The policy of an upstream, and its equivalent in the simulator.
//!
//! | nginx | equivalent |
//! |---|---|
//! | none | `rr` |
//! | `least_conn`, `least_time` | `least-conn` |
//! | `random` | `random` |
//! | `random two` | `p2c` |
//! | `hash` with or without `consistent` | `hash` |
//! | `hash` of the client, `ip_hash`, `sticky` | `random` |
//! | larder's module | its policy |

use larder_core::PolicyKind;

use super::syntax::Directive;
use crate::proxy::cluster::PolicyInUse;
use crate::proxy::field::{KeyError, shown};

/// The policies that nginx itself has, with the words of its config.
pub(in crate::proxy) const OWN_POLICIES: [(PolicyKind, &str); 5] = [
    (PolicyKind::Rr, "round robin"),
    (PolicyKind::Random, "random"),
    (PolicyKind::P2c, "random two least_conn"),
    (PolicyKind::LeastConn, "least_conn"),
    (PolicyKind::Hash, "hash $request_uri consistent"),
];

/// Directives that choose the policy of an upstream.
const POLICIES: [&str; 7] = ["least_conn", "least_time", "random", "hash", "ip_hash", "sticky", LARDER];

/// The directive of larder's module.
const LARDER: &str = "larder";

/// Directives of an upstream that do not choose its policy.
const OTHERS: [&str; 11] = [
    "server",
    "zone",
    "state",
    "keepalive",
    "keepalive_requests",
    "keepalive_time",
    "keepalive_timeout",
    "queue",
    "ntlm",
    "resolver",
    "resolver_timeout",
];

/// Variables that tell targets apart.
const OF_TARGET: [&str; 6] = ["request_uri", "uri", "document_uri", "request", "args", "query_string"];

/// Variables that are the same for all targets of a client, or of a site.
const OF_CLIENT: [&str; 11] = [
    "remote_addr",
    "binary_remote_addr",
    "remote_port",
    "remote_user",
    "realip_remote_addr",
    "proxy_protocol_addr",
    "ssl_session_id",
    "ssl_client_s_dn",
    "connection",
    "request_id",
    "pid",
];

/// Variables that say nothing about target or client.
const NEUTRAL: [&str; 7] =
    ["scheme", "host", "http_host", "server_name", "server_port", "request_method", "https"];

/// Returns the directives that choose the policy.
pub(super) fn directives(upstream: &Directive) -> impl Iterator<Item = &Directive> {
    upstream.block.iter().filter(|directive| POLICIES.contains(&directive.name.as_str()))
}

/// Returns the equivalent of the policy of an upstream.
pub(super) fn equivalent(upstream: &Directive) -> Result<PolicyInUse, KeyError> {
    let known = |directive: &&Directive| {
        let name = directive.name.as_str();
        OTHERS.contains(&name) || POLICIES.contains(&name)
    };
    if let Some(unknown) = upstream.block.iter().find(|directive| !known(directive)) {
        return Err(unknown.error(
            "the plan does not know this directive of an upstream",
            "remove it from a copy of the file; if it is a policy, write the most similar of least_conn, random and hash",
        ));
    }
    // nginx takes the last one and warns.
    let Some(used) = directives(upstream).last() else {
        return Ok(PolicyInUse::new("round robin", PolicyKind::Rr));
    };
    let plain = |kind| PolicyInUse::new(used.written(), kind);
    let noted = |kind, note: &str| {
        let mut policy = plain(kind);
        policy.notes.push(note.to_owned());
        policy
    };
    Ok(match used.name.as_str() {
        "least_conn" => plain(PolicyKind::LeastConn),
        "least_time" => noted(PolicyKind::LeastConn, "The plan does not simulate response times."),
        "random" if used.first() != Some("two") => plain(PolicyKind::Random),
        "random" => match used.parameters.get(1).map_or("least_conn", String::as_str) {
            "least_conn" => plain(PolicyKind::P2c),
            _ => noted(PolicyKind::P2c, "The plan compares connections, not response times."),
        },
        "ip_hash" => {
            noted(PolicyKind::Random, "nginx hashes the client's address, which is random for a target.")
        }
        "sticky" => {
            noted(PolicyKind::Random, "nginx keeps a client at a server, which is random for a target.")
        }
        LARDER => module(used)?,
        _ => hashed(used)?,
    })
}

fn hashed(used: &Directive) -> Result<PolicyInUse, KeyError> {
    let key = used.first().ok_or_else(|| used.error("there is no key", "add a key such as $request_uri"))?;
    let mut policy = PolicyInUse::new(used.written(), PolicyKind::Hash);
    let variables = variables(key);
    let is = |list: &[&str]| variables.iter().any(|name| list.contains(&name.as_str()));
    let is_of_client = |name: &String| {
        OF_CLIENT.contains(&name.as_str())
            || name.starts_with("cookie_")
            || name.starts_with("http_") && !NEUTRAL.contains(&name.as_str())
    };
    let neutral = variables.iter().all(|name| NEUTRAL.contains(&name.as_str()));
    if neutral {
        return Err(used.error(
            format!("the key {} is the same for all targets of a site", shown(key)),
            "the plan needs a key with the target, such as $request_uri",
        ));
    }
    if variables.iter().any(is_of_client) {
        policy.kind = PolicyKind::Random;
        policy.notes.push(format!("nginx hashes {}, which is random for a target.", shown(key)));
        return Ok(policy);
    }
    if used.parameters.get(1).is_some_and(|word| word == "consistent") {
        policy.notes.push(
            "The simulator's hash gives all servers equal shares of the targets; nginx's ring is less even."
                .to_owned(),
        );
    }
    if !is(&OF_TARGET) && !variables.iter().any(|name| name.starts_with("arg_")) {
        policy.notes.push(format!(
            "The plan cannot evaluate {}, and assumes that nginx hashes the path with its query.",
            shown(key)
        ));
    } else if !is(&["request_uri", "request"]) {
        policy.notes.push(format!("nginx hashes {}; the plan hashes the path with its query.", shown(key)));
    }
    Ok(policy)
}

/// Returns the policy of larder's module.
fn module(used: &Directive) -> Result<PolicyInUse, KeyError> {
    let name = used.value("policy").unwrap_or("lard-r");
    let kind = name.parse::<PolicyKind>();
    let kind = kind.map_err(|error| used.error(error.to_string(), "write a policy of larder"))?;
    let mut policy = PolicyInUse::new(format!("larder's policy {kind}"), kind);
    if used.value("key").is_some_and(|key| key != super::lines::KEY) {
        policy.notes.push(
            "The plan takes host, path and query as the target, not the `key` of the directive.".to_owned(),
        );
    }
    if used.value("config").is_some() {
        policy.notes.push(
            "The plan does not read the file of `config`, and uses the defaults of its keys.".to_owned(),
        );
    }
    Ok(policy)
}

/// Returns the names of the variables in a text.
fn variables(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for after in text.split('$').skip(1) {
        let after = after.strip_prefix('{').unwrap_or(after);
        let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
        names.push(after[..end].to_owned());
    }
    names
}
