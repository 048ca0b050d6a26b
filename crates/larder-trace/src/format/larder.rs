//! The access log of `larder switch` and `larder node`.

use super::json::{JsonServer, ServerParser};
use super::json_fields::{Field, KeyTable};

/// The parser of this format.
pub(crate) type LarderParser = ServerParser<Larder>;

/// The server Larder.
pub(crate) enum Larder {}

impl JsonServer for Larder {
    const NAME: &'static str = "larder";
    const KEYS: KeyTable = &[
        (Field::Time, "time"),
        (Field::Method, "method"),
        (Field::Path, "target"),
        (Field::Status, "status"),
        (Field::Bytes, "body_bytes"),
        (Field::Client, "client"),
    ];
}
