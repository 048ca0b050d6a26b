//! `[node.origin]`, checked and turned into what the node is told.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use larder_edge::{CertificateFault, OutboundTls, read_secret};
use larder_node::{ClientNoCache, Failover, HostHeader, OriginConfig, OriginTls, is_reserved};

use super::error::Fault;
use super::explain::suggest;
use super::raw_origin::RawOrigin;
use super::raw_origin_failover::RawOriginFailover;
use super::raw_origin_field::{InFile, RawOriginField};
use super::raw_origin_tls::RawOriginTls;
use super::valid_origin_sign::signing;
use super::valid_outbound::outbound;

pub(super) fn origin(raw: &RawOrigin) -> Result<OriginConfig, Fault> {
    let url: Uri = raw.url.parse().map_err(|_| {
        Fault::new("node.origin.url", format!("'{}' is no URL", raw.url.escape_debug()))
            .hint("write url = \"http://127.0.0.1:8000\"")
    })?;
    let host = match raw.host.as_str() {
        "client" => HostHeader::Client,
        "origin" => HostHeader::Origin,
        other => {
            return Err(Fault::new("node.origin.host", format!("unknown value '{other}'"))
                .hint(suggest(other, &["client", "origin"])));
        }
    };
    let client_no_cache = match raw.client_no_cache.as_str() {
        "honour" => ClientNoCache::Honour,
        "ignore" => ClientNoCache::Ignore,
        other => {
            return Err(Fault::new("node.origin.client_no_cache", format!("unknown value '{other}'"))
                .hint(suggest(other, &["honour", "ignore"])));
        }
    };
    if raw.sign.is_some() && host == HostHeader::Client {
        let what = "'client' lets clients choose the host of signed requests, and by it any bucket that the keys reach";
        return Err(Fault::new("node.origin.host", what).hint("write host = \"origin\""));
    }
    let (tls, fields) = (tls(&url, raw.tls.as_ref())?, fields(&raw.headers)?);
    let failover = raw.failover.as_ref().map(failover).transpose()?;
    certifiable(tls.as_ref(), failover.as_ref())?;
    let origin = OriginConfig {
        url,
        tls,
        failover,
        host,
        fields,
        sign: raw.sign.as_ref().map(signing).transpose()?,
        connect_timeout: raw.connect_timeout.0,
        head_timeout: raw.head_timeout.0,
        body_timeout: raw.body_timeout.0,
        request_body_timeout: raw.request_body_timeout.0,
        body_rate_min: raw.body_rate_min.0.get(),
        stream_timeout: raw.stream_timeout.0,
        requests_max: raw.requests_max,
        client_share: raw.client_share,
        prefix_v4: raw.prefix_v4,
        prefix_v6: raw.prefix_v6,
        queue_max: raw.queue_max,
        queue_timeout: raw.queue_timeout.0,
        tunnels_max: raw.tunnels_max,
        tunnel_idle_timeout: raw.tunnel_idle_timeout.0,
        client_no_cache,
        idle_max: raw.idle_max,
        idle_timeout: raw.idle_timeout.0,
        head_bytes_max: usize::try_from(raw.head_max.0.get()).unwrap_or(usize::MAX),
        headers_max: raw.headers_max,
        range_fill: raw.range_fill,
        variants_max: raw.variants_max,
        negative: raw.negative.0,
        stale_if_error: raw.stale_if_error.0,
    };
    origin.check().map_err(|error| {
        let key = error.field.replace("_bytes_max", "_max");
        match key.as_str() {
            "origin.url" => Fault::of_value("node.origin.url", "cannot be an origin")
                .hint(format!("write {}", error.expected)),
            _ => Fault::out_of_range(format!("node.{key}"), error.expected),
        }
    })?;
    Ok(origin)
}

/// The warning about an origin that works and is odd, if there is one.
pub(super) fn odd(origin: &OriginConfig) -> Option<Fault> {
    if origin.tls.is_none() || origin.host == HostHeader::Origin {
        return None;
    }
    let host = origin.url.host().unwrap_or_default();
    let what = format!(
        "'client' sends an https origin the host that clients name, while TLS is for {host}: most origins refuse \
         such requests (421, 404)"
    );
    let hint = "write host = \"origin\", unless the origin serves the hosts of all clients";
    Some(Fault::new("node.origin.host", what).hint(hint))
}

