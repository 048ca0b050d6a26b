//! The access log of [Caddy](https://caddyserver.com/docs/logging).

use super::json::{JsonServer, ServerParser};
use super::json_fields::{Field, KeyTable};

/// The parser of this format.
pub(crate) type CaddyParser = ServerParser<Caddy>;

/// The server Caddy.
pub(crate) enum Caddy {}

impl JsonServer for Caddy {
    const NAME: &'static str = "caddy";
    const KEYS: KeyTable = &[
        (Field::Time, "ts"),
        (Field::Method, "request.method"),
        (Field::Path, "request.uri"),
        (Field::Status, "status"),
        (Field::Bytes, "size"),
        (Field::Client, "request.client_ip"),
        (Field::Client, "request.remote_ip"),
        (Field::Client, "request.remote_addr"),
    ];
}
