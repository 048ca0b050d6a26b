//! `[node.origin]`, `[node.origin.failover]` and `[node.origin.tls]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use larder_core::Bytes;
use larder_edge::{CertificateFault, OutboundTls, read_secret};
use larder_node::{ClientNoCache, Failover, HostHeader, OriginConfig, OriginTls, is_reserved};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::sections::node::origin_field::{InFile, OriginField};
use crate::config::sections::node::origin_sign::{OriginSignSection, signing};
use crate::config::sections::outbound::outbound;
use crate::config::text::{Size, Span, Texts};
use crate::config::words::Word;

keys! {
    /// `[node.origin]`.
    table OriginSection, origin = OriginConfig::new(Uri::default());

    /// URL of the origin, without a path: "http://host:port" or "https://host:port". Required.
    url: String, example "http://127.0.0.1:8000";
    /// Host header that the origin gets: "client" is the host that the client named, and hosts are cached separately.
    /// "origin" is the host of the URL.
    host: Word<HostHeader> = Word(HostHeader::Client);
    /// Header fields of each request to the origin; they replace those of clients. A value is text, or { file =
    /// "FILE" }. A file contains a value such as a token and is readable by its owner only. Files are read at the
    /// start and at each reload.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, OriginField>, example example_headers(), reload true;
    /// Time to connect to the origin. After it: 504.
    connect_timeout: Span = Span(origin.connect_timeout), range "1ms to 1h", reload true;
    /// Time from a request to the header of the reply. After it: 504.
    head_timeout: Span = Span(origin.head_timeout), range "1ms to 1h", reload true;
    /// Time without a byte of a reply's body. After it, the reply is aborted. It also limits the time in which the
    /// origin takes no byte of a request. After that: 504.
    body_timeout: Span = Span(origin.body_timeout), range "1ms to 1h", reload true;
    /// Time without a byte of a request's body from its client. After it: 408.
    request_body_timeout: Span = Span(origin.request_body_timeout), range "1ms to 1h", reload true;
    /// Lowest rate of a body in bytes per second, in either direction, over the time that its sender may be silent. A
    /// slower body has the outcome of a silent one. "0B": any rate.
    body_rate_min: Size = Size(Bytes(origin.body_rate_min)), range "0B to 1GiB", reload true;
    /// Time that a reply to one client, such as an event stream, may be slower than body_rate_min. After it, the
    /// reply is aborted.
    stream_timeout: Span = Span(origin.stream_timeout), range "body_timeout to 1d", reload true;
    /// Number of concurrent requests to the origin: its slots.
    requests_max: usize = origin.requests_max, range "1 to 1000000", reload true;
    /// Percentage of the slots that one client may hold, at least one slot. Further requests of the client wait, and
    /// get 429 after queue_timeout. 100: no share.
    client_share: u8 = origin.client_share, range "1 to 100 percent", reload true;
    /// Length of the IPv4 prefix that counts as one client, in bits.
    prefix_v4: u8 = origin.prefix_v4, range "8 to 32", reload true;
    /// Length of the IPv6 prefix that counts as one client, in bits.
    prefix_v6: u8 = origin.prefix_v6, range "16 to 128", reload true;
    /// Number of requests that wait for a slot. `client_share` applies to them too. Beyond it: 503, or 429 if slots
    /// are free.
    queue_max: usize = origin.queue_max, range "0 to 1000000", reload true;
    /// Longest wait for a slot. After it: 503, or 429 if slots are free and only the client's share is used up.
    queue_timeout: Span = Span(origin.queue_timeout), range "1ms to 1h", reload true;
    /// Number of WebSocket connections through the node. Beyond it: 503, or 429 for a client beyond its share of
    /// them. 0: none, and Upgrade is removed.
    tunnels_max: usize = origin.tunnels_max, range "0 to 1000000", reload true;
    /// Time without a byte on a WebSocket connection. After it, the connection is closed.
    tunnel_idle_timeout: Span = Span(origin.tunnel_idle_timeout), range "1ms to 7d", reload true;
    /// Whether clients can force a request to the origin although a fresh reply is stored: "honour" or "ignore". The
    /// key applies to no-cache, no-store, max-age, min-fresh and Pragma of requests.
    client_no_cache: Word<ClientNoCache> = Word(ClientNoCache::Honour), reload true;
    /// Number of idle connections to the origin that are kept. POST, PATCH and requests with a body always open a new
    /// connection.
    idle_max: usize = origin.idle_max, range "0 to 10000", reload true;
    /// Time for which an idle connection to the origin is kept.
    idle_timeout: Span = Span(origin.idle_timeout), range "1ms to 1d", reload true;
    /// Size of a reply's header. Beyond it: 502.
    head_max: Size = Size(Bytes(origin.head_bytes_max as u64)), range "8KiB to 1MiB", reload true;
    /// Number of header fields of a reply. Beyond it: 502.
    headers_max: usize = origin.headers_max, range "8 to 256", reload true;
    /// Whether a range that missed causes a fetch of the whole target, so that the next range is a hit. With false,
    /// ranges never fill the cache.
    range_fill: bool = origin.range_fill, reload true;
    /// Number of stored variants of one target, for different request headers (Vary). Beyond it, the oldest is
    /// dropped.
    variants_max: usize = origin.variants_max, range "1 to 64", reload true;
    /// Lifetime of replies 404 and 410 that state none. 0s: they are not stored.
    negative: Span = Span(origin.negative), range "0s to 1d", reload true;
    /// Time for which a stale reply may be used if the origin fails, unless the reply states a time itself.
    stale_if_error: Span = Span(origin.stale_if_error), range "0s to 30d", reload true;
    /// Backup origins, which are used while the origin in `url` fails.
    failover: Option<OriginFailoverSection>, reload true;
    /// Signatures for a private bucket (AWS Signature Version 4). A client's signature is replaced. Everyone who
    /// reaches the node has the rights of these keys.
    sign: Option<OriginSignSection>, reload true;
    /// TLS to an origin whose URL begins with https://.
    tls: Option<OriginTlsSection>, reload true;
}

