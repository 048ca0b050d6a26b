use super::*;
use http::{HeaderMap, HeaderName, HeaderValue};

fn map(fields: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
    }
    headers
}

fn sender() -> Sender<'static> {
    let address = [192, 0, 2, 1].into();
    Sender { address, trusted: false, secure: false, host: None, client_cert: None }
}

fn list(mode: Forwarded, name: &str, before: &[&str]) -> Vec<String> {
    let mut headers = map(&before.iter().map(|value| (name, *value)).collect::<Vec<_>>());
    let rules = EntryRules { forwarded: mode, ..EntryRules::default() };
    let host = HeaderValue::from_static("a.test");
    rules.identify(&mut headers, Sender { host: Some(host.as_bytes()), ..sender() });
    headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
}

#[test]
fn untrusted_sender_is_the_last_address() {
    for (before, after) in [
        (&[][..], "192.0.2.1"),
        (&["198.51.100.2"], "198.51.100.2, 192.0.2.1"),
        (&["198.51.100.2, 203.0.113.3", "10.0.0.1"], "198.51.100.2, 203.0.113.3, 10.0.0.1, 192.0.2.1"),
        (&["192.0.2.1"], "192.0.2.1"),
        (&["192.0.2.1, 10.0.0.1"], "192.0.2.1, 10.0.0.1, 192.0.2.1"),
        (&["2192.0.2.1"], "2192.0.2.1, 192.0.2.1"),
        (&[""], "192.0.2.1"),
    ] {
        assert_eq!(list(Forwarded::Append, "x-forwarded-for", before), [after], "{before:?}");
        assert_eq!(list(Forwarded::Overwrite, "x-forwarded-for", before), ["192.0.2.1"], "{before:?}");
    }
}

#[test]
fn forwarded_of_an_untrusted_sender_is_replaced_if_present() {
    let own = "for=192.0.2.1;host=\"a.test\";proto=http";
    for mode in Forwarded::ALL {
        assert!(list(mode, "forwarded", &[]).is_empty());
        for said in [
            &["for=x"][..],
            &["host=evil.test;proto=https"],
            &["for=x", "for=y;proto=https, for=z"],
            &["for=\"x"],
            &[""],
            &[own],
        ] {
            assert_eq!(list(mode, "forwarded", said), [own], "{mode:?} {said:?}");
        }
    }
    let v6 = forwarded_element("2001:db8::1".parse().unwrap(), "https", None);
    assert_eq!(v6, "for=\"[2001:db8::1]\";proto=https");
}

const LIES: [(&str, &str); 4] = [
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "bank.test"),
    ("client-cert", ":AA==:"),
    ("client-cert-chain", ":AA==:"),
];

#[test]
fn untrusted_sender_cannot_set_scheme_host_or_certificate() {
    let mut headers = map(&LIES);
    EntryRules::default().identify(&mut headers, sender());
    assert_eq!(headers, map(&[("x-forwarded-proto", "http"), ("x-forwarded-for", "192.0.2.1")]));
    let (host, cert) = (HeaderValue::from_static("a.test"), HeaderValue::from_static(":AQ==:"));
    let shown =
        Sender { secure: true, host: Some(host.as_bytes()), client_cert: Some(cert.as_bytes()), ..sender() };
    let mut headers = map(&LIES);
    EntryRules::default().identify(&mut headers, shown);
    let expected = [
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "a.test"),
        ("client-cert", ":AQ==:"),
        ("x-forwarded-for", "192.0.2.1"),
    ];
    assert_eq!(headers, map(&expected));
}

const URL_VALUES: [(&str, &str); 8] = [
    ("x-forwarded-scheme", "https"),
    ("x-forwarded-ssl", "on"),
    ("x-forwarded-port", "8443"),
    ("x-forwarded-port", "8444"),
    ("x-forwarded-prefix", "/bank"),
    ("front-end-https", "on"),
    ("x-original-url", "/admin"),
    ("x-rewrite-url", "/admin"),
];

#[test]
fn untrusted_sender_cannot_set_another_url() {
    let mut headers = map(&URL_VALUES);
    assert_eq!(EntryRules::default().identify(&mut headers, sender()), 8);
    assert_eq!(headers, map(&[("x-forwarded-proto", "http"), ("x-forwarded-for", "192.0.2.1")]));
    let keeping = EntryRules { url_fields: true, ..EntryRules::default() };
    for (rules, trusted) in [(keeping, false), (EntryRules::default(), true)] {
        let mut headers = map(&URL_VALUES);
        assert_eq!(rules.identify(&mut headers, Sender { trusted, ..sender() }), 0);
        assert!(URL_VALUES.iter().all(|(name, _)| headers.contains_key(*name)), "{headers:?}");
    }
}

#[test]
fn fields_of_a_trusted_relay_are_kept() {
    let own = HeaderValue::from_static(":of-the-relay:");
    let relay = Sender { trusted: true, client_cert: Some(own.as_bytes()), ..sender() };
    let mut said = map(&LIES);
    said.insert("x-forwarded-for", HeaderValue::from_static("198.51.100.2"));
    said.insert("forwarded", HeaderValue::from_static("for=198.51.100.2"));
    let mut headers = said.clone();
    EntryRules::default().identify(&mut headers, relay);
    assert_eq!(headers, said);
    let mut silent = HeaderMap::new();
    EntryRules::default().identify(&mut silent, Sender { secure: true, ..relay });
    assert_eq!(silent, map(&[("x-forwarded-proto", "https")]), "the relay's certificate is no client's");
}

#[test]
fn names_with_an_underscore_are_dropped_and_counted() {
    let fields = [("client_cert", "1"), ("client_cert", "2"), ("x_a", "3"), ("x-a", "4")];
    let mut headers = map(&fields);
    assert_eq!(EntryRules::default().drop_underscores(&mut headers), 3);
    assert_eq!(headers, map(&[("x-a", "4")]));
    let mut headers = map(&fields);
    let keeping = EntryRules { underscores: true, ..EntryRules::default() };
    assert_eq!(keeping.drop_underscores(&mut headers), 0);
    assert_eq!(headers, map(&fields));
}
