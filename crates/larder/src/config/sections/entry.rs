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

    /// Relays before the switch whose identity fields are believed, as "10.0.0.2" or "10.0.0.0/24".
    /// From them X-Forwarded-For, Forwarded, X-Forwarded-Proto, X-Forwarded-Host and Client-Cert are kept as they are. List only
    /// relays that set these fields themselves, and that clients cannot pass by.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    relays: Texts, entries 1024, example ["10.0.0.2", "2001:db8::/32"];
    /// Addresses of balancers before the switch that announce with the PROXY protocol (1 or 2) whom each connection is from, as
    /// "10.0.0.0/8". From them every connection must begin with it; from others none may.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    proxy_protocol_from: Texts, entries 1024, example ["10.0.0.0/8", "2001:db8::/32"];
    /// X-Forwarded-For of any other sender: "append" its address, or "overwrite" the field. Forwarded (where present),
    /// X-Forwarded-Proto, X-Forwarded-Host and Client-Cert of such a sender are always overwritten.
    forwarded: Word<Forwarded> = Word(Forwarded::default());
    /// Keep header fields whose names contain an underscore, such as Client_Cert. Many applications read them as the field with
    /// hyphens, so they are dropped by default.
    underscores_in_headers: bool = false;
    /// Keep header fields of any other sender that may tell an application another URL, such as X-Forwarded-Prefix;
    /// docs/operate/clients.md lists them. Dropped by default.
    url_fields_in_headers: bool = false;
}

keys! {
    /// `[node.trust]`.
    table NodeTrustSection;

    /// Relays before the node whose identity fields are believed, as "10.0.0.2" or "10.0.0.0/24": switches and
    /// load balancers. They may also ask for reports.
    /// From them X-Forwarded-For, Forwarded, X-Forwarded-Proto, X-Forwarded-Host and Client-Cert are kept as they are. List only
    /// relays that set these fields themselves, and that clients cannot pass by.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    relays: Texts, entries 1024, example ["10.0.0.2", "2001:db8::/32"], reload true;
    /// Addresses of balancers before the node that announce with the PROXY protocol (1 or 2) whom each connection is from, as
    /// "10.0.0.0/8". From them every connection must begin with it; from others none may.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    proxy_protocol_from: Texts, entries 1024, example ["10.0.0.0/8", "2001:db8::/32"], reload true;
    /// X-Forwarded-For of any other sender: "append" its address, or "overwrite" the field. Forwarded (where present),
    /// X-Forwarded-Proto, X-Forwarded-Host and Client-Cert of such a sender are always overwritten.
    forwarded: Word<Forwarded> = Word(Forwarded::default()), reload true;
    /// Keep header fields whose names contain an underscore, such as Client_Cert. Many applications read them as the field with
    /// hyphens, so they are dropped by default.
    underscores_in_headers: bool = false, reload true;
    /// Keep header fields of any other sender that may tell an application another URL, such as X-Forwarded-Prefix;
    /// docs/operate/clients.md lists them. Dropped by default.
    url_fields_in_headers: bool = false, reload true;
}

/// The rules for header fields of requests as they enter. `role` is "switch" or "node".
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
