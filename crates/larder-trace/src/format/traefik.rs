//! The access log of [Traefik](https://doc.traefik.io/traefik/observability/access-logs/) in JSON.

use super::json::{JsonServer, ServerParser};
use super::json_fields::{Field, KeyTable};

/// The parser of this format.
pub(crate) type TraefikParser = ServerParser<Traefik>;

/// The server Traefik.
pub(crate) enum Traefik {}

impl JsonServer for Traefik {
    const NAME: &'static str = "traefik";
    const KEYS: KeyTable = &[
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
}