fn example_headers() -> serde_json::Value {
    serde_json::json!({ "Authorization": { "file": "/etc/larder/origin-token" }, "X-Tier": "cache" })
}

keys! {
    /// `[node.origin.failover]`.
    #[derive(PartialEq)]
    table OriginFailoverSection, failover = Failover::new(Vec::new());

    /// URLs of backup origins with the same contents, in order of use. They have the scheme of `url`. Required.
    urls: Texts, entries 16, example ["http://10.0.0.2:8000", "http://10.0.0.3:8000"];
    /// Statuses of a reply that count as a failure of its origin, such as [502, 503, 504].
    statuses: Vec<u16> = failover.statuses.iter().map(http::StatusCode::as_u16).collect(), range "500 to 599";
    /// Time for which a failed origin is not used. It doubles with each further failure.
    pause: Span = Span(failover.pause), range "1ms to 1h";
    /// Longest pause of a failed origin.
    pause_max: Span = Span(failover.pause_max), range "pause to 1d";
}

keys! {
    /// `[node.origin.tls]`.
    #[derive(PartialEq)]
    table OriginTlsSection, handshake_timeout = Span(Duration::from_secs(5));

    /// PEM file with the certificates of the authorities that may sign the origin's certificate. Unset: the
    /// authorities that the system trusts.
    ca: Option<String>, example "/etc/larder/origin-ca.pem";
    /// Name that the origin is asked for (SNI) and that its certificate must have: a host name or an IP address.
    /// Unset: the host of `url`.
    name: Option<String>, example "store.example.internal";
    /// PEM file with the node's own certificate and its chain, for an origin that asks for one (mutual TLS). Files
    /// are read at the start and at each reload.
    certificate: Option<String>, example "/etc/larder/node.pem";
    /// PEM file with the key of `certificate`. Unset: the key is in the file of the certificate.
    key: Option<String>, example "/etc/larder/node.key";
    /// Time for the TLS handshake. After it: 504.
    handshake_timeout: Span = handshake_timeout, range "1ms to 1h";
    /// Whether HTTP/2 is offered to the origin (ALPN). It needs host = "origin". GET, HEAD and similar requests then
    /// share one connection. POST, PATCH and requests with a body use HTTP/1.1.
    http2: bool = false;
}

