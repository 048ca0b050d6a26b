//! Table of all metrics of the switch.

use larder_edge::{Metric, MetricKind};

macro_rules! metrics {
    ($($topic:literal {
        $($id:ident, $kind:ident, $name:literal, [$($label:literal),*], $help:literal;)*
    })*) => {
        $($(pub(crate) const $id: Metric = Metric {
            topic: $topic,
            name: $name,
            kind: MetricKind::$kind,
            labels: &[$($label),*],
            help: $help,
        };)*)*
        /// Every metric of the switch.
        pub const METRICS: &[Metric] = &[$($($id,)*)*];
    };
}

metrics! {
    "Requests" {
        REQUESTS, Counter, "larder_switch_requests_total", ["node", "class"],
            "Finished requests, by node (empty: replies of the switch itself) and status class (1xx to 5xx; aborted: no reply or an incomplete one)";
        ROUTE_REQUESTS, Counter, "larder_switch_route_requests_total", ["route", "service_class"],
            "Finished requests, by route and service class (n, db, cb, dcb)";
        TOTAL, Histogram, "larder_switch_request_seconds", [],
            "Seconds from the end of a request's header to the last byte of its reply";
        FIRST_BYTE, Histogram, "larder_switch_first_byte_seconds", ["node"],
            "Seconds from the end of a request's header to the first byte of the node's reply, including the wait for admission";
        BODY_BYTES, Counter, "larder_switch_reply_body_bytes_total", ["node"],
            "Bytes of reply bodies sent to clients";
        FAILURES, Counter, "larder_switch_failures_total", ["error"],
            "Requests and connections that the switch itself answered or ended, by error";
        FIELDS_DROPPED, Counter, "larder_switch_header_fields_dropped_total", [],
            "Header fields of requests dropped because of their names";
        PANICS, Counter, "larder_switch_panics_total", [],
            "Connections and HTTP/2 requests lost to a bug in the switch";
    }
    "Decisions" {
        DECISIONS, Counter, "larder_switch_decisions_total", ["reason"],
            "Finished requests, by reason of their decision";
        ROUTE_DECISIONS, Counter, "larder_switch_route_decisions_total", ["route", "reason"],
            "Finished requests, by route and reason of their decision; no line for zero";
        CACHE, Counter, "larder_switch_cache_outcomes_total", ["node", "outcome"],
            "Replies with a Cache-Status, by outcome at the node's cache (hit, miss)";
        TARGETS, Gauge, "larder_switch_targets", [],
            "Targets that the policies remember";
    }
    "Prompts" {
        PROMPTS, Counter, "larder_switch_prompts_total", ["route"],
            "Prompts placed at nodes; a retry counts again";
        PROMPT_TOKENS, Counter, "larder_switch_prompt_tokens_total", ["route", "expected"],
            "Tokens of placed prompts, estimated from their bytes, by what the node was expected to have (cached, missing)";
        PROMPT_CREDITS, Gauge, "larder_switch_prompt_credits", ["route"],
            "Pairs of a block of prompts and a node that is expected to have it cached";
        PROMPT_CAPACITY, Gauge, "larder_switch_prompt_capacity_tokens", ["route", "node"],
            "Tokens that the KV cache of a server holds, by its metrics or else the config";
        PROMPT_REQUESTS, Gauge, "larder_switch_prompt_requests", ["route", "node"],
            "Prompts at a server that have not ended, of this and of peer switches";
        PROMPT_BODY_BYTES, Gauge, "larder_switch_prompt_body_bytes", ["route"],
            "Bytes of memory reserved for bodies with prompts";
    }
    "Retries, hedging and mirroring" {
        RETRIES, Counter, "larder_switch_retries_total", ["kind"],
            "Retries, by kind (same_node: on a new connection to the same node; other_node; resume: on another node for the rest of a reply)";
        RETRIES_DENIED, Counter, "larder_switch_retries_denied_total", [],
            "Retries that the retry budget did not allow";
        HEDGES, Counter, "larder_switch_hedges_total", ["route", "outcome"],
            "Hedged requests, by outcome (won: the second node replied first; lost; failed; no_room; over_share)";
        COPIES, Counter, "larder_switch_copies_total", ["route", "outcome"],
            "Copies of requests for mirror routes, by outcome (done, failed, timed_out, no_room, too_many, too_large, unfinished)";
    }
    "Admission and clients" {
        OUTSTANDING, Gauge, "larder_switch_outstanding", [],
            "Admitted and unfinished requests";
        GROUP_OUTSTANDING, Gauge, "larder_switch_group_outstanding", ["group"],
            "Admitted and unfinished requests, by group of nodes (empty: all nodes)";
        ADMISSION_LIMIT, Gauge, "larder_switch_admission_limit", [],
            "Limit of admitted requests, summed over all groups of nodes";
        QUEUED, Gauge, "larder_switch_queued", [],
            "Requests that wait for admission";
        QUEUE_WAIT, Histogram, "larder_switch_queue_wait_seconds", [],
            "Seconds that queued requests waited for admission";
        CLIENTS, Gauge, "larder_switch_client_connections", [],
            "Open client connections";
        CLIENTS_TOTAL, Counter, "larder_switch_client_connections_total", [],
            "Accepted client connections";
        HTTP2, Counter, "larder_switch_http2_connections_total", [],
            "Client connections that use HTTP/2";
        CLIENTS_KNOWN, Gauge, "larder_switch_clients_known", [],
            "Clients with an entry in the table of limits per client";
        CLIENTS_OVERFLOWED, Counter, "larder_switch_clients_overflowed_total", [],
            "Requests and connections of clients without room in this table, which share one allowance";
    }
    "Nodes" {
        NODE_LOAD, Gauge, "larder_switch_node_load", ["node"],
            "Requests in flight at a node";
        NODE_LONG_LIVED, Gauge, "larder_switch_node_long_lived", ["node"],
            "Long-lived requests among the requests in flight at a node";
        NODE_CONNECTIONS, Counter, "larder_switch_node_connections_total", ["node"],
            "Connections opened to a node for requests";
        NODE_STATE, Gauge, "larder_switch_node_state", ["node", "state"],
            "1 for the current state of a node (up, draining, down, removed), 0 for the others";
        TRANSITIONS, Counter, "larder_switch_node_transitions_total", ["node", "to"],
            "Changes of a node's state, by the new state";
        EJECTIONS, Counter, "larder_switch_ejections_total", ["node"],
            "Ejections of a node by outlier detection";
        NODE_STANDBY, Gauge, "larder_switch_node_standby", ["node"],
            "1 if a node is a backup that is up but unused, because an ordinary node is up";
        GROUP_ON_BACKUPS, Gauge, "larder_switch_group_on_backups", ["group"],
            "1 if a group (empty: all nodes) uses its backup nodes, because no ordinary node of the group is up";
    }
    "Signals of nodes" {
        REPORTS, Counter, "larder_switch_reports_total", ["node"],
            "Valid load reports of a node";
        REPORT_AGE, Gauge, "larder_switch_report_age_seconds", ["node"],
            "Seconds since a node's last load report; no line without a valid report";
        SIGNAL_FAILURES, Counter, "larder_switch_signal_failures_total", ["node", "cause"],
            "Missing or invalid load reports, and ended event streams, by cause";
        CACHE_EVENTS, Counter, "larder_switch_cache_events_total", ["node", "kind"],
            "Cache events of a node, by kind (stored, evicted, untracked, snapshot: from its event stream; passive: from Cache-Status)";
        CACHE_LAG, Gauge, "larder_switch_cache_event_lag_seconds", ["node"],
            "Delay in seconds of the last event of a node's event stream, relative to its fastest event";
    }
    "TLS" {
        TLS_HANDSHAKES, Counter, "larder_switch_tls_handshakes_total", ["outcome"],
            "TLS handshakes, by outcome (done; failed; timed_out; no_certificate: not issued yet; challenge: of ACME; plain_http: HTTP without TLS, answered with 400)";
        TLS_NOT_AFTER, Gauge, "larder_switch_tls_certificate_not_after_seconds", ["file"],
            "Expiry of a certificate in use, in seconds since 1970";
        TLS_STALE, Gauge, "larder_switch_tls_certificates_stale", [],
            "1 if the certificate files are invalid and older certificates are in use, otherwise 0";
        ACME_ORDERS, Counter, "larder_switch_acme_orders_total", ["outcome"],
            "ACME orders of this process, by outcome (issued, failed)";
        ACME_FAILURES, Gauge, "larder_switch_acme_failures", ["host"],
            "Consecutive failed ACME orders for the certificate of a host";
        ACME_NEXT, Gauge, "larder_switch_acme_next_order_seconds", ["host"],
            "Time of the next ACME order for a host, in seconds since 1970";
    }
    "Handoff" {
        DELIVERIES, Counter, "larder_switch_deliveries_total", ["mechanism", "why"],
            "Connections, by mechanism and reason, if handoff is on; no line for zero";
        HANDED_OFF, Counter, "larder_switch_handed_off_total", ["node"],
            "Connections handed off to a node";
        HANDED_OFF_BYTES, Counter, "larder_switch_handed_off_bytes_total", ["node"],
            "Bytes that clients acknowledged on ended handed-off connections, modulo 4 GiB per connection";
        HANDED_OFF_TOTAL, Histogram, "larder_switch_handed_off_seconds", [],
            "Duration of handed-off connections in seconds";
        HANDOFF_ENDS, Counter, "larder_switch_handoff_ends_total", ["end"],
            "Ended handed-off connections, by kind of end (closed, client_reset, silent, node_lost, replaced)";
        HANDOFF_CONNECTIONS, Gauge, "larder_switch_handoff_connections", ["state"],
            "Connections, by state (held: waiting for a decision; handed_off; placed: not yet accepted by this host)";
        HANDOFF_LOST, Counter, "larder_switch_handoff_lost_total", ["what"],
            "Losses, by kind (packet: a held packet that could not be forwarded; late: a first packet read too late; connection: never accepted)";
        LATER_REQUESTS, Counter, "larder_switch_handoff_later_requests_total", ["home"],
            "Examined later requests on handed-off connections (one in sixteen), by place of their target (here: at the connection's node; elsewhere)";
        PLANE, Counter, "larder_switch_plane_total", ["event"],
            "Packets and events of the forwarding plane, by event";
    }
    "Peer switches" {
        PEER_SWITCHES, Gauge, "larder_switch_others", ["state"],
            "Peer switches of the same nodes, by whether their load is known (known, unknown)";
        PEER_LOAD, Gauge, "larder_switch_node_elsewhere", ["node"],
            "Requests in flight of peer switches at a node, by their last messages; no line without peer switches in the config";
        SETS, Counter, "larder_switch_sets_total", ["what"],
            "Server sets exchanged with peer switches (told: sent; taken: received and used; same; older; too_large: not sent)";
        SETS_MISSED, Counter, "larder_switch_sets_missed_total", [],
            "Times that more server sets had changed than could be sent, so that peer switches had to request them";
        PARTS_ASKED, Counter, "larder_switch_set_parts_asked_total", [],
            "Requested parts of the server sets of peer switches";
        PEER_PROMPTS, Counter, "larder_switch_peer_prompts_total", ["what"],
            "Placements of prompts exchanged with peer switches (sent; taken: received; lost: not sent, because too many were waiting)";
        CREDIT_PAGES_ASKED, Counter, "larder_switch_credit_pages_asked_total", [],
            "Requested pages of the expected blocks of prompts, which a switch reads from another one when it starts";
        INVALID_MESSAGES, Counter, "larder_switch_strange_messages_total", [],
            "Messages of peer switches that were malformed or of another version";
        OTHER_SECRET_LINKS, Gauge, "larder_switch_links_other_secret", [],
            "Connections with peer switches whose accepted secret is not the one that this switch sends with";
        OTHER_SECRET_DATAGRAMS, Counter, "larder_switch_datagrams_other_secret_total", [],
            "Datagrams of peer switches whose accepted secret is not the one that this switch sends with";
        SECRET_LINKS_REVOKED, Counter, "larder_switch_links_revoked_total", [],
            "Connections with peer switches that were closed because their secret is no longer accepted";
    }
    "Reloads, logs, traces and purges" {
        GENERATION, Gauge, "larder_switch_generation", [],
            "Number of the serving process: 1 at the start, incremented by each reload, upgrade and restart after a crash";
        RELOADS, Counter, "larder_switch_reloads_total", ["outcome"],
            "Reloads and upgrades since the start, by outcome (done, refused, failed), and restarts after a crash (restarted)";
        RELOADED, Gauge, "larder_switch_last_reload_success", [],
            "1 if the last reload succeeded or there was none, otherwise 0";
        RELOADED_AT, Gauge, "larder_switch_last_reload_timestamp_seconds", [],
            "End of the last reload, in seconds since 1970; 0 if there was none";
        RETIRING, Gauge, "larder_switch_retiring", [],
            "Processes that finish their requests while another one serves, as of the last change";
        LOG_DROPPED, Counter, "larder_switch_access_log_dropped_total", [],
            "Lines of the access log that were not written, because the writer could not keep up or failed";
        SPANS, Counter, "larder_switch_spans_total", ["outcome"],
            "Spans of traced requests, by outcome (sent; dropped: the queue was full; failed: the collector refused them)";
        PURGES, Counter, "larder_switch_purges_total", ["outcome"],
            "Purges, by outcome (done: at all nodes; failed: at one or more nodes; denied: no valid token)";
    }
    "Shadow mode" {
        SHADOW_HIT_RATIO, Gauge, "larder_switch_shadow_hit_ratio", ["policy"],
            "Hit ratio of memory caches under a policy in the last five minutes, simulated";
        SHADOW_LIVE_HIT_RATIO, Gauge, "larder_switch_shadow_live_hit_ratio", ["policy"],
            "Hit ratio of the same requests under the live policy, as reported by the nodes";
        SHADOW_IMBALANCE, Gauge, "larder_switch_shadow_imbalance", ["policy"],
            "Requests of the busiest node over the mean of all nodes under a policy in the last five minutes, simulated";
        SHADOW_LOAD_IMBALANCE, Gauge, "larder_switch_shadow_load_imbalance", ["policy"],
            "Requests in flight of the busiest node over the mean of all nodes under a policy in the last five minutes, simulated";
        SHADOW_REQUESTS, Counter, "larder_switch_shadow_requests_total", ["outcome"],
            "Requests for the shadow, by outcome (looked_at: sampled; dropped: its queue was full)";
        SHADOW_ONE_IN, Gauge, "larder_switch_shadow_one_in", [],
            "Sampling of the shadow: one in this number of targets";
        SHADOW_STATE, Gauge, "larder_switch_shadow_state_bytes", [],
            "Approximate memory of the shadow in bytes";
    }
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
