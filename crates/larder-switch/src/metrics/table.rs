//! Table of all metrics of the switch.

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A monotonic counter.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// A histogram of times in seconds.
    Histogram,
}

/// Definition of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Prometheus name.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// Help text.
    pub help: &'static str,
}

macro_rules! metrics {
    ($($id:ident, $kind:ident, $name:literal, [$($label:literal),*], $help:literal;)*) => {
        $(pub(crate) const $id: Metric =
            Metric { name: $name, kind: MetricKind::$kind, labels: &[$($label),*], help: $help };)*
        /// Every metric of the switch.
        pub const METRICS: &[Metric] = &[$($id),*];
    };
}

metrics! {
    REQUESTS, Counter, "larder_switch_requests_total", ["node", "class"],
        "Finished requests by node (empty: the switch itself) and status class; 'aborted': no reply or an incomplete one";
    DECISIONS, Counter, "larder_switch_decisions_total", ["reason"],
        "Finished requests by the reason of their decision";
    ROUTE_REQUESTS, Counter, "larder_switch_route_requests_total", ["route", "service_class"],
        "Finished requests by route and service class";
    ROUTE_DECISIONS, Counter, "larder_switch_route_decisions_total", ["route", "reason"],
        "Finished requests by route and reason of their decision, without zeros";
    COPIES, Counter, "larder_switch_copies_total", ["route", "outcome"],
        "Copies of requests for mirror routes by outcome: done, failed, timed_out, no_room, too_many, too_large, unfinished";
    HEDGES, Counter, "larder_switch_hedges_total", ["route", "outcome"],
        "Hedged requests by outcome: won (the second node replied first), lost, failed, no_room, over_share";
    GROUP_OUTSTANDING, Gauge, "larder_switch_group_outstanding", ["group"],
        "Admitted and unfinished requests by group of nodes (empty: all nodes)";
    GROUP_ON_BACKUPS, Gauge, "larder_switch_group_on_backups", ["group"],
        "1 while a group (empty: all nodes) uses its backup nodes, because no ordinary node of the group is up";
    TLS_HANDSHAKES, Counter, "larder_switch_tls_handshakes_total", ["outcome"],
        "TLS handshakes by outcome: done, failed, timed_out, no_certificate (not issued yet), challenge (of ACME), plain_http (HTTP without TLS, answered with 400)";
    TLS_NOT_AFTER, Gauge, "larder_switch_tls_certificate_not_after_seconds", ["file"],
        "Expiry of a certificate in use, seconds since 1970";
    TLS_STALE, Gauge, "larder_switch_tls_certificates_stale", [],
        "1 if the certificate files are invalid and older certificates are in use";
    ACME_ORDERS, Counter, "larder_switch_acme_orders_total", ["outcome"],
        "ACME orders of this process by outcome: issued, failed";
    ACME_FAILURES, Gauge, "larder_switch_acme_failures", ["host"],
        "Consecutive failed ACME orders for this host's certificate";
    ACME_NEXT, Gauge, "larder_switch_acme_next_order_seconds", ["host"],
        "Time of the next ACME order for this host, seconds since 1970";
    HTTP2, Counter, "larder_switch_http2_connections_total", [],
        "Client connections that use HTTP/2";
    FIELDS_DROPPED, Counter, "larder_switch_header_fields_dropped_total", [],
        "Header fields of requests dropped for their names";
    FAILURES, Counter, "larder_switch_failures_total", ["error"],
        "Requests and connections that the switch itself answered or ended, by failure";
    RETRIES, Counter, "larder_switch_retries_total", ["kind"],
        "Retries: on a new connection to the same node, on another node, or on another node for the rest of a reply";
    CACHE, Counter, "larder_switch_cache_outcomes_total", ["node", "outcome"],
        "Replies with a Cache-Status by outcome at the node's cache";
    BODY_BYTES, Counter, "larder_switch_reply_body_bytes_total", ["node"],
        "Bytes of reply bodies sent to clients";
    NODE_CONNECTIONS, Counter, "larder_switch_node_connections_total", ["node"],
        "Connections opened to a node for requests";
    HANDED_OFF, Counter, "larder_switch_handed_off_total", ["node"],
        "Connections handed off to a node";
    HANDED_OFF_BYTES, Counter, "larder_switch_handed_off_bytes_total", ["node"],
        "Bytes acknowledged by clients on ended handed-off connections, modulo 4 GiB each";
    HANDED_OFF_TOTAL, Histogram, "larder_switch_handed_off_seconds", [],
        "Duration of handed-off connections";
    DELIVERIES, Counter, "larder_switch_deliveries_total", ["mechanism", "why"],
        "Connections by delivery mechanism and reason, if handoff is on, without zeros";
    HANDOFF_ENDS, Counter, "larder_switch_handoff_ends_total", ["end"],
        "Ended handed-off connections by kind of end";
    HANDOFF_CONNECTIONS, Gauge, "larder_switch_handoff_connections", ["state"],
        "Connections held for their decision, handed off, or not yet accepted by this host's own stack";
    HANDOFF_LOST, Counter, "larder_switch_handoff_lost_total", ["what"],
        "Held packets that could not be forwarded, first packets read too late, and connections never accepted";
    LATER_REQUESTS, Counter, "larder_switch_handoff_later_requests_total", ["home"],
        "Examined later requests on handed-off connections (one in sixteen), by whether their targets belong to the connection's node";
    PLANE, Counter, "larder_switch_plane_total", ["event"],
        "Events of the forwarding plane";
    TRANSITIONS, Counter, "larder_switch_node_transitions_total", ["node", "to"],
        "Changes of a node's state, by the new state";
    EJECTIONS, Counter, "larder_switch_ejections_total", ["node"],
        "Ejections of a node by outlier detection";
    NODE_LOAD, Gauge, "larder_switch_node_load", ["node"],
        "Requests in flight at a node";
    NODE_LONG_LIVED, Gauge, "larder_switch_node_long_lived", ["node"],
        "Long-lived requests among those in flight at a node";
    NODE_STANDBY, Gauge, "larder_switch_node_standby", ["node"],
        "1 while a node is a backup that is up but not used, because an ordinary node is up";
    NODE_STATE, Gauge, "larder_switch_node_state", ["node", "state"],
        "1 for the current state of a node";
    FIRST_BYTE, Histogram, "larder_switch_first_byte_seconds", ["node"],
        "From the end of a request's header to the first byte of the node's reply, waiting for admission included";
    REPORT_AGE, Gauge, "larder_switch_report_age_seconds", ["node"],
        "Age of a node's last load report; no line if it has no valid one";
    REPORTS, Counter, "larder_switch_reports_total", ["node"],
        "Valid load reports of a node";
    SIGNAL_FAILURES, Counter, "larder_switch_signal_failures_total", ["node", "cause"],
        "Missing or invalid load reports, and ended event streams, by cause";
    CACHE_EVENTS, Counter, "larder_switch_cache_events_total", ["node", "kind"],
        "Cache events of a node: stored and evicted by its event stream, passive by Cache-Status, untracked targets, and snapshots";
    CACHE_LAG, Gauge, "larder_switch_cache_event_lag_seconds", ["node"],
        "Delay of the last event of a node's live stream, relative to the fastest event";
    TOTAL, Histogram, "larder_switch_request_seconds", [],
        "From the end of a request's header to the last byte of its reply";
    QUEUE_WAIT, Histogram, "larder_switch_queue_wait_seconds", [],
        "Time that queued requests waited for admission";
    QUEUED, Gauge, "larder_switch_queued", [],
        "Requests waiting for admission";
    OUTSTANDING, Gauge, "larder_switch_outstanding", [],
        "Admitted and unfinished requests";
    ADMISSION_LIMIT, Gauge, "larder_switch_admission_limit", [],
        "Limit of admitted requests, summed over all groups of nodes";
    TARGETS, Gauge, "larder_switch_targets", [],
        "Targets that the policies know";
    RETRIES_DENIED, Counter, "larder_switch_retries_denied_total", [],
        "Retries that the budget did not allow";
    CLIENTS_KNOWN, Gauge, "larder_switch_clients_known", [],
        "Clients with counted requests or connections, if clients are limited";
    CLIENTS_OVERFLOWED, Counter, "larder_switch_clients_overflowed_total", [],
        "Requests and connections of clients without room in the table, which share one allowance";
    CLIENTS, Gauge, "larder_switch_client_connections", [],
        "Client connections open";
    CLIENTS_TOTAL, Counter, "larder_switch_client_connections_total", [],
        "Client connections accepted";
    LOG_DROPPED, Counter, "larder_switch_access_log_dropped_total", [],
        "Access log lines not written because the writer could not keep up or failed";
    PURGES, Counter, "larder_switch_purges_total", ["outcome"],
        "Purges: done at all nodes, failed at one or more, denied because of the token";
    PANICS, Counter, "larder_switch_panics_total", [],
        "Connections lost to a panic in the switch";
    PEER_SWITCHES, Gauge, "larder_switch_others", ["state"],
        "Peer switches in front of the same nodes, by whether their load is known";
    PEER_LOAD, Gauge, "larder_switch_node_elsewhere", ["node"],
        "Requests of peer switches at a node, by their last messages; no line without peers in the config";
    SETS, Counter, "larder_switch_sets_total", ["what"],
        "Server sets sent to peer switches, received and used, equal to or older than the known set, and too large to send";
    SETS_MISSED, Counter, "larder_switch_sets_missed_total", [],
        "Times that more server sets had changed than could be sent, so that peers were told to request them";
    PARTS_ASKED, Counter, "larder_switch_set_parts_asked_total", [],
        "Requested parts of peer switches' server sets";
    INVALID_MESSAGES, Counter, "larder_switch_strange_messages_total", [],
        "Messages of peer switches that were malformed or of another version";
    OTHER_SECRET_LINKS, Gauge, "larder_switch_links_other_secret", [],
        "Connections of switches made with a secret that this switch does not send with";
    OTHER_SECRET_DATAGRAMS, Counter, "larder_switch_datagrams_other_secret_total", [],
        "Datagrams of switches sealed with an accepted secret that this switch does not send with";
    SECRET_LINKS_REVOKED, Counter, "larder_switch_links_revoked_total", [],
        "Connections of switches ended because their secret is no longer accepted";
    GENERATION, Gauge, "larder_switch_generation", [],
        "Number of the serving process: 1 at the start, incremented by each reload, upgrade and restart after a crash";
    RELOADS, Counter, "larder_switch_reloads_total", ["outcome"],
        "Reloads and upgrades that were done, refused or failed, and processes restarted after a crash, since the switch was started";
    RETIRING, Gauge, "larder_switch_retiring", [],
        "Processes that finish their requests while another one serves, as of the last change";
    RELOADED_AT, Gauge, "larder_switch_last_reload_timestamp_seconds", [],
        "End of the last reload, seconds since 1970; 0 if there was none";
    RELOADED, Gauge, "larder_switch_last_reload_success", [],
        "1 if the last reload succeeded or there was none, otherwise 0";
    SPANS, Counter, "larder_switch_spans_total", ["outcome"],
        "Spans of traced requests: sent to the collector, dropped because the queue was full, failed because the collector refused them";
    SHADOW_HIT_RATIO, Gauge, "larder_switch_shadow_hit_ratio", ["policy"],
        "Hit ratio of memory caches that a policy would have had in the last five minutes, if shadow mode is on";
    SHADOW_IMBALANCE, Gauge, "larder_switch_shadow_imbalance", ["policy"],
        "Requests of the busiest node over the mean that a policy would have had in the last five minutes";
    SHADOW_LOAD_IMBALANCE, Gauge, "larder_switch_shadow_load_imbalance", ["policy"],
        "Mean requests in flight of the busiest node over the mean of all nodes that a policy would have had in the last five minutes";
    SHADOW_LIVE_HIT_RATIO, Gauge, "larder_switch_shadow_live_hit_ratio", ["policy"],
        "Hit ratio of the same requests under the live policy, as reported by the nodes";
    SHADOW_REQUESTS, Counter, "larder_switch_shadow_requests_total", ["outcome"],
        "Requests that the shadow has sampled, or dropped because its queue was full";
    SHADOW_ONE_IN, Gauge, "larder_switch_shadow_one_in", [],
        "The shadow samples one in this number of targets";
    SHADOW_STATE, Gauge, "larder_switch_shadow_state_bytes", [],
        "Approximate memory of the shadow";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_say_their_kind() {
        let mut names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METRICS.len());
        for metric in METRICS {
            assert_eq!(
                metric.name.ends_with("_total"),
                metric.kind == MetricKind::Counter,
                "{}",
                metric.name
            );
            let seconds = metric.name.ends_with("_seconds");
            assert!(seconds || metric.kind != MetricKind::Histogram, "{}", metric.name);
        }
    }
}
