//! Access log line of a handed-off connection.

use super::edge::Edge;
use super::parts::ConnectionLoad;
use crate::access_fields::AccessFields;
use larder_core::Decision;
use larder_edge::access::Record;
use larder_kernel::FlowKey;
use std::time::Duration;

impl Edge {
    /// Writes the line for the connection's first request, the only one that the switch saw.
    pub(super) fn log(
        &self,
        key: FlowKey,
        decision: Decision,
        load: &ConnectionLoad,
        bytes: Option<u64>,
        total: Duration,
    ) {
        let Some(log) = &self.observers.access else { return };
        let node = self.decider.nodes.get(decision.node);
        let text = load.text.as_deref();
        let fields = AccessFields {
            node: node.as_ref().map(|node| &*node.name),
            reason: Some(decision.reason.name()),
            error: None,
            attempts: 1,
            cache: None,
            queue: None,
            connect: None,
            first_byte: None,
            total,
            route: &self.decider.routing.route(load.request.route).name,
            class: load.request.class.name(),
            mechanism: load.delivery.mechanism.name(),
            delivery_reason: load.delivery.reason.name(),
            request_id: None,
        };
        log.write(&Record {
            client: Some(key.client.ip()),
            method: text.map_or("-", |text| &text.method),
            target: text.map_or(b"-", |text| text.target.as_bytes()),
            version: if text.is_some_and(|text| text.http10) { "HTTP/1.0" } else { "HTTP/1.1" },
            host: text.map_or(b"", |text| &text.host),
            status: None,
            body_bytes: bytes.unwrap_or(0),
            referer: None,
            user_agent: None,
            fields: &fields.values(),
            request: None,
            reply: None,
        });
    }
}
