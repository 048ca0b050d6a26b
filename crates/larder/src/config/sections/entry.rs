//! `[switch.trust]` and `[node.trust]`.

use larder_edge::{AddressRanges, EntryRules, Forwarded};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::text::Texts;
use crate::config::values::ranges;
use crate::config::words::Word;

keys! {
    /// `[switch.trust]`.
    table TrustSection;

    /// Relays before the switch whose identity fields are trusted, as "10.0.0.2" or "10.0.0.0/24". Their
    /// X-Forwarded-For, Forwarded, X-Forwarded-Proto, X-Forwarded-Host and Client-Cert are kept unchanged. List only
    /// relays that set these fields themselves and that clients cannot bypass.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    relays: Texts, entries 1024, example ["10.0.0.2", "2001:db8::/32"];
    /// Addresses of load balancers before the switch that use the PROXY protocol (version 1 or 2), as "10.0.0.0/8".
    /// Every connection from them must begin with the PROXY protocol. Connections from other addresses must not.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    proxy_protocol_from: Texts, entries 1024, example ["10.0.0.0/8", "2001:db8::/32"];
    /// Treatment of X-Forwarded-For from senders that are not trusted relays: "append" the sender's address, or
    /// "overwrite" the field. Forwarded (if present), X-Forwarded-Proto, X-Forwarded-Host and Client-Cert of such
    /// senders are always overwritten.
    forwarded: Word<Forwarded> = Word(Forwarded::default());
    /// Whether header fields with an underscore in their names, such as Client_Cert, are kept. Many applications read
    /// them as the field with hyphens, so false removes them.
    underscores_in_headers: bool = false;
    /// Whether header fields that may change an application's URL, such as X-Forwarded-Prefix, are kept from senders
    /// that are not trusted relays. docs/operate/clients.md lists these fields.
    url_fields_in_headers: bool = false;
}

keys! {
    /// `[node.trust]`.
    table NodeTrustSection;

    /// Relays before the node, such as switches, whose identity fields are trusted, as "10.0.0.2" or "10.0.0.0/24".
    /// They may also ask for reports. Their X-Forwarded-For, Forwarded, X-Forwarded-Proto, X-Forwarded-Host and
    /// Client-Cert are kept unchanged. List only relays that set these fields themselves and that clients cannot
    /// bypass.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    relays: Texts, entries 1024, example ["10.0.0.2", "2001:db8::/32"], reload true;
    /// Addresses of load balancers before the node that use the PROXY protocol (version 1 or 2), as "10.0.0.0/8".
    /// Every connection from them must begin with the PROXY protocol. Connections from other addresses must not.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    proxy_protocol_from: Texts, entries 1024, example ["10.0.0.0/8", "2001:db8::/32"], reload true;
    /// Treatment of X-Forwarded-For from senders that are not trusted relays: "append" the sender's address, or
    /// "overwrite" the field. Forwarded (if present), X-Forwarded-Proto, X-Forwarded-Host and Client-Cert of such
    /// senders are always overwritten.
    forwarded: Word<Forwarded> = Word(Forwarded::default()), reload true;
    /// Whether header fields with an underscore in their names, such as Client_Cert, are kept. Many applications read
    /// them as the field with hyphens, so false removes them.
    underscores_in_headers: bool = false, reload true;
    /// Whether header fields that may change an application's URL, such as X-Forwarded-Prefix, are kept from senders
    /// that are not trusted relays. docs/operate/clients.md lists these fields.
    url_fields_in_headers: bool = false, reload true;
}

/// Returns the rules for header fields of incoming requests. `role` is "switch" or "node".
pub(crate) fn entry(
    role: &str,
    relays: &Texts,
    forwarded: Forwarded,
    (underscores, url_fields): (bool, bool),
) -> Result<EntryRules, Fault> {
    let trusted_relays = AddressRanges(ranges(&format!("{role}.trust.relays"), relays)?);
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
            let more = "trust.relays = [\"10.0.0.2\", \"::1\"]\ntrust.forwarded = \"overwrite\"\n\
                        trust.underscores_in_headers = true\ntrust.url_fields_in_headers = true\n";
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
                ("trust.forwarded = \"apend\"", "trust.forwarded", "did you mean 'append'"),
                ("trust.relays = \"switch\"", "trust.relays", "192.0.2.1"),
            ] {
                let text = format!("{head}{rest}\n");
                let error = Written::parse("f", &text).and_then(|written| written.validate()).unwrap_err();
                assert_eq!((error.line, error.key), (Some(4), format!("{role}.{key}")), "{rest}");
                assert!(error.hint.unwrap_or_default().contains(word), "{rest}");
            }
        }
    }
}