pub(crate) fn origin(raw: &OriginSection) -> Result<OriginConfig, Fault> {
    let url: Uri = raw.url.parse().map_err(|_| {
        Fault::new("node.origin.url", format!("'{}' is no URL", raw.url.escape_debug()))
            .hint("write url = \"http://127.0.0.1:8000\"")
    })?;
    let host = raw.host.0;
    if raw.sign.is_some() && host == HostHeader::Client {
        let what = "'client' lets clients choose the host of signed requests, and so any bucket that the keys can access";
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
        client_no_cache: raw.client_no_cache.0,
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
        let fault = Fault::new(format!("node.{}", error.field), "cannot be used");
        match error.field {
            "origin.url" => {
                let what = format!("'{}' cannot be an origin", raw.url.escape_debug());
                Fault::new("node.origin.url", what).hint(format!("write {}", error.expected))
            }
            _ => fault.hint(error.expected),
        }
    })?;
    Ok(origin)
}

/// Returns a warning if the origin's settings are valid but unusual.
pub(crate) fn odd(origin: &OriginConfig) -> Option<Fault> {
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

/// Checks that each backup origin has a host that a certificate can contain.
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

fn failover(raw: &OriginFailoverSection) -> Result<Failover, Fault> {
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

/// Returns the header fields of requests to the origin. Values in files are read.
fn fields(raw: &BTreeMap<String, OriginField>) -> Result<HeaderMap, Fault> {
    let mut fields = HeaderMap::new();
    for (name, value) in raw {
        let key = format!("node.origin.headers.{name}");
        let field = HeaderName::try_from(name).map_err(|_| {
            Fault::new(&key, format!("'{}' cannot be a field's name", name.escape_debug()))
                .hint("letters, digits and hyphens, such as X-Token")
        })?;
        if is_reserved(&field) {
            let what = "is one of the node's own fields: it belongs to the connection, the message or the stored reply";
            return Err(Fault::new(key, what).hint("leave it out; host = \"origin\" sets Host"));
        }
        let (text, place) = match value {
            OriginField::Text(text) => (text.clone(), "the value".to_owned()),
            OriginField::File(InFile { file }) => {
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
            return Err(Fault::new(key, "is given twice, in different case")
                .hint("the case of a name does not matter: leave one of them out"));
        }
    }
    Ok(fields)
}

/// Returns the fault of a file with a secret. The fault contains the file's name and not the secret.
fn in_file(key: &str) -> impl Fn(CertificateFault) -> Fault {
    move |fault| {
        let hint = "a file with one line, which only its owner may read";
        Fault::new(key, fault.to_string()).hint(hint).of_machine()
    }
}

fn tls(url: &Uri, raw: Option<&OriginTlsSection>) -> Result<Option<OriginTls>, Fault> {
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
    use crate::config::Written;
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

    /// Checks that `line` in `[node.origin]`, below this url, is refused.
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
            ("tls = { handshake_timeout = \"0s\" }", "tls.handshake_timeout", "1ms"),
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
            ("failover = { urls = \"http://b\", statuses = [404] }", "failover.statuses[0]", "500"),
            ("failover = { urls = \"http://b\", pause = \"0s\" }", "failover.pause", "1ms"),
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
            (with("head_timeout = \"0s\"\n"), 5, "node.origin.head_timeout", "1ms"),
            (with("client_share = 0\n"), 5, "node.origin.client_share", "1 to 100 percent"),
            (
                with("client_no_cache = \"ignored\"\n"),
                5,
                "node.origin.client_no_cache",
                "did you mean 'ignore'",
            ),
            (with("head_max = \"1KiB\"\n"), 5, "node.origin.head_max", "8KiB"),
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
