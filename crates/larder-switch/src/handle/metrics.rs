//! Metrics in the OpenMetrics text format.

use super::shadow_metrics as shadow;
use super::status::{LimitSums, SwitchHandle};
use crate::decider::Decider;
use crate::failure::Failure;
use crate::hedge::RouteHedging;
use crate::metrics::QUEUE_WAIT;
use crate::metrics::cells::{HISTOGRAM_CELLS, bounds_s};
use crate::metrics::table;
use crate::metrics::{
    BYTES, CACHE, CLASS, CLASSES, CLIENTS, CONNECTIONS, EJECTIONS, FAILURE, FIELDS_DROPPED, FIRST_BYTE,
    HANDED_OFF, HANDED_OFF_BYTES, HANDED_OFF_TOTAL, HTTP2, PANICS, REASON, RETRY, ROUTE_REASON, RetryKind,
    STATES, TOTAL, TRANSITIONS,
};
use crate::shared::Shared;
use larder_core::{CacheResult, NodeId, NodeRow, Reason, ServiceClass};
use larder_edge::access::AccessLog;
use larder_edge::{Acme, AcmeStatus, Metric, MetricKind, TlsHandshakeOutcome};
use larder_peer_switches::SetsStatus;
use larder_prompts::PromptStatus;
use larder_spans::Tracer;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt::Error;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

impl SwitchHandle {
    /// Returns all metrics in the OpenMetrics text format, with the media type `application/openmetrics-text;
    /// version=1.0.0; charset=utf-8`.
    pub fn metrics_text(&self) -> String {
        render(&self.shared)
    }
}

/// Renders all metrics of a switch.
fn render(shared: &Arc<Shared>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(MetricsCollector { shared: shared.clone() }));
    let mut text = String::new();
    if encode(&mut text, &registry).is_err() {
        tracing::warn!("metrics: encoding failed, the page is incomplete");
    }
    text
}

#[derive(Debug)]
struct MetricsCollector {
    shared: Arc<Shared>,
}

impl Collector for MetricsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let rows = self.shared.decider.dispatcher.nodes().rows();
        self.nodes(&mut encoder, &rows)?;
        self.routes(&mut encoder)?;
        self.handoff(&mut encoder)?;
        self.tls(&mut encoder)?;
        self.peer_switches(&mut encoder, &rows)?;
        self.switch(&mut encoder)?;
        self.reloads(&mut encoder)?;
        self.spans(&mut encoder)?;
        shadow::encode(&self.shared, &mut encoder)
    }
}

impl MetricsCollector {
    /// Encodes metrics per node.
    fn nodes(&self, encoder: &mut DescriptorEncoder<'_>, rows: &[NodeRow]) -> Result<(), Error> {
        let metrics = &self.shared.decider.metrics;
        let names: Vec<Arc<str>> = rows.iter().map(|row| row.name.clone()).collect();
        let who = || rows.iter().map(|row| Some(row.id)).zip(names.iter().map(|name| &**name));
        let sum = |node: Option<NodeId>, cell: usize| metrics.cells.sum(metrics.block(node) + cell);

        let mut requests = describe(encoder, &table::REQUESTS)?;
        for (node, name) in who().chain([(None, "")]) {
            for (index, class) in CLASSES.into_iter().enumerate() {
                let value = sum(node, CLASS + index);
                if value > 0 || node.is_some() && class != "1xx" {
                    count(&mut requests, &[("node", name), ("class", class)], value)?;
                }
            }
        }
        let mut cache = describe(encoder, &table::CACHE)?;
        for (node, name) in who() {
            for (index, outcome) in [CacheResult::Hit, CacheResult::Miss].into_iter().enumerate() {
                count(&mut cache, &[("node", name), ("outcome", outcome.name())], sum(node, CACHE + index))?;
            }
        }
        for (metric, cell) in [
            (&table::BODY_BYTES, BYTES),
            (&table::NODE_CONNECTIONS, CONNECTIONS),
            (&table::HANDED_OFF, HANDED_OFF),
            (&table::HANDED_OFF_BYTES, HANDED_OFF_BYTES),
        ] {
            let mut family = describe(encoder, metric)?;
            for (node, name) in who() {
                count(&mut family, &[("node", name)], sum(node, cell))?;
            }
        }
        let mut transitions = describe(encoder, &table::TRANSITIONS)?;
        for (node, name) in who() {
            for (index, state) in STATES.into_iter().enumerate() {
                let labels = [("node", name), ("to", &state.to_string())];
                count(&mut transitions, &labels, sum(node, TRANSITIONS + index))?;
            }
        }
        let mut ejections = describe(encoder, &table::EJECTIONS)?;
        for (node, name) in who() {
            count(&mut ejections, &[("node", name)], sum(node, EJECTIONS))?;
        }
        let mut first_byte = describe(encoder, &table::FIRST_BYTE)?;
        for (node, name) in who() {
            self.histogram(first_byte.encode_family(&[("node", name)])?, metrics.block(node) + FIRST_BYTE)?;
        }
        node_gauges(encoder, rows, &names)?;
        self.signals(encoder, rows, &names)
    }

