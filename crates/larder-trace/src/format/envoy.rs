//! The access log of Envoy in JSON. The operator chooses the keys: these are the keys of its documentation, of
//! Istio and of Envoy Gateway.

use super::json::{JsonServer, ServerParser};
use super::json_fields::{Field, KeyTable};

/// The parser of this format.
pub(crate) type EnvoyParser = ServerParser<Envoy>;

/// The server Envoy.
pub(crate) enum Envoy {}

impl JsonServer for Envoy {
    const NAME: &'static str = "envoy";
    const KEYS: KeyTable = &[
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
}
