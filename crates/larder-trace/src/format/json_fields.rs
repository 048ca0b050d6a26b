//! The keys of JSON lines: a table for each known server, and the keys of the user.

use std::borrow::Cow;
use std::str::FromStr;

use crate::error::TraceError;

/// Largest number of keys in a table. A set of keys is a bit mask.
pub(crate) const KEYS_MAX: usize = 20;

/// The part of a request that the value of a key gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Time,
    Method,
    Path,
    Query,
    /// The method, the target and the protocol, as in a request line.
    Request,
    Status,
    Bytes,
    Client,
}

/// The keys of the log of a server. If a line has several keys for a field, the first one in the table is
/// used.
pub(crate) type KeyTable = &'static [(Field, &'static str)];

/// The keys of [Caddy](https://caddyserver.com/docs/logging).
pub(crate) const CADDY: KeyTable = &[
    (Field::Time, "ts"),
    (Field::Method, "request.method"),
    (Field::Path, "request.uri"),
    (Field::Status, "status"),
    (Field::Bytes, "size"),
    (Field::Client, "request.client_ip"),
    (Field::Client, "request.remote_ip"),
    (Field::Client, "request.remote_addr"),
];

/// The keys of Envoy. The operator chooses them: these are the keys of its documentation, of Istio and of
/// Envoy Gateway.
pub(crate) const ENVOY: KeyTable = &[
    (Field::Time, "start_time"),
    (Field::Method, "method"),
    (Field::Path, "path"),
    (Field::Path, "x-envoy-origin-path"),
    (Field::Path, "x_envoy_original_path"),
    (Field::Status, "response_code"),
    (Field::Bytes, "bytes_sent"),
    (Field::Client, "downstream_remote_address"),
    (Field::Client, "downstream_remote_address_without_port"),
];

/// The keys of the access log of `larder switch` and `larder node`.
pub(crate) const LARDER: KeyTable = &[
    (Field::Time, "time"),
    (Field::Method, "method"),
    (Field::Path, "target"),
    (Field::Status, "status"),
    (Field::Bytes, "body_bytes"),
    (Field::Client, "client"),
];

/// The keys of nginx. The operator chooses them: these are the names of its variables, and usual names of the
/// time and the size.
pub(crate) const NGINX: KeyTable = &[
    (Field::Time, "time_iso8601"),
    (Field::Time, "msec"),
    (Field::Time, "time_local"),
    (Field::Time, "@timestamp"),
    (Field::Time, "timestamp"),
    (Field::Time, "time"),
    (Field::Method, "request_method"),
    (Field::Method, "method"),
    (Field::Path, "request_uri"),
    (Field::Request, "request"),
    (Field::Path, "uri"),
    (Field::Query, "args"),
    (Field::Query, "query_string"),
    (Field::Status, "status"),
    (Field::Bytes, "body_bytes_sent"),
    (Field::Bytes, "bytes_sent"),
    (Field::Bytes, "bytes"),
    (Field::Client, "remote_addr"),
];

/// The keys of [Traefik](https://doc.traefik.io/traefik/observability/access-logs/).
pub(crate) const TRAEFIK: KeyTable = &[
    (Field::Time, "StartUTC"),
    (Field::Time, "StartLocal"),
    (Field::Time, "time"),
    (Field::Method, "RequestMethod"),
    (Field::Path, "RequestPath"),
    (Field::Status, "DownstreamStatus"),
    (Field::Status, "OriginStatus"),
    (Field::Bytes, "DownstreamContentSize"),
    (Field::Bytes, "OriginContentSize"),
    (Field::Client, "ClientHost"),
    (Field::Client, "ClientAddr"),
];

/// The fields by the names that a user gives.
const NAMES: [(&str, Field); 8] = [
    ("time", Field::Time),
    ("method", Field::Method),
    ("path", Field::Path),
    ("query", Field::Query),
    ("request", Field::Request),
    ("status", Field::Status),
    ("bytes", Field::Bytes),
    ("client", Field::Client),
];

/// The keys of other JSON lines, written as `time=ts,path=request.uri,...`.
///
/// The fields are `time`, `method`, `path`, `query`, `request` (a request line), `status`, `bytes` and
/// `client`. One of `path` and `request` is required. Without `method`, every request is a GET. Without
/// `status`, every reply has status 200. Without `bytes`, sizes are unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonFields(Keys);

/// A table of keys, of a server or of the user.
pub(crate) type Keys = Vec<(Field, Cow<'static, str>)>;

impl JsonFields {
    pub(crate) const fn keys(&self) -> &Keys {
        &self.0
    }
}

impl FromStr for JsonFields {
    type Err = TraceError;

    fn from_str(text: &str) -> Result<Self, TraceError> {
        let wrong = |problem: String| Err(TraceError::JsonFields(problem));
        let mut keys = Keys::new();
        for part in text.split(',') {
            let (name, key) = part.split_once('=').unwrap_or((part, ""));
            let Some((_, field)) = NAMES.iter().find(|(known, _)| *known == name.trim()) else {
                let known = NAMES.map(|(known, _)| known).join(", ");
                return wrong(format!("'{}' is not a field; known are {known}", name.trim()));
            };
            if key.trim().is_empty() {
                return wrong(format!("'{name}' has no key: write {name}=KEY"));
            }
            if keys.iter().any(|(known, _)| known == field) {
                return wrong(format!("'{name}' is given twice"));
            }
            keys.push((*field, Cow::Owned(key.trim().to_owned())));
        }
        if !keys.iter().any(|(field, _)| matches!(field, Field::Path | Field::Request)) {
            return wrong("neither 'path' nor 'request' is given: add path=KEY".to_owned());
        }
        Ok(Self(keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_checked() {
        for (text, problem) in [
            ("path=a,color=b", "'color' is not a field; known are time, method, path"),
            ("time=a", "neither 'path' nor 'request'"),
            ("path", "'path' has no key"),
            ("path=a,path=b", "'path' is given twice"),
            ("", "'' is not a field"),
        ] {
            let error = text.parse::<JsonFields>().expect_err("wrong fields").to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
        assert_eq!(" path = a , time=b".parse::<JsonFields>().expect("good fields").0.len(), 2);
    }

    #[test]
    fn tables_fit_and_have_all_fields() {
        for table in [CADDY, ENVOY, LARDER, NGINX, TRAEFIK] {
            assert!(table.len() <= KEYS_MAX);
            for wanted in
                [Field::Time, Field::Method, Field::Path, Field::Status, Field::Bytes, Field::Client]
            {
                assert!(table.iter().any(|(field, _)| *field == wanted), "{wanted:?}");
            }
        }
    }
}