/// Whether a certificate can be for each origin that stands in for the first one.
fn certifiable(tls: Option<&OriginTls>, failover: Option<&Failover>) -> Result<(), Fault> {
    let urls = failover.into_iter().flat_map(|failover| &failover.urls).enumerate();
    for (nth, url) in urls {
        if let Some(Err(fault)) = tls.map(|tls| tls.files.server_name(url.host().unwrap_or_default())) {
            let key = format!("node.origin.failover.urls[{nth}]");
            return Err(Fault::new(key, fault.to_string()).hint("set name in [node.origin.tls]"));
        }
    }
    Ok(())
}

fn failover(raw: &RawOriginFailover) -> Result<Failover, Fault> {
    const AT: &str = "node.origin.failover";
    let urls = raw.urls.0.iter().enumerate().map(|(nth, text)| {
        text.parse::<Uri>().map_err(|_| {
            Fault::new(format!("{AT}.urls[{nth}]"), format!("'{}' is no URL", text.escape_debug()))
                .hint("write urls = [\"http://10.0.0.2:8000\"]")
        })
    });
    let statuses = raw.statuses.iter().enumerate().map(|(nth, status)| {
        StatusCode::from_u16(*status).map_err(|_| {
            Fault::new(format!("{AT}.statuses[{nth}]"), format!("{status} is no status")).hint("500 to 599")
        })
    });
    Ok(Failover {
        urls: urls.collect::<Result<_, _>>()?,
        statuses: statuses.collect::<Result<_, _>>()?,
        pause: raw.pause.0,
        pause_max: raw.pause_max.0,
    })
}

/// The fields that requests to the origin are given, those in files read.
fn fields(raw: &BTreeMap<String, RawOriginField>) -> Result<HeaderMap, Fault> {
    let mut fields = HeaderMap::new();
    for (name, value) in raw {
        let key = format!("node.origin.headers.{name}");
        let field = HeaderName::try_from(name).map_err(|_| {
            Fault::new(&key, format!("'{}' cannot be a field's name", name.escape_debug()))
                .hint("letters, digits and hyphens, such as X-Token")
        })?;
        if is_reserved(&field) {
            let what = "is the node's own to set: it belongs to a connection, a message or what is stored";
            return Err(Fault::new(key, what).hint("leave it out; host = \"origin\" sets Host"));
        }
        let (text, place) = match value {
            RawOriginField::Text(text) => (text.clone(), "the value".to_owned()),
            RawOriginField::File(InFile { file }) => {
                (read_secret(Path::new(file)).map_err(in_file(&key))?, file.clone())
            }
        };
        let mut value = HeaderValue::try_from(text).map_err(|_| {
            Fault::new(
                &key,
                format!("{place} cannot stand in a header: it has a line end or another control character"),
            )
            .hint("one line of printable characters")
        })?;
        value.set_sensitive(true);
        if fields.insert(field, value).is_some() {
            return Err(
                Fault::new(key, "is there twice, in other letters").hint("names are the same in any case")
            );
        }
    }
    Ok(fields)
}

/// A file with a secret that cannot be used. The error names the file and not the secret.
fn in_file(key: &str) -> impl Fn(CertificateFault) -> Fault {
    move |fault| {
        let hint = "a file with one line, which only its owner may read";
        Fault::new(key, fault.to_string()).hint(hint).of_machine()
    }
}

fn tls(url: &Uri, raw: Option<&RawOriginTls>) -> Result<Option<OriginTls>, Fault> {
    const AT: &str = "node.origin.tls";
    if url.scheme_str() != Some("https") {
        return match raw {
            None => Ok(None),
            Some(_) => Err(Fault::new(AT, "is not used: the url does not say https")
                .hint("write url = \"https://HOST\", or leave [node.origin.tls] out")),
        };
    }
    let raw = raw.cloned().unwrap_or_default();
    let files = OutboundTls {
        authorities: raw.ca.map(PathBuf::from),
        name: raw.name,
        certificate: raw.certificate.map(PathBuf::from),
        key: raw.key.map(PathBuf::from),
        ..OutboundTls::default()
    };
    let loaded = outbound(AT, &files, "node")?;
    if let Err(fault) = loaded.server_name(url.host().unwrap_or_default()) {
        return Err(Fault::new("node.origin.url", fault.to_string()).hint("set name in [node.origin.tls]"));
    }
    let (handshake_timeout, http2) = (raw.handshake_timeout.0, raw.http2);
    Ok(Some(OriginTls { handshake_timeout, http2, ..OriginTls::new(loaded) }))
}

