//! Fields that the switch adds to a line of the access log.

use larder_edge::access::Value;
use std::time::Duration;

/// Names of the fields in order.
pub const ACCESS_FIELDS: [&str; 14] = [
    "node",
    "reason",
    "error",
    "tries",
    "cache",
    "queue_us",
    "connect_us",
    "first_byte_us",
    "total_us",
    "route",
    "class",
    "mechanism",
    "why",
    "request_id",
];

/// Values of the fields for a finished request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessFields<'a> {
    pub(crate) node: Option<&'a str>,
    pub(crate) reason: Option<&'a str>,
    pub(crate) error: Option<&'a str>,
    pub(crate) attempts: u8,
    pub(crate) cache: Option<&'a str>,
    pub(crate) queue: Option<Duration>,
    pub(crate) connect: Option<Duration>,
    pub(crate) first_byte: Option<Duration>,
    pub(crate) total: Duration,
    pub(crate) route: &'a str,
    pub(crate) class: &'a str,
    /// Delivery mechanism and its reason.
    pub(crate) mechanism: &'a str,
    pub(crate) delivery_reason: &'a str,
    /// Request id, if requests have ids.
    pub(crate) request_id: Option<&'a [u8]>,
}

impl<'a> AccessFields<'a> {
    /// Returns each value with its name.
    pub(crate) fn values(&self) -> [(&'static str, Value<'a>); ACCESS_FIELDS.len()] {
        let all = [
            Value::word(self.node),
            Value::word(self.reason),
            Value::word(self.error),
            Value::Number(self.attempts.into()),
            Value::word(self.cache),
            Value::Micros(self.queue),
            Value::Micros(self.connect),
            Value::Micros(self.first_byte),
            Value::Micros(Some(self.total)),
            Value::word(Some(self.route)),
            Value::word(Some(self.class)),
            Value::word(Some(self.mechanism)),
            Value::word(Some(self.delivery_reason)),
            Value::Optional(self.request_id),
        ];
        std::array::from_fn(|nth| (ACCESS_FIELDS[nth], all[nth]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_its_name() {
        let fields = AccessFields {
            node: Some("n1"),
            reason: Some("first"),
            error: None,
            attempts: 1,
            cache: Some("hit"),
            queue: None,
            connect: Some(Duration::from_micros(2)),
            first_byte: Some(Duration::from_micros(3)),
            total: Duration::from_micros(4),
            route: "default",
            class: "n",
            mechanism: "relay",
            delivery_reason: "configured",
            request_id: None,
        };
        let text: Vec<String> =
            fields.values().iter().map(|(name, value)| format!("{name} {value:?}")).collect();
        for (at, expected) in [
            (0, format!("node {:?}", Value::word(Some("n1")))),
            (3, format!("tries {:?}", Value::Number(1))),
            (6, format!("connect_us {:?}", Value::Micros(Some(Duration::from_micros(2))))),
            (8, format!("total_us {:?}", Value::Micros(Some(Duration::from_micros(4))))),
            (12, format!("why {:?}", Value::word(Some("configured")))),
            (13, format!("request_id {:?}", Value::Optional(None))),
        ] {
            assert_eq!(text[at], expected);
        }
    }
}
