//! The text of a config as a tree of values.

use serde_json::Value;

use crate::proxy::field::{KeyError, shown};

/// The deepest nesting of a config. Envoy's own configs have about 30 levels.
const DEPTH_MAX: usize = 64;

/// The largest number of values in a config, anchors expanded.
const NODES_MAX: usize = 250_000;

/// Parses a config. JSON is tried first, because it may have tabs, which YAML forbids.
pub(super) fn parse(text: &str) -> Result<Value, KeyError> {
    if text.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(value);
    }
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            flow_nesting_limit: DEPTH_MAX,
            max_nodes: NODES_MAX,
            max_documents: 1,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: NODES_MAX },
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        KeyError::new(
            "the config",
            format!("it is not YAML: {}", shown(&error.to_string())),
            "correct this line",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn json_and_yaml_give_the_same_tree() {
        let tree = json!({"a": [{"b": "c"}, 1, true, null], "d": {}});
        assert_eq!(parse("a:\n- b: c\n- 1\n- true\n- null\nd: {}\n"), Ok(tree.clone()));
        assert_eq!(parse("{\n\t\"a\": [{\"b\": \"c\"}, 1, true, null],\n\t\"d\": {}\n}"), Ok(tree.clone()));
        assert_eq!(parse("{a: [{b: c}, 1, true, null], d: {}}"), Ok(tree));
        assert_eq!(parse("a: &x {b: 1}\nc: *x\n"), Ok(json!({"a": {"b": 1}, "c": {"b": 1}})));
        assert_eq!(parse("on: no\n"), Ok(json!({"on": "no"})), "only true and false are booleans");
        assert_eq!(parse(" \n"), Ok(Value::Null));
    }

    #[test]
    fn an_error_names_the_line() {
        let error = parse("a: 1\nb: [1, 2\nc: 3\n").unwrap_err().to_string();
        assert!(error.starts_with("the config: it is not YAML: ") && error.contains("line"), "{error}");
        assert!(parse("a: 1\na: 2\n").is_err(), "the key is there twice");
    }

    #[test]
    fn deep_and_growing_configs_are_refused() {
        assert!(parse(&"[".repeat(100_000)).is_err());
        assert!(parse(&"{\"a\":".repeat(100_000)).is_err());
        assert!(parse(&"- ".repeat(100_000)).is_err());
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let before = level - 1;
            let items = vec![format!("*a{before}"); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{items}]\n"));
        }
        assert!(parse(&bomb).is_err());
    }

    proptest! {
        #[test]
        fn any_text_gives_a_tree_or_an_error(text in "[-a-z0-9:{}\\[\\],&*!|>'\"#%@ \\n\\t]{0,200}") {
            let _ = parse(&text);
        }
    }
}
