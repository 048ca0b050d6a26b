//! Whether a request that changes something may be from a web page.
//!
//! Any page can make its visitor's browser send a POST to an address that the browser reaches and the page's server does
//! not. Browsers say with each POST which origin it is from. One that says so is let through only if three things hold:
//! the origin is the host that was asked; that host is an IP address or `localhost`, since a name of a stranger's may lead
//! here as well as to his own server (DNS rebinding); and the header `larder-admin` is there, which a page cannot add for
//! another origin unless that one allows it, as we never do. What says nothing of an origin is no browser.
//!
//! Reading needs no origin: for a browser that has been led to 127.0.0.1 by a stranger's name, this is that stranger's own
//! server. So what arrives over loopback is answered only if the host that was asked is an address or `localhost`. Elsewhere
//! names are what this machine is found by (a scraper's, a cluster's), and nobody can tell them from a stranger's.

use std::net::{IpAddr, SocketAddr};

use hyper::HeaderMap;
use hyper::header::{HOST, HeaderValue, ORIGIN};

/// The header that the page adds.
const MARK: &str = "larder-admin";

/// Whether a POST with these fields may change anything.
pub(super) fn may_change(headers: &HeaderMap) -> bool {
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

/// Whether a request with these fields may be answered; `is_loopback` if it was sent to an address of the loopback network.
pub(super) fn may_read(headers: &HeaderMap, is_loopback: bool) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let is_own = |host: &HeaderValue| host.to_str().is_ok_and(is_own_name);
    !is_loopback || hosts.all(is_own)
}

/// Whether a host is an address or this machine's own name for itself, with or without a port.
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
        may_change(
            &fields.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect(),
        )
    }

    #[test]
    fn over_loopback_only_own_names_are_answered() {
        let asked = |host: &str| [(HOST, host.parse().unwrap())].into_iter().collect();
        for host in ["127.0.0.1:9900", "[::1]:9900", "localhost:9900", "localhost"] {
            assert!(may_read(&asked(host), true), "{host}");
        }
        for host in ["evil.example:9900", "localhost.evil.example", ""] {
            assert!(!may_read(&asked(host), true), "{host}");
            assert!(may_read(&asked(host), false), "{host}");
        }
        assert!(may_read(&HeaderMap::new(), true), "HTTP/1.0");
    }

    #[test]
    fn only_the_page_itself_and_what_is_no_browser_may_change_things() {
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
        // A name that its owner lets lead here: the browser takes both for one origin.
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