#[cfg(test)]
mod tests {
    use super::super::Written;
    use larder_node::StoreConfig;

    const HEAD: &str = "[node]\nlisten = \"127.0.0.1:1\"\n[node.origin]\n";

    #[test]
    fn a_url_is_enough() {
        let text = format!("{HEAD}url = \"http://app:8000\"\n");
        let node = Written::parse("f", &text).unwrap().validate().unwrap().node.unwrap().node;
        let StoreConfig::Origin(origin) = node.store else { panic!("it is an origin") };
        assert_eq!(origin.url, "http://app:8000");
    }

    #[test]
    fn fields_are_read_from_their_files_and_no_error_tells_a_secret() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let text = format!(
            "{HEAD}url = \"http://a\"\nheaders = {{ Authorization = {{ file = {file:?} }}, X-A = \"1\" }}\n"
        );
        let read = |secret: &str, mode| {
            let _ = std::fs::remove_file(&file);
            std::fs::write(&file, secret).unwrap();
            std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            let valid = Written::parse("f", &text).unwrap().validate();
            valid.map(|config| match config.node.unwrap().node.store {
                StoreConfig::Origin(origin) => origin.fields,
                _ => panic!("it is an origin"),
            })
        };
        let fields = read("Bearer s3cret\n", 0o600).unwrap();
        assert_eq!(
            (&fields["authorization"], &fields["x-a"]),
            (&"Bearer s3cret".parse().unwrap(), &"1".parse().unwrap())
        );
        assert!(!format!("{fields:?}").contains("s3cret"));
        for (secret, mode, word) in
            [("s3cret\nX: y", 0o600, "line end"), ("s3cret", 0o644, "chmod 600"), ("", 0o600, "is empty")]
        {
            let error = read(secret, mode).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(word) && text.contains("headers.Authorization"), "{text}");
            assert!(!text.contains("s3cret"), "{text}");
        }
    }

    #[test]
    fn a_value_of_another_kind_is_not_told() {
        for line in [
            "headers = \"Bearer s3cret\"",
            "headers = [\"Bearer s3cret\"]",
            "headers = { Authorization = [\"Bearer s3cret\"] }",
            "headers = { Authorization = { file = [\"s3cret\"] } }",
            "headers = { Authorization = \"Bearer s3cret }",
            "headers = { Authorization = Bearer s3cret }",
        ] {
            let text = format!("{HEAD}url = \"http://a\"\n{line}\n");
            let error = Written::parse("f", &text).unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    /// `line` stands in `[node.origin]` below this url.
    fn refused((url, line): (&str, &str), (key, word): (&str, &str)) {
        let text = format!("{HEAD}url = \"{url}\"\n{line}\n");
        let error = Written::parse("f", &text).and_then(|written| written.validate()).unwrap_err();
        assert_eq!(
            (error.line, error.key.as_str()),
            (Some(5), format!("node.origin.{key}").as_str()),
            "{text}\n{error}"
        );
        assert!(error.to_string().contains(word), "{text}\n{error}");
    }

    #[test]
    fn each_mistake_in_tls_is_named() {
        refused(("http://app", "tls = { ca = \"/x\" }"), ("tls", "https"));
        for (line, key, word) in [
            ("tls = { ca = \"/no/such\" }", "tls.ca", "/no/such: cannot be read"),
            ("tls = { key = \"/no/such\" }", "tls.key", "certificate"),
            ("tls = { certificate = \"/no/such\" }", "tls.certificate", "/no/such"),
            ("tls = { name = \"a b\" }", "tls.name", "not a name"),
            ("tls = { http2 = true }", "tls.http2", "host = \"origin\""),
            ("tls = { handshake_timeout = \"0s\" }", "tls.handshake_timeout", "1 ms"),
            ("tls = { verify = false }", "tls.verify", "is a key of [switch"),
        ] {
            refused(("https://app", line), (key, word));
        }
    }

    #[test]
    fn an_https_origin_that_is_sent_the_hosts_of_clients_is_odd() {
        for (url, line, odd) in [
            ("https://store.test", "", true),
            ("https://store.test", "host = \"client\"\n", true),
            ("https://store.test", "host = \"origin\"\n", false),
            ("http://store.test", "", false),
        ] {
            let written = Written::parse("f", &format!("{HEAD}url = \"{url}\"\n{line}")).unwrap();
            let warnings = written.warnings(&written.validate().unwrap());
            assert_eq!(warnings.len(), usize::from(odd), "{url} {line}");
            assert!(
                warnings.iter().all(|odd| odd.to_string().contains("TLS is for store.test")),
                "{warnings:?}"
            );
        }
    }

    #[test]
    fn each_mistake_in_fields_is_named() {
        for (line, key, word) in [
            ("headers = { Range = \"bytes=0-\" }", "headers.Range", "the node's own"),
            ("headers = { Host = \"a\" }", "headers.Host", "host = \"origin\""),
            ("headers = { Content-Length = \"1\" }", "headers.Content-Length", "own"),
            ("headers = { Connection = \"x\" }", "headers.Connection", "own"),
            ("headers = { \"a b\" = \"x\" }", "headers.a b", "name"),
            ("headers = { X-A = \"x\\r\\nY: z\" }", "headers.X-A", "line end"),
            ("headers = { X-A = { file = \"/no/such\" } }", "headers.X-A", "/no/such: cannot be read"),
            ("headers = { X-A = 1 }", "headers.X-A", "{ file = \"FILE\" }"),
            ("headers = { X-A = \"1\", x-a = \"2\" }", "headers.x-a", "twice"),
        ] {
            refused(("http://app", line), (key, word));
        }
    }

    #[test]
    fn each_mistake_in_failover_is_named() {
        for (line, key, word) in [
            ("failover = {}", "failover.urls", "1 to 16"),
            ("failover = { urls = \"https://b\" }", "failover.urls", "scheme"),
            ("failover = { urls = [\"http://b\", \"b c\"] }", "failover.urls[1]", "no URL"),
            ("failover = { urls = \"http://b\", statuses = [404] }", "failover.statuses", "500"),
            ("failover = { urls = \"http://b\", pause = \"0s\" }", "failover.pause", "1 ms"),
            ("failover = { urls = \"http://b\", pause = \"2m\" }", "failover.pause_max", "pause to"),
        ] {
            refused(("http://app", line), (key, word));
        }
    }

    #[test]
    fn an_origin_that_no_certificate_can_be_for_is_named() {
        let line = "failover = { urls = [\"https://b\", \"https://a..b\"] }";
        refused(("https://app", line), ("failover.urls[1]", "set name in [node.origin.tls]"));
    }

    #[test]
    fn each_mistake_is_named_with_its_line() {
        let with = |rest: &str| format!("{HEAD}url = \"http://app:8000\"\n{rest}");
        let cases = [
            (HEAD.to_owned(), 3, "node.origin.url", "http://"),
            (format!("{HEAD}url = \"app 8000\"\n"), 4, "node.origin.url", "http://"),
            (format!("{HEAD}url = \"ftp://app\"\n"), 4, "node.origin.url", "https://host:port"),
            (format!("{HEAD}url = \"http://app/path\"\n"), 4, "node.origin.url", "without a path"),
            (with("host = \"cliant\"\n"), 5, "node.origin.host", "did you mean 'client'"),
            (with("head_timeout = \"0s\"\n"), 5, "node.origin.head_timeout", "1 ms"),
            (with("client_share = 0\n"), 5, "node.origin.client_share", "1 to 100 percent"),
            (
                with("client_no_cache = \"ignored\"\n"),
                5,
                "node.origin.client_no_cache",
                "did you mean 'ignore'",
            ),
            (with("head_max = \"1KiB\"\n"), 5, "node.origin.head_max", "8 KiB"),
            (with("variant_max = 3\n"), 5, "node.origin.variant_max", "did you mean 'variants_max'"),
            (
                "[node]\nlisten = \"[::]:1\"\nroot = \"/\"\norigin = { url = \"http://a\" }\n".to_string(),
                4,
                "node.origin",
                "root",
            ),
        ];
        for (text, line, key, word) in cases {
            let error = Written::parse("f", &text).and_then(|written| written.validate()).unwrap_err();
            assert_eq!((error.line, error.key.as_str()), (Some(line), key), "{text}\n{error}");
            assert!(error.to_string().contains(word), "{text}\n{error}");
        }
    }
}
