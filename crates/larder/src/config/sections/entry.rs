//! `trusted_relays`, `forwarded`, `underscores_in_headers` and `url_fields_in_headers` of a switch or a node, checked.

use larder_edge::{AddressRanges, EntryRules, Forwarded};

use crate::config::error::Fault;
use crate::config::text::Texts;
use crate::config::values::ranges;

/// The rules for header fields of requests as they enter. `role` is "switch" or "node".
pub(crate) fn entry(
    role: &str,
    relays: &Texts,
    forwarded: Forwarded,
    (underscores, url_fields): (bool, bool),
) -> Result<EntryRules, Fault> {
    let trusted_relays = AddressRanges(ranges(&format!("{role}.trusted_relays"), relays)?);
    Ok(EntryRules { trusted_relays, forwarded, underscores, url_fields })
}

#[cfg(test)]
mod tests {
    use crate::config::Written;
    use larder_edge::EntryRules;
    use larder_edge::Forwarded;

    const ROLES: [(&str, &str); 2] = [
        ("switch", "[switch]\nlisten = \"127.0.0.1:1\"\nnodes = [\"127.0.0.1:2\"]\n"),
        ("node", "[node]\nlisten = \"127.0.0.1:1\"\nroot = \"/\"\n"),
    ];

    fn rules(role: &str, text: &str) -> EntryRules {
        let config = Written::parse("f", text).unwrap().validate().unwrap();
        match role {
            "switch" => config.switch.unwrap().switch.entry,
            _ => config.node.unwrap().node.entry,
        }
    }

    #[test]
    fn every_key_reaches_switch_and_node() {
        for (role, head) in ROLES {
            let default = rules(role, head);
            assert!(default.trusted_relays.0.is_empty(), "{role}");
            assert!(!default.underscores && !default.url_fields, "{role}");
            assert_eq!(default.forwarded, Forwarded::Append, "{role}");
            let more = "trusted_relays = [\"10.0.0.2\", \"::1\"]\nforwarded = \"overwrite\"\n\
                        underscores_in_headers = true\nurl_fields_in_headers = true\n";
            let all = rules(role, &format!("{head}{more}"));
            assert!(
                all.trusted_relays.contains([10, 0, 0, 2].into()) && all.underscores && all.url_fields,
                "{role}"
            );
            assert_eq!((all.trusted_relays.0.len(), all.forwarded), (2, Forwarded::Overwrite), "{role}");
        }
    }

    #[test]
    fn each_mistake_is_named_with_its_line() {
        for (role, head) in ROLES {
            for (rest, key, word) in [
                ("forwarded = \"apend\"", "forwarded", "did you mean 'append'"),
                ("trusted_relays = \"switch\"", "trusted_relays", "192.0.2.1"),
            ] {
                let text = format!("{head}{rest}\n");
                let error = Written::parse("f", &text).and_then(|written| written.validate()).unwrap_err();
                assert_eq!((error.line, error.key), (Some(4), format!("{role}.{key}")), "{rest}");
                assert!(error.hint.unwrap_or_default().contains(word), "{rest}");
            }
        }
    }
}
