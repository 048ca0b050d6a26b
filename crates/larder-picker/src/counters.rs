//! The counters of a picker, and their text for Prometheus.

use larder_core::Reason;
use larder_edge::{Metric, MetricKind};
use larder_prompts::PromptStatus;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Heading of the metrics in the reference.
const TOPIC: &str = "Endpoint picker";

const DECISIONS: Metric = counter("larder_picker_decisions_total", &["reason"], "Decisions, by reason");
const REQUESTS: Metric = counter(
    "larder_picker_requests_total",
    &["outcome"],
    "Requests, by outcome (complete, unfinished: the response broke off, cancelled: no response, no_endpoint: 503, limit: 429, \
     too_large: a message or a prompt beyond the limit, no_prompt: a completion without one, 400, memory_full: no memory for a \
     prompt, 503, body_timeout: the body of a completion arrived too slowly, 408, invalid: the gateway broke the protocol, \
     bypassed: the gateway sent no request headers)",
);
const SERVED_ELSEWHERE: Metric = counter(
    "larder_picker_served_elsewhere_total",
    &[],
    "Responses of another endpoint than the first of the list, as the gateway reports it",
);
const CACHE: Metric = counter(
    "larder_picker_cache_outcomes_total",
    &["outcome"],
    "Responses whose Cache-Status says that the endpoint had the target in memory, or had not",
);
const BYTES: Metric = counter(
    "larder_picker_response_body_bytes_total",
    &[],
    "Bytes of response bodies that gateways have shown to the picker",
);
const REFUSED: Metric = counter(
    "larder_picker_refused_total",
    &["what"],
    "Connections and streams beyond their limits, and failed handshakes (connections, streams, handshakes)",
);
const STREAMS: Metric = gauge("larder_picker_streams", &[], "Open streams, one for each request in flight");
const CONNECTIONS: Metric = gauge("larder_picker_connections", &[], "Open connections of gateways");
const ENDPOINTS: Metric = gauge("larder_picker_endpoints", &[], "Known endpoints");
const TARGETS: Metric = gauge("larder_picker_targets", &[], "Targets whose endpoints are stored");
const PROMPTS: Metric = counter("larder_picker_prompts_total", &[], "Prompts placed at endpoints");
const PROMPT_TOKENS: Metric = counter(
    "larder_picker_prompt_tokens_total",
    &["expected"],
    "Tokens of placed prompts, estimated from their bytes, by what the endpoint was expected to have (cached, missing)",
);
const PROMPT_CREDITS: Metric = gauge(
    "larder_picker_prompt_credits",
    &[],
    "Pairs of a block of prompts and an endpoint that is expected to have it cached",
);
const PROMPT_BODY_BYTES: Metric =
    gauge("larder_picker_prompt_body_bytes", &[], "Bytes of memory reserved for bodies with prompts");
const LOAD: Metric = gauge("larder_picker_endpoint_load", &["node"], "Requests in flight at an endpoint");

/// Every metric of a picker.
pub const METRICS: [Metric; 15] = [
    DECISIONS,
    REQUESTS,
    SERVED_ELSEWHERE,
    CACHE,
    BYTES,
    REFUSED,
    STREAMS,
    CONNECTIONS,
    ENDPOINTS,
    TARGETS,
    LOAD,
    PROMPTS,
    PROMPT_TOKENS,
    PROMPT_CREDITS,
    PROMPT_BODY_BYTES,
];

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { topic: TOPIC, name, kind: MetricKind::Counter, labels, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { topic: TOPIC, name, kind: MetricKind::Gauge, labels, help }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    Complete,
    /// The response broke off.
    Unfinished,
    /// The request ended without a response.
    Cancelled,
    NoEndpoint,
    Limit,
    TooLarge,
    /// A completion has no prompt.
    NoPrompt,
    /// The bodies of prompts have used up their memory.
    MemoryFull,
    /// The body of a completion arrived too slowly.
    BodyTimeout,
    Invalid,
    /// The gateway sent no request headers, because a filter before the picker's replied.
    Bypassed,
}

