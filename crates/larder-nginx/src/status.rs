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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zone::tests::{config, servers, zone};
    use proptest::prelude::*;
    use std::sync::Arc;

    fn with_upstreams<T>(run: impl FnOnce(&[(&str, &Shared)]) -> T) -> T {
        let config = Arc::new(config(&["memory=8m"]));
        let [one, two] =
            ["one", "two"].map(|name| Shared::new(zone(&config.plan), name, &config, servers(&["a"])));
        run(&[("one", &one), ("two", &two)])
    }

    #[test]
    fn a_target_is_explained_for_the_upstream_that_is_named() {
        with_upstreams(|upstreams| {
            let (status, text) = reply(upstreams, "/x/explain", "target=h%2Fp&upstream=two");
            let value: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!((status, &value["key"], &value["node"]), (200, &json!("h/p"), &json!("a")));
            assert_eq!(reply(upstreams, "/explain", "target=x").0, 404);
            assert_eq!(reply(upstreams, "/explain", "upstream=one").0, 400);
            let (status, text) = reply(upstreams, "/anything", "");
            let value: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!((status, &value["upstreams"][1]["upstream"]), (200, &json!("two")));
        });
    }

    #[test]
    fn any_query_has_an_answer() {
        with_upstreams(|upstreams| {
            proptest!(|(path in "(/explain|/\\PC{0,9})", query in "(target=|upstream=one&)?\\PC{0,30}")| {
                let (status, text) = reply(upstreams, &path, &query);
                prop_assert!([200, 400, 404].contains(&status));
                prop_assert!(serde_json::from_str::<Value>(&text).is_ok());
            });
        });
    }
}