    /// Encodes metrics of signals.
    fn signals(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        rows: &[NodeRow],
        names: &[Arc<str>],
    ) -> Result<(), Error> {
        let now = self.shared.decider.clock.now();
        let nodes = rows.iter().map(|row| self.shared.decider.nodes.get(row.id)).zip(names);
        let nodes: Vec<_> = nodes.filter_map(|(node, name)| Some((node?, &**name))).collect();
        let mut ages = describe(encoder, &table::REPORT_AGE)?;
        for (node, name) in &nodes {
            if let Some(age) = node.signals.age(now) {
                ages.encode_family(&[("node", *name)])?.encode_gauge(&age.as_secs_f64())?;
            }
        }
        let mut reports = describe(encoder, &table::REPORTS)?;
        for (node, name) in &nodes {
            count(&mut reports, &[("node", name)], node.signals.reports())?;
        }
        let mut failures = describe(encoder, &table::SIGNAL_FAILURES)?;
        for (node, name) in &nodes {
            for (cause, failed) in node.signals.failures() {
                count(&mut failures, &[("node", name), ("cause", cause)], failed)?;
            }
        }
        let mut events = describe(encoder, &table::CACHE_EVENTS)?;
        for (node, name) in &nodes {
            for (kind, seen) in node.signals.events() {
                count(&mut events, &[("node", name), ("kind", kind)], seen)?;
            }
        }
        let mut lags = describe(encoder, &table::CACHE_LAG)?;
        for (node, name) in nodes.iter().filter(|(node, _)| node.signals.is_streaming()) {
            lags.encode_family(&[("node", *name)])?.encode_gauge(&node.signals.lag().as_secs_f64())?;
        }
        Ok(())
    }

