//! The admin filter: it replies to every request of its listener with what the dispatchers know.
//!
//! | path | reply, as JSON |
//! |---|---|
//! | `/status` | the clusters with larder's policy, their nodes and loads |
//! | `/explain?target=HOST/PATH` | the node for a request now, and why |
//!
//! `/explain` also takes `method`, `header=NAME:VALUE` (repeatable) and, if there are several clusters, `cluster`.

use crate::cluster::Cluster;
use larder_core::rules::Head;
use larder_embed::{Embedded, RequestFacts};
use larder_prompts::PromptStatus;
use serde_json::{Value, json};
use std::sync::Arc;

/// A status and a JSON value.
type Reply = (u32, Value);

/// Returns the reply to a request with this path and query.
pub(crate) fn reply(path_and_query: &str) -> (u32, String) {
    let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
    let (status, value) = match path {
        "/status" => status(),
        "/explain" => explain(query),
        _ => problem(404, "no such page", "write /status or /explain?target=HOST/PATH"),
    };
    (status, format!("{value:#}\n"))
}

fn problem(status: u32, error: &str, hint: &str) -> Reply {
    (status, json!({ "error": error, "hint": hint }))
}

fn status() -> Reply {
    let now = crate::now();
    let show = |cluster: &Arc<Cluster>| {
        let mut shown =
            cluster.dispatcher().map_or(json!({ "nodes": [] }), |dispatcher| dispatcher.status(now));
        shown["cluster"] = cluster.name().into();
        shown["record"] = json!(cluster.record_status());
        if let Some(prompts) = cluster.prompts() {
            let PromptStatus { prompts, tokens, credited, credits, body_bytes } = prompts.route.status();
            shown["prompts"] = json!({
                "prompts": prompts,
                "tokens": tokens,
                "tokens_credited": credited,
                "credits": credits,
                "body_bytes": body_bytes,
            });
        }
        shown
    };
    (200, json!({ "clusters": Cluster::all().iter().map(show).collect::<Vec<_>>() }))
}

fn explain(query: &str) -> Reply {
    let parameters = || form_urlencoded::parse(query.as_bytes());
    let one = |name: &str| parameters().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
    let Some(target) = one("target") else {
        return problem(400, "no target", "write /explain?target=HOST/PATH");
    };
    let clusters = Cluster::all();
    let wanted = one("cluster");
    let mut fitting =
        clusters.iter().filter(|cluster| wanted.as_deref().is_none_or(|name| name == cluster.name()));
    let (Some(cluster), None) = (fitting.next(), fitting.next()) else {
        let names: Vec<&str> = clusters.iter().map(|cluster| cluster.name()).collect();
        return problem(404, "no such cluster", &format!("add &cluster=NAME: {}", names.join(", ")));
    };
    let Some(dispatcher) = cluster.dispatcher() else {
        return problem(503, "the cluster has no hosts", "look at Envoy's /clusters");
    };
    let fields: Vec<(String, String)> = parameters()
        .filter(|(key, _)| key == "header")
        .filter_map(|(_, field)| {
            field.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        })
        .collect();
    let method = one("method").unwrap_or_else(|| "GET".to_owned());
    let (host, path) = target.find('/').map_or((target.as_str(), "/"), |at| target.split_at(at));
    let head = Head::new(method.as_bytes(), host.as_bytes(), path.as_bytes(), &fields);
    show(dispatcher, cluster, &head)
}

fn show(dispatcher: &Embedded, cluster: &Cluster, head: &Head<'_>) -> Reply {
    let key = &cluster.config.key;
    let mut text = Vec::new();
    key.render(head, &mut text);
    match dispatcher.explain(crate::now(), &RequestFacts::new(key.id(head))) {
        Ok(mut explained) => {
            explained["cluster"] = cluster.name().into();
            explained["key"] = String::from_utf8_lossy(&text).into();
            (200, explained)
        }
        Err(error) => problem(500, &error.to_string(), "this is a bug of larder"),
    }
}
