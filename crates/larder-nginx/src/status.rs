//! The page of `larder_status`: what the dispatchers know, as JSON.
//!
//! | path ends with | reply |
//! |---|---|
//! | `/explain`, with `?target=KEY` | the server for a target now, and why. KEY is the value of the upstream's `key` |
//! | anything else | the upstreams with larder's policies, their servers and loads |
//!
//! `/explain` takes `upstream=NAME` too if there are several.

use crate::shared::Shared;
use crate::zone::ZoneError;
use larder_core::TargetId;
use serde_json::{Value, json};

/// Returns the status and the text of the reply to a request.
pub(crate) fn reply(upstreams: &[(&str, &Shared)], path: &str, query: &str) -> (u16, String) {
    let (status, value) = if path.ends_with("/explain") { explain(upstreams, query) } else { all(upstreams) };
    (status, format!("{value:#}\n"))
}

fn problem(status: u16, error: &str, hint: &str) -> (u16, Value) {
    (status, json!({ "error": error, "hint": hint }))
}

fn broken(error: &ZoneError) -> (u16, Value) {
    problem(500, &error.to_string(), "the next request creates the state again")
}

fn all(upstreams: &[(&str, &Shared)]) -> (u16, Value) {
    let now = crate::now();
    let shown: Result<Vec<Value>, ZoneError> =
        upstreams.iter().map(|(_, upstream)| upstream.status(now)).collect();
    match shown {
        Ok(shown) => (200, json!({ "upstreams": shown })),
        Err(error) => broken(&error),
    }
}

fn explain(upstreams: &[(&str, &Shared)], query: &str) -> (u16, Value) {
    let parameter = |name: &str| {
        let mut parameters = form_urlencoded::parse(query.as_bytes());
        parameters.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    };
    let Some(key) = parameter("target") else {
        return problem(400, "no target", "write /explain?target=KEY, with the value of the upstream's key");
    };
    let wanted = parameter("upstream");
    let mut fitting =
        upstreams.iter().filter(|(name, _)| wanted.as_deref().is_none_or(|wanted| wanted == *name));
    let (Some((name, upstream)), None) = (fitting.next(), fitting.next()) else {
        let names: Vec<&str> = upstreams.iter().map(|(name, _)| *name).collect();
        return problem(404, "no such upstream", &format!("add &upstream=NAME: {}", names.join(", ")));
    };
    match upstream.explain(crate::now(), TargetId::of(key.as_bytes())) {
        Ok(mut explained) => {
            explained["upstream"] = (*name).into();
            explained["key"] = key.into();
            (200, explained)
        }
        Err(error) => broken(&error),
    }
}
