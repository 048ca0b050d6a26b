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
        "Requests ended, by the node that served them (empty: the switch itself) and by status class; 'aborted': no or no complete reply";
    DECISIONS, Counter, "larder_switch_decisions_total", ["reason"],
        "Requests ended, by why their node was chosen";
    ROUTE_REQUESTS, Counter, "larder_switch_route_requests_total", ["route", "service_class"],
        "Requests ended, by route and service class";
    ROUTE_DECISIONS, Counter, "larder_switch_route_decisions_total", ["route", "reason"],
        "Requests ended, by route and by why their node was chosen; reasons that have not come up are left out";
    COPIES, Counter, "larder_switch_copies_total", ["route", "outcome"],
        "Copies of requests for routes that mirror, by what became of them: done, failed, timed_out, no_room, too_many, too_large, unfinished";
    HEDGES, Counter, "larder_switch_hedges_total", ["route", "outcome"],
        "Requests whose node was slow on routes that hedge: won (the second node's answer was the first), lost, failed, no_room, over_share";
    GROUP_OUTSTANDING, Gauge, "larder_switch_group_outstanding", ["group"],
        "Requests admitted and not ended, by the group of nodes their routes use (empty: all nodes)";
    GROUP_ON_BACKUPS, Gauge, "larder_switch_group_on_backups", ["group"],
        "1 while the backup nodes of a group (empty: all nodes) take its requests, since no ordinary node of the group is up";
    TLS_HANDSHAKES, Counter, "larder_switch_tls_handshakes_total", ["outcome"],
        "TLS handshakes that have ended: done, failed, timed_out, no_certificate (it is still to come), challenge (of ACME), plain_http (HTTP without TLS, answered with 400)";
    TLS_NOT_AFTER, Gauge, "larder_switch_tls_certificate_not_after_seconds", ["file"],
        "When a certificate in force ends, seconds since 1970";
    TLS_STALE, Gauge, "larder_switch_tls_certificates_stale", [],
        "1 if the certificates in force are not those of the files, which make no sense";
    ACME_ORDERS, Counter, "larder_switch_acme_orders_total", ["outcome"],
        "Orders of certificates by ACME that this process has ended: issued, failed";
    ACME_FAILURES, Gauge, "larder_switch_acme_failures", ["host"],
        "Orders for this host's certificate that have failed since the last that did not";
    ACME_NEXT, Gauge, "larder_switch_acme_next_order_seconds", ["host"],
        "When a certificate for this host is ordered next, seconds since 1970";
    HTTP2, Counter, "larder_switch_http2_connections_total", [],
        "Connections of clients that speak HTTP/2";
    FIELDS_DROPPED, Counter, "larder_switch_header_fields_dropped_total", [],
        "Header fields of requests dropped for their names";
    FAILURES, Counter, "larder_switch_failures_total", ["error"],
        "Requests and connections the switch itself answered or broke off, by why";
    RETRIES, Counter, "larder_switch_retries_total", ["kind"],
        "Requests tried again: on a new connection to the same node, on another node, or on another node for the rest of a reply";
    CACHE, Counter, "larder_switch_cache_outcomes_total", ["node", "outcome"],
        "Replies with a Cache-Status, by what the node's cache did";
    BODY_BYTES, Counter, "larder_switch_reply_body_bytes_total", ["node"],
        "Bytes of reply bodies sent to clients";
    NODE_CONNECTIONS, Counter, "larder_switch_node_connections_total", ["node"],
        "Connections opened to a node for requests";
    HANDED_OFF, Counter, "larder_switch_handed_off_total", ["node"],
        "Connections handed to a node";
    HANDED_OFF_BYTES, Counter, "larder_switch_handed_off_bytes_total", ["node"],
        "Bytes that clients have acknowledged on handed-off connections that have ended, modulo 4 GiB each";
    HANDED_OFF_TOTAL, Histogram, "larder_switch_handed_off_seconds", [],
        "How long handed-off connections lasted";
    DELIVERIES, Counter, "larder_switch_deliveries_total", ["mechanism", "why"],
        "Connections by how they were delivered and why so, where handoff is on; pairs that have not come up are left out";
    HANDOFF_ENDS, Counter, "larder_switch_handoff_ends_total", ["end"],
        "Handed-off connections that have ended, by how";
    HANDOFF_CONNECTIONS, Gauge, "larder_switch_handoff_connections", ["state"],
        "Connections that are held for their decision, handed off, or on their way into this host's own stack";
    HANDOFF_LOST, Counter, "larder_switch_handoff_lost_total", ["what"],
        "Held packets that could not be sent on, first packets that were read too late, and connections that were never accepted";
    LATER_REQUESTS, Counter, "larder_switch_handoff_later_requests_total", ["home"],
        "Later requests on handed-off connections that were looked at (one of sixteen), by whether their targets are the connection's node's";
    PLANE, Counter, "larder_switch_plane_total", ["event"],
        "What the forwarding plane has seen and done";
    TRANSITIONS, Counter, "larder_switch_node_transitions_total", ["node", "to"],
        "Changes of a node's state, by the new state";
    EJECTIONS, Counter, "larder_switch_ejections_total", ["node"],
        "How often a node that answers was taken out for how it answers";
    NODE_LOAD, Gauge, "larder_switch_node_load", ["node"],
        "Requests in flight at a node";
    NODE_LONG_LIVED, Gauge, "larder_switch_node_long_lived", ["node"],
        "Long-lived requests among those in flight at a node";
    NODE_STANDBY, Gauge, "larder_switch_node_standby", ["node"],
        "1 while a node is a backup that is up and takes no new requests, since an ordinary node is up";
    NODE_STATE, Gauge, "larder_switch_node_state", ["node", "state"],
        "1 for the state a node is in";
    FIRST_BYTE, Histogram, "larder_switch_first_byte_seconds", ["node"],
        "From the end of a request's header to the first byte of the node's reply, waiting for admission included";
    REPORT_AGE, Gauge, "larder_switch_report_age_seconds", ["node"],
        "Age of a node's last load report; no line if it has none that counts";
    REPORTS, Counter, "larder_switch_reports_total", ["node"],
        "Load reports of a node that were taken";
    SIGNAL_FAILURES, Counter, "larder_switch_signal_failures_total", ["node", "cause"],
        "Load reports that did not come or count, and event streams that ended, by why";
    CACHE_EVENTS, Counter, "larder_switch_cache_events_total", ["node", "kind"],
        "Changes in a node's cache that were heard: stored and evicted by its event stream, passive by Cache-Status; targets not remembered, and snapshots taken";
    CACHE_LAG, Gauge, "larder_switch_cache_event_lag_seconds", ["node"],
        "How much later than at its fastest the last event of a node's live stream came";
    TOTAL, Histogram, "larder_switch_request_seconds", [],
        "From the end of a request's header to the last byte of its reply";
    QUEUE_WAIT, Histogram, "larder_switch_queue_wait_seconds", [],
        "How long requests that had to wait for admission waited";
    QUEUED, Gauge, "larder_switch_queued", [],
        "Requests waiting for admission";
    OUTSTANDING, Gauge, "larder_switch_outstanding", [],
        "Requests admitted and not ended";
    ADMISSION_LIMIT, Gauge, "larder_switch_admission_limit", [],
        "How many requests may be outstanding, over all groups of nodes together";
    TARGETS, Gauge, "larder_switch_targets", [],
        "Targets whose servers are remembered";
    RETRIES_DENIED, Counter, "larder_switch_retries_denied_total", [],
        "Retries that the budget did not allow";
    CLIENTS_KNOWN, Gauge, "larder_switch_clients_known", [],
        "Clients whose requests or connections are counted, where that is limited";
    CLIENTS_OVERFLOWED, Counter, "larder_switch_clients_overflowed_total", [],
        "Requests and connections of clients for whom there was no room, and who share one allowance";
    CLIENTS, Gauge, "larder_switch_client_connections", [],
        "Client connections open";
    CLIENTS_TOTAL, Counter, "larder_switch_client_connections_total", [],
        "Client connections accepted";
    LOG_DROPPED, Counter, "larder_switch_access_log_dropped_total", [],
        "Access log lines not written because the writer could not keep up or failed";
    PURGES, Counter, "larder_switch_purges_total", ["outcome"],
        "Purges: done at all nodes, failed at one or more, denied for want of a token";
    PANICS, Counter, "larder_switch_panics_total", [],
        "Connections lost to a fault in the switch";
    PEER_SWITCHES, Gauge, "larder_switch_others", ["state"],
        "Other switches in front of the same nodes, by whether what they have is known";
    PEER_LOAD, Gauge, "larder_switch_node_elsewhere", ["node"],
        "Requests of other switches at a node, as they last told; no line where there are to be no other switches";
    SETS, Counter, "larder_switch_sets_total", ["what"],
        "Server sets told to other switches, heard and taken, the same or older than what was known, and too large to be told";
    SETS_MISSED, Counter, "larder_switch_sets_missed_total", [],
        "Times that more server sets had changed than could be told, so that the other switches were told to ask";
    PARTS_ASKED, Counter, "larder_switch_set_parts_asked_total", [],
        "Parts of other switches' server sets that were asked for";
    INVALID_MESSAGES, Counter, "larder_switch_strange_messages_total", [],
        "Messages of other switches that made no sense, or were of another version";
    OTHER_SECRET_LINKS, Gauge, "larder_switch_links_other_secret", [],
        "Connections of switches made with a secret that this switch does not send with";
    OTHER_SECRET_DATAGRAMS, Counter, "larder_switch_datagrams_other_secret_total", [],
        "Datagrams of switches sealed with an accepted secret that this switch does not send with";
    SECRET_LINKS_REVOKED, Counter, "larder_switch_links_revoked_total", [],
        "Connections of switches ended because their secret is no longer accepted";
    GENERATION, Gauge, "larder_switch_generation", [],
        "Which process of this switch serves: 1 at the start, one more with each reload, upgrade and restart after a fault";
    RELOADS, Counter, "larder_switch_reloads_total", ["outcome"],
        "Reloads and upgrades that were done, refused or failed, and processes restarted after a fault, since the switch was started";
    RETIRING, Gauge, "larder_switch_retiring", [],
        "Processes that finish what they have since another serves, as of the last change";
    RELOADED_AT, Gauge, "larder_switch_last_reload_timestamp_seconds", [],
        "When the last reload was over, seconds since 1970; 0 if there was none";
    RELOADED, Gauge, "larder_switch_last_reload_success", [],
        "1 if the last reload was done, or there was none; else 0";
    SPANS, Counter, "larder_switch_spans_total", ["outcome"],
        "Spans of traced requests: sent to the collector, dropped because too many waited, failed because it did not take them";
    SHADOW_HIT_RATIO, Gauge, "larder_switch_shadow_hit_ratio", ["policy"],
        "Share of the requests of the last five minutes that memories would have answered under a policy, where shadow mode is on";
    SHADOW_IMBALANCE, Gauge, "larder_switch_shadow_imbalance", ["policy"],
        "Requests of the busiest node over the mean that there would have been under a policy in the last five minutes";
    SHADOW_LOAD_IMBALANCE, Gauge, "larder_switch_shadow_load_imbalance", ["policy"],
        "Mean requests in flight of the busiest node over the mean of all that there would have been under a policy in the last five minutes";
    SHADOW_LIVE_HIT_RATIO, Gauge, "larder_switch_shadow_live_hit_ratio", ["policy"],
        "Share of the same requests that memories have answered, by what nodes say, under the policy that runs";
    SHADOW_REQUESTS, Counter, "larder_switch_shadow_requests_total", ["outcome"],
        "Requests that the shadow looked at, or dropped because too many waited for it";
    SHADOW_ONE_IN, Gauge, "larder_switch_shadow_one_in", [],
        "Of so many targets the shadow looks at one";
    SHADOW_STATE, Gauge, "larder_switch_shadow_state_bytes", [],
        "Memory that the shadow takes, about";
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
