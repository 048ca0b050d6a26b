//! The access log of nginx in JSON. The operator chooses the keys: these are the names of its variables, and
//! usual names of the time and the size.

use super::json::{JsonServer, ServerParser};
use super::json_fields::{Field, KeyTable};

/// The parser of this format.
pub(crate) type NginxParser = ServerParser<Nginx>;

/// The server Nginx.
pub(crate) enum Nginx {}

impl JsonServer for Nginx {
    const NAME: &'static str = "nginx";
    const KEYS: KeyTable = &[
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
}