impl RequestOutcome {
    const ALL: [Self; 11] = [
        Self::Complete,
        Self::Unfinished,
        Self::Cancelled,
        Self::NoEndpoint,
        Self::Limit,
        Self::TooLarge,
        Self::NoPrompt,
        Self::MemoryFull,
        Self::BodyTimeout,
        Self::Invalid,
        Self::Bypassed,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Unfinished => "unfinished",
            Self::Cancelled => "cancelled",
            Self::NoEndpoint => "no_endpoint",
            Self::Limit => "limit",
            Self::TooLarge => "too_large",
            Self::NoPrompt => "no_prompt",
            Self::MemoryFull => "memory_full",
            Self::BodyTimeout => "body_timeout",
            Self::Invalid => "invalid",
            Self::Bypassed => "bypassed",
        }
    }
}

/// The counters of a picker.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    decisions: [AtomicU64; Reason::ALL.len()],
    requests: [AtomicU64; RequestOutcome::ALL.len()],
    pub(crate) served_elsewhere: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) streams_refused: AtomicU64,
    pub(crate) handshakes_failed: AtomicU64,
    /// Open streams and connections.
    pub(crate) streams: AtomicU64,
    pub(crate) connections: AtomicU64,
}

impl Counters {
    pub(crate) fn decide(&self, reason: Reason) {
        if let Some(count) = self.decisions.get(reason as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn end(&self, outcome: RequestOutcome) {
        self.requests[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn ended(&self, outcome: RequestOutcome) -> u64 {
        self.requests[outcome as usize].load(Relaxed)
    }

    /// Returns the outcomes of requests with their names.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        RequestOutcome::ALL.into_iter().map(|outcome| (outcome.name(), self.ended(outcome)))
    }

    /// Formats the metrics. `endpoints` and `targets` are the numbers of both, and `loads` are the nodes with their requests.
    pub(crate) fn text(
        &self,
        endpoints: usize,
        targets: usize,
        loads: &[(String, u32)],
        prompts: Option<PromptStatus>,
    ) -> String {
        let of = |count: &AtomicU64| count.load(Relaxed);
        let mut text = String::new();
        let reasons =
            Reason::ALL.iter().zip(&self.decisions).map(|(reason, count)| (reason.name(), of(count)));
        family(&mut text, &DECISIONS, reasons);
        family(&mut text, &REQUESTS, self.outcomes());
        family(&mut text, &SERVED_ELSEWHERE, [("", of(&self.served_elsewhere))]);
        family(&mut text, &CACHE, [("hit", of(&self.hits)), ("miss", of(&self.misses))]);
        family(&mut text, &BYTES, [("", of(&self.bytes))]);
        let refused = [
            ("connections", of(&self.connections_refused)),
            ("streams", of(&self.streams_refused)),
            ("handshakes", of(&self.handshakes_failed)),
        ];
        family(&mut text, &REFUSED, refused);
        family(&mut text, &STREAMS, [("", of(&self.streams))]);
        family(&mut text, &CONNECTIONS, [("", of(&self.connections))]);
        family(&mut text, &ENDPOINTS, [("", endpoints as u64)]);
        family(&mut text, &TARGETS, [("", targets as u64)]);
        family(&mut text, &LOAD, loads.iter().map(|(name, load)| (name.as_str(), u64::from(*load))));
        if let Some(prompts) = prompts {
            let missing = prompts.tokens.saturating_sub(prompts.credited);
            family(&mut text, &PROMPTS, [("", prompts.prompts)]);
            family(&mut text, &PROMPT_TOKENS, [("cached", prompts.credited), ("missing", missing)]);
            family(&mut text, &PROMPT_CREDITS, [("", prompts.credits as u64)]);
            family(&mut text, &PROMPT_BODY_BYTES, [("", prompts.body_bytes as u64)]);
        }
        text
    }
}

/// Appends the values of a metric, each with the value of its only label if it has one.
fn family<'a>(text: &mut String, metric: &Metric, values: impl IntoIterator<Item = (&'a str, u64)>) {
    let Metric { name, kind, labels, help, .. } = metric;
    // Writing to a `String` cannot fail.
    let _ = write!(text, "# HELP {name} {help}.\n# TYPE {name} {}\n", kind.name());
    for (value, count) in values {
        let _ = match labels.first() {
            None => writeln!(text, "{name} {count}"),
            Some(label) => writeln!(text, "{name}{{{label}=\"{}\"}} {count}", escape(value)),
        };
    }
}

/// Escapes the value of a label.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
