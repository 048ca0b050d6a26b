//! Protection of the admin interface against requests of foreign web pages.
//!
//! Any web page can make its visitor's browser send a POST to an address that only the browser reaches.
//! Browsers add the page's origin to each POST. A request with an origin is accepted only if three conditions
//! hold. The origin equals the requested host. The host is an IP address or `localhost`, because a foreign
//! name may resolve to this machine (DNS rebinding). The header `larder-admin` is present, which a page of
//! another origin cannot add without our permission. A request without an origin is not from a browser.
//!
//! Reads need no origin. With DNS rebinding the browser believes that this interface belongs to the page's
//! own site. Therefore a request over loopback is answered only if the requested host is an IP address or
//! `localhost`. On other addresses any name is accepted, because scrapers use the names of the cluster.

use std::net::{IpAddr, SocketAddr};

use hyper::HeaderMap;
use hyper::header::{HOST, HeaderValue, ORIGIN};

/// Header that the page adds to each POST.
const MARK: &str = "larder-admin";

/// Whether a POST with these headers may change anything.
pub(super) fn is_change_permitted(headers: &HeaderMap) -> bool {
    if !headers.contains_key(ORIGIN) {
        return headers.get("sec-fetch-site").is_none_or(|site| site != "cross-site");
    }
    let one = |name| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none()).and_then(|value| value.to_str().ok())
    };
    let (Some(origin), Some(host)) = (one(ORIGIN), one(HOST)) else { return false };
    let from = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    from.is_some_and(|from| from.eq_ignore_ascii_case(host))
        && is_own_name(host)
        && headers.get(MARK).is_some_and(|mark| mark == "1")
}

/// Whether a request with these headers may be answered. `is_loopback` is true if the request was sent to a
/// loopback address.
pub(super) fn is_read_permitted(headers: &HeaderMap, is_loopback: bool) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let is_own = |host: &HeaderValue| host.to_str().is_ok_and(is_own_name);
    !is_loopback || hosts.all(is_own)
}

/// Whether a host is an IP address or `localhost`, with or without a port.
fn is_own_name(host: &str) -> bool {
    let bare = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    let name = bare.map_or(host, |(name, _)| name);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok()
        || host.parse::<SocketAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(fields: &[(&'static str, &str)]) -> bool {
        is_change_permitted(
            &fields.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect(),
        )
    }

    #[test]
    fn over_loopback_only_own_names_are_answered() {
        let asked = |host: &str| [(HOST, host.parse().unwrap())].into_iter().collect();
        for host in ["127.0.0.1:9900", "[::1]:9900", "localhost:9900", "localhost"] {
            assert!(is_read_permitted(&asked(host), true), "{host}");
        }
        for host in ["evil.example:9900", "localhost.evil.example", ""] {
            assert!(!is_read_permitted(&asked(host), true), "{host}");
            assert!(is_read_permitted(&asked(host), false), "{host}");
        }
        assert!(is_read_permitted(&HeaderMap::new(), true), "HTTP/1.0");
    }

    #[test]
    fn only_the_page_itself_and_other_programs_may_make_changes() {
        let mark = (MARK, "1");
        for host in ["127.0.0.1:9900", "[::1]:9900", "localhost:9900", "10.0.0.1", "LOCALHOST"] {
            let origin = format!("http://{host}");
            assert!(may(&[("host", host), ("origin", &origin), mark]), "{host}");
            assert!(!may(&[("host", host), ("origin", &origin)]), "{host}, unmarked");
            assert!(
                !may(&[("host", host), ("origin", "http://evil.example"), mark]),
                "{host}, from elsewhere"
            );
            assert!(!may(&[("host", host), ("origin", "null"), mark]), "{host}, from a file");
        }
        // With DNS rebinding the browser takes the page and this interface for one origin.
        for host in
            ["evil.example:9900", "localhost.evil.example", "127.0.0.1.evil.example:9900", "", "1.2.3"]
        {
            assert!(!may(&[("host", host), ("origin", &format!("http://{host}")), mark]), "{host}");
        }
        let twice =
            [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://evil.example"), mark];
        assert!(!may(&twice));
        assert!(may(&[("host", "switch.internal")]), "curl");
        assert!(!may(&[("host", "localhost"), ("sec-fetch-site", "cross-site")]));
    }
}
