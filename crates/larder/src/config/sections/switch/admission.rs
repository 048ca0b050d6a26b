//! `[switch.admission]` and `[switch.join]`.

use larder_core::Settings;
use larder_core::dispatch::Admission;
use larder_switch::LongLivedConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::keys::keys;
use crate::config::text::Span;

keys! {
    /// `[switch.admission]`.
    table AdmissionSection, settings = Settings::default();

    /// Requests admitted at once; the rest wait. "auto": S = (n-1) t_high + t_low - 1 for n > 1 nodes if a policy of theirs
    /// goes by t_low and t_high (lard, lard-r), and t_high for the last of several; else 1000 per node, or t_high if that is
    /// more. "derived": S in any case.
    /// "unlimited", or a number. Long-lived requests do not count, see [switch.admission.long_lived].
    limit: AdmissionKey = AdmissionKey::Word(AdmissionWord::Auto), range "1 to 4294967295";
    /// Requests that may wait for admission; the next one gets 503 with Retry-After.
    queue_max: usize = settings.queue_max, range "0 to 1000000";
    /// Longest wait for admission; then 503 with Retry-After.
    queue_timeout: Span = Span(settings.queue_timeout), range "0s to 366d";
    /// Requests that last, such as WebSockets and streams: they have a limit of their own.
    long_lived: LongLivedSection;
}

keys! {
    /// `[switch.join]`.
    table JoinSection, settings = Settings::default();

    /// New targets a second that a joining node may take until it is warm.
    targets_per_s: u32 = settings.join_targets_per_s, range "1 to 1000000";
    /// Targets after which a joining node counts as warm.
    warm_targets: u32 = settings.join_warm_targets;
}

keys! {
    /// `[switch.admission.long_lived]`.
    table LongLivedSection, long_lived = LongLivedConfig::default(), max = Settings::default().long_lived_max;

    /// Which requests leave the admission limit once the header of their reply has come: "upgrade" (WebSocket and other
    /// upgrades, CONNECT), "event-stream" (text/event-stream), "grpc" (application/grpc). Leave out a kind whose requests are
    /// work for the node as long as they last, such as the event streams of a language model.
    kinds: Vec<LongLivedKind> = vec![LongLivedKind::Upgrade, LongLivedKind::EventStream, LongLivedKind::Grpc];
    /// Any other request leaves the admission limit after this time at its node, while its reply is being sent. 0s: never.
    /// Policies that place by content do not see such requests: leave it off where downloads are what loads nodes.
    after: Span = Span(long_lived.after.unwrap_or_default()), range "1s to 1h, or 0s";
    /// Long-lived requests that a node may have. Further ones stay within the admission limit.
    max_per_node: u32 = max, range "0 to 1000000";
}

/// The words of `switch.admission.long_lived.kinds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LongLivedKind {
    /// Upgraded connections and tunnels.
    Upgrade,
    /// Event streams.
    EventStream,
    /// Calls of gRPC.
    Grpc,
}

/// `switch.admission.limit`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "limit is \"auto\", \"derived\", \"unlimited\" or a number of requests")]
pub(crate) enum AdmissionKey {
    /// A number of requests.
    Fixed(u32),
    /// "auto", "derived" or "unlimited".
    Word(AdmissionWord),
}

/// The words of [`AdmissionKey`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AdmissionWord {
    /// By thresholds where a policy goes by them, else a number per node.
    Auto,
    /// From the thresholds and the number of nodes that are up.
    Derived,
    /// No limit.
    Unlimited,
}

/// The limit of requests that are admitted at once.
pub(crate) fn limit(raw: AdmissionKey) -> Admission {
    match raw {
        AdmissionKey::Fixed(limit) => Admission::Fixed(limit),
        AdmissionKey::Word(AdmissionWord::Auto) => Admission::Auto,
        AdmissionKey::Word(AdmissionWord::Derived) => Admission::Derived,
        AdmissionKey::Word(AdmissionWord::Unlimited) => Admission::Unlimited,
    }
}

/// Which requests are long-lived.
pub(crate) fn long_lived(raw: &LongLivedSection) -> LongLivedConfig {
    let has = |kind| raw.kinds.contains(&kind);
    LongLivedConfig {
        upgrades: has(LongLivedKind::Upgrade),
        event_streams: has(LongLivedKind::EventStream),
        grpc: has(LongLivedKind::Grpc),
        after: Some(raw.after.0).filter(|after| !after.is_zero()),
    }
}