    /// Encodes metrics per route and group.
    fn routes(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let Decider { metrics, routing, dispatcher, .. } = &*self.shared.decider;
        let mut requests = describe(encoder, &table::ROUTE_REQUESTS)?;
        for (id, route) in routing.all() {
            for (class, value) in ServiceClass::ALL.into_iter().zip(metrics.route_requests(id)) {
                count(&mut requests, &[("route", &*route.name), ("service_class", class.name())], value)?;
            }
        }
        let mut decisions = describe(encoder, &table::ROUTE_DECISIONS)?;
        for (id, route) in routing.all() {
            for (index, reason) in Reason::ALL.iter().enumerate() {
                let value = metrics.cells.sum(metrics.route_block(id) + ROUTE_REASON + index);
                if value > 0 {
                    count(&mut decisions, &[("route", &*route.name), ("reason", reason.name())], value)?;
                }
            }
        }
        let mut outstanding = describe(encoder, &table::GROUP_OUTSTANDING)?;
        for (group, name) in routing.all_groups() {
            let value = dispatcher.outstanding_in(group);
            outstanding.encode_family(&[("group", name)])?.encode_gauge(&value)?;
        }
        let mut on_backups = describe(encoder, &table::GROUP_ON_BACKUPS)?;
        for (group, name) in routing.all_groups() {
            let value = u32::from(dispatcher.nodes().on_backups(group));
            on_backups.encode_family(&[("group", name)])?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// Encodes metrics of the switch as a whole.
    fn switch(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let cells = &self.shared.decider.metrics.cells;
        let mut decisions = describe(encoder, &table::DECISIONS)?;
        for (index, reason) in Reason::ALL.iter().enumerate() {
            count(&mut decisions, &[("reason", reason.name())], cells.sum(REASON + index))?;
        }
        let mut failures = describe(encoder, &table::FAILURES)?;
        for (index, failure) in Failure::ALL.iter().enumerate() {
            count(&mut failures, &[("error", failure.name())], cells.sum(FAILURE + index))?;
        }
        let mut retries = describe(encoder, &table::RETRIES)?;
        for (index, retry) in RetryKind::ALL.iter().enumerate() {
            count(&mut retries, &[("kind", retry.name())], cells.sum(RETRY + index))?;
        }
        let mut purges = describe(encoder, &table::PURGES)?;
        for (outcome, value) in self.shared.purges.outcomes() {
            count(&mut purges, &[("outcome", outcome)], value)?;
        }
        self.histogram(describe(encoder, &table::TOTAL)?, TOTAL)?;
        self.histogram(describe(encoder, &table::QUEUE_WAIT)?, QUEUE_WAIT)?;
        let (dispatcher, per_client) =
            (&self.shared.decider.dispatcher, self.shared.guards.per_client.as_ref());
        for (metric, value) in [
            (&table::QUEUED, dispatcher.queued() as u64),
            (&table::OUTSTANDING, dispatcher.outstanding().into()),
            (&table::ADMISSION_LIMIT, LimitSums::new(&self.shared).admission.unwrap_or(u32::MAX).into()),
            (&table::TARGETS, dispatcher.targets_known() as u64),
            (&table::CLIENTS, self.shared.guards.clients.load(Relaxed) as u64),
            (&table::CLIENTS_KNOWN, per_client.map_or(0, |clients| clients.known() as u64)),
        ] {
            describe(encoder, metric)?.encode_gauge(&value)?;
        }
        let dropped = self.shared.observers.access.as_ref().map_or(0, AccessLog::dropped);
        for (metric, value) in [
            (&table::CLIENTS_TOTAL, cells.sum(CLIENTS)),
            (&table::LOG_DROPPED, dropped),
            (&table::RETRIES_DENIED, self.shared.guards.retries.denied()),
            (&table::CLIENTS_OVERFLOWED, per_client.map_or(0, |clients| clients.overflowed())),
            (&table::PANICS, cells.sum(PANICS)),
            (&table::HTTP2, cells.sum(HTTP2)),
            (&table::FIELDS_DROPPED, cells.sum(FIELDS_DROPPED)),
        ] {
            describe(encoder, metric)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    /// Encodes metrics of TLS.
    fn tls(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let tls = self.shared.tls.as_ref();
        let mut handshakes = describe(encoder, &table::TLS_HANDSHAKES)?;
        for how in TlsHandshakeOutcome::ALL {
            count(
                &mut handshakes,
                &[("outcome", how.name())],
                tls.map_or(0, |tls| tls.handshake_count(how)),
            )?;
        }
        let (certificates, trouble) = tls.map(|tls| tls.status()).unwrap_or_default();
        let mut ends = describe(encoder, &table::TLS_NOT_AFTER)?;
        for certificate in certificates {
            ends.encode_family(&[("file", &*certificate.file)])?.encode_gauge(&certificate.not_after)?;
        }
        describe(encoder, &table::TLS_STALE)?.encode_gauge(&u32::from(trouble.is_some()))?;
        let acme = tls.and_then(|tls| tls.acme());
        let mut orders = describe(encoder, &table::ACME_ORDERS)?;
        for (outcome, ended) in acme.map(Acme::orders).into_iter().flatten() {
            count(&mut orders, &[("outcome", outcome)], ended)?;
        }
        let hosts = acme.map(Acme::status).unwrap_or_default();
        let mut failures = describe(encoder, &table::ACME_FAILURES)?;
        for AcmeStatus { host, failures: failed, .. } in &hosts {
            failures.encode_family(&[("host", &**host)])?.encode_gauge(failed)?;
        }
        let mut next = describe(encoder, &table::ACME_NEXT)?;
        for AcmeStatus { host, next_order, .. } in &hosts {
            next.encode_family(&[("host", &**host)])?.encode_gauge(next_order)?;
        }
        Ok(())
    }

    /// Encodes metrics of peer switches.
    fn peer_switches(&self, encoder: &mut DescriptorEncoder<'_>, rows: &[NodeRow]) -> Result<(), Error> {
        let peer_switches = self.shared.peer_switches.as_ref();
        let (others, sets) = peer_switches
            .map(|peer_switches| peer_switches.peers_and_counts(self.shared.decider.clock.now()))
            .unwrap_or_default();
        let (sets, counts) = (SetsStatus::from(sets), sets);
        let network = peer_switches.map(|peer_switches| peer_switches.network_counts()).unwrap_or_default();
        let unknown = others.iter().filter(|other| other.unknown).count();
        let mut states = describe(encoder, &table::PEER_SWITCHES)?;
        for (state, value) in [("known", others.len() - unknown), ("unknown", unknown)] {
            states.encode_family(&[("state", state)])?.encode_gauge(&(value as u64))?;
        }
        let mut elsewhere = describe(encoder, &table::PEER_LOAD)?;
        for row in rows.iter().filter(|_| peer_switches.is_some()) {
            let requests = self.shared.decider.dispatcher.nodes().peer_requests(row.id);
            elsewhere.encode_family(&[("node", &*row.name)])?.encode_gauge(&requests)?;
        }
        let mut told = describe(encoder, &table::SETS)?;
        let what = [
            ("told", sets.told),
            ("taken", sets.taken),
            ("same", sets.same),
            ("older", sets.older),
            ("too_large", sets.too_large),
        ];
        for (what, value) in what {
            count(&mut told, &[("what", what)], value)?;
        }
        let mut prompts = describe(encoder, &table::PEER_PROMPTS)?;
        let what =
            [("sent", counts.prompts_sent), ("taken", counts.prompts_taken), ("lost", counts.prompts_lost)];
        for (what, value) in what {
            count(&mut prompts, &[("what", what)], value)?;
        }
        for (metric, value) in [
            (&table::SETS_MISSED, sets.missed),
            (&table::PARTS_ASKED, sets.parts_asked),
            (&table::CREDIT_PAGES_ASKED, counts.credit_pages_asked),
            (&table::INVALID_MESSAGES, sets.strange),
            (&table::OTHER_SECRET_DATAGRAMS, network.datagrams_other_secret),
            (&table::SECRET_LINKS_REVOKED, network.links_revoked),
        ] {
            describe(encoder, metric)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        describe(encoder, &table::OTHER_SECRET_LINKS)?.encode_gauge(&network.links_other_secret)?;
        Ok(())
    }

    /// Encodes metrics of copies and hedges.
    fn copies(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut copies = describe(encoder, &table::COPIES)?;
        let routing = &self.shared.decider.routing;
        for mirror in routing.all().flat_map(|(_, route)| route.mirrors.iter()) {
            for (outcome, value) in mirror.outcomes() {
                count(
                    &mut copies,
                    &[("route", &*routing.route(mirror.route).name), ("outcome", outcome)],
                    value,
                )?;
            }
        }
        let mut hedges = describe(encoder, &table::HEDGES)?;
        for (_, route) in routing.all() {
            for (outcome, value) in route.hedging.iter().flat_map(RouteHedging::outcomes) {
                count(&mut hedges, &[("route", &*route.name), ("outcome", outcome)], value)?;
            }
        }
        Ok(())
    }

    /// Encodes metrics of prompts.
    fn prompts(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let routes = self.shared.decider.routing.all();
        let rows: Vec<(&str, PromptStatus)> =
            routes.filter_map(|(_, route)| Some((&*route.name, route.prompts.as_ref()?.status()))).collect();
        let mut prompts = describe(encoder, &table::PROMPTS)?;
        for (route, row) in &rows {
            count(&mut prompts, &[("route", route)], row.prompts)?;
        }
        let mut tokens = describe(encoder, &table::PROMPT_TOKENS)?;
        for (route, row) in &rows {
            let missing = row.tokens.saturating_sub(row.credited);
            for (expected, value) in [("cached", row.credited), ("missing", missing)] {
                count(&mut tokens, &[("route", route), ("expected", expected)], value)?;
            }
        }
        let mut credits = describe(encoder, &table::PROMPT_CREDITS)?;
        for (route, row) in &rows {
            credits.encode_family(&[("route", *route)])?.encode_gauge(&(row.credits as u64))?;
        }
        let mut capacities = describe(encoder, &table::PROMPT_CAPACITY)?;
        let nodes = self.shared.decider.dispatcher.nodes();
        for (_, route, chains) in self.shared.decider.routing.chains() {
            for (node, tokens) in chains.capacities(nodes) {
                let labels = [("route", &*route.name), ("node", &*nodes.name(node))];
                capacities.encode_family(&labels)?.encode_gauge(&tokens)?;
            }
        }
        let mut requests = describe(encoder, &table::PROMPT_REQUESTS)?;
        for (_, route, chains) in self.shared.decider.routing.chains() {
            for (node, work) in chains.total_work(nodes) {
                let labels = [("route", &*route.name), ("node", &*nodes.name(node))];
                requests.encode_family(&labels)?.encode_gauge(&work.requests)?;
            }
        }
        let mut bodies = describe(encoder, &table::PROMPT_BODY_BYTES)?;
        for (route, row) in &rows {
            bodies.encode_family(&[("route", *route)])?.encode_gauge(&(row.body_bytes as u64))?;
        }
        Ok(())
    }

    fn handoff(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        self.prompts(encoder)?;
        self.copies(encoder)?;
        self.histogram(describe(encoder, &table::HANDED_OFF_TOTAL)?, HANDED_OFF_TOTAL)?;
        let edge = self.shared.handoff.as_ref();
        let mut deliveries = describe(encoder, &table::DELIVERIES)?;
        for (delivery, value) in edge.iter().flat_map(|edge| edge.counts.deliveries()) {
            let labels = [("mechanism", delivery.mechanism.name()), ("why", delivery.reason.name())];
            count(&mut deliveries, &labels, value)?;
        }
        let mut ends = describe(encoder, &table::HANDOFF_ENDS)?;
        for (end, value) in edge.iter().flat_map(|edge| edge.counts.ends()) {
            count(&mut ends, &[("end", end.name())], value)?;
        }
        let (held, handed, placed) = edge.map_or((0, 0, 0), |edge| edge.sizes());
        let mut connections = describe(encoder, &table::HANDOFF_CONNECTIONS)?;
        for (state, value) in [("held", held), ("handed_off", handed), ("placed", placed)] {
            connections.encode_family(&[("state", state)])?.encode_gauge(&(value as u64))?;
        }
        let [packets, late, unaccepted] = edge.map_or([0; 3], |edge| edge.counts.losses());
        let mut lost = describe(encoder, &table::HANDOFF_LOST)?;
        for (what, value) in [("packet", packets), ("late", late), ("connection", unaccepted)] {
            count(&mut lost, &[("what", what)], value)?;
        }
        let (seen, elsewhere) = edge.map_or((0, 0), |edge| edge.counts.later_requests());
        let mut later = describe(encoder, &table::LATER_REQUESTS)?;
        for (home, value) in [("here", seen.saturating_sub(elsewhere)), ("elsewhere", elsewhere)] {
            count(&mut later, &[("home", home)], value)?;
        }
        let mut plane = describe(encoder, &table::PLANE)?;
        for (event, value) in edge.iter().flat_map(|edge| edge.plane_counters()) {
            count(&mut plane, &[("event", event)], value)?;
        }
        Ok(())
    }

    /// Encodes metrics of reloads.
    fn reloads(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let reloads = *self.shared.reloads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut outcomes = describe(encoder, &table::RELOADS)?;
        let counts = [
            ("done", reloads.done),
            ("refused", reloads.refused),
            ("failed", reloads.failed),
            ("restarted", reloads.restarted),
        ];
        for (outcome, value) in counts {
            count(&mut outcomes, &[("outcome", outcome)], value)?;
        }
        describe(encoder, &table::GENERATION)?.encode_gauge(&reloads.generation)?;
        describe(encoder, &table::RETIRING)?.encode_gauge(&reloads.retiring)?;
        describe(encoder, &table::RELOADED_AT)?.encode_gauge(&reloads.last_unix_s)?;
        describe(encoder, &table::RELOADED)?.encode_gauge(&u32::from(!reloads.last_failed))
    }

    /// Encodes metrics of spans; nothing if requests are not traced.
    fn spans(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut spans = describe(encoder, &table::SPANS)?;
        let counts = self.shared.observers.tracer.as_ref().map(Tracer::counts);
        let outcomes =
            counts.iter().flat_map(|c| [("sent", c.sent), ("dropped", c.dropped), ("failed", c.failed)]);
        for (outcome, value) in outcomes {
            count(&mut spans, &[("outcome", outcome)], value)?;
        }
        Ok(())
    }

    fn histogram(&self, mut encoder: MetricEncoder<'_>, at: usize) -> Result<(), Error> {
        let cells = &self.shared.decider.metrics.cells;
        let bounds = bounds_s().chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> =
            bounds.enumerate().map(|(i, bound)| (bound, cells.sum(at + i))).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum_s = cells.sum(at + HISTOGRAM_CELLS - 1) as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(sum_s, count, &buckets, None)
    }
}

fn node_gauges(
    encoder: &mut DescriptorEncoder<'_>,
    rows: &[NodeRow],
    names: &[Arc<str>],
) -> Result<(), Error> {
    let mut load = describe(encoder, &table::NODE_LOAD)?;
    for (row, name) in rows.iter().zip(names) {
        load.encode_family(&[("node", &**name)])?.encode_gauge(&row.load)?;
    }
    let mut long_lived = describe(encoder, &table::NODE_LONG_LIVED)?;
    for (row, name) in rows.iter().zip(names) {
        long_lived.encode_family(&[("node", &**name)])?.encode_gauge(&row.long_lived)?;
    }
    let mut standby = describe(encoder, &table::NODE_STANDBY)?;
    for (row, name) in rows.iter().zip(names) {
        standby.encode_family(&[("node", &**name)])?.encode_gauge(&u32::from(row.standby))?;
    }
    let mut states = describe(encoder, &table::NODE_STATE)?;
    for (row, name) in rows.iter().zip(names) {
        for state in STATES {
            let labels = [("node", &**name), ("state", &state.to_string())];
            states.encode_family(&labels)?.encode_gauge(&u32::from(row.state == state))?;
        }
    }
    Ok(())
}

pub(super) fn count(
    encoder: &mut MetricEncoder<'_>,
    labels: &[(&str, &str)],
    value: u64,
) -> Result<(), Error> {
    encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
}

pub(super) fn describe<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    metric: &'a Metric,
) -> Result<MetricEncoder<'a>, Error> {
    let kind = match metric.kind {
        MetricKind::Counter => MetricType::Counter,
        MetricKind::Gauge => MetricType::Gauge,
        MetricKind::Histogram => MetricType::Histogram,
    };
    encoder.encode_descriptor(metric.family(), metric.help, None, kind)
}
