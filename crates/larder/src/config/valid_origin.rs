//! `[node.origin]`, checked and turned into what the node is told.

use larder_node::{ClientNoCache, HostHeader, OriginConfig};

use super::error::Fault;
use super::explain::suggest;
use super::raw_origin::RawOrigin;

pub(super) fn origin(raw: &RawOrigin) -> Result<OriginConfig, Fault> {
    let url = raw.url.parse().map_err(|_| {
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
    let origin = OriginConfig {
        url,
        host,
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
        client_no_cache,
        idle_max: raw.idle_max,
        idle_timeout: raw.idle_timeout.0,
        head_bytes_max: usize::try_from(raw.head_max.0.get()).unwrap_or(usize::MAX),
        headers_max: raw.headers_max,
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
    fn each_mistake_is_named_with_its_line() {
        let with = |rest: &str| format!("{HEAD}url = \"http://app:8000\"\n{rest}");
        let cases = [
            (HEAD.to_owned(), 3, "node.origin.url", "http://"),
            (format!("{HEAD}url = \"app 8000\"\n"), 4, "node.origin.url", "http://"),
            (format!("{HEAD}url = \"https://app\"\n"), 4, "node.origin.url", "TLS"),
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
