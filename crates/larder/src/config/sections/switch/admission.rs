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

    /// Number of requests that are admitted at once; further requests wait. "auto", "derived", "unlimited", or a
    /// number. "derived": S = (n-1) t_high + t_low - 1 for n nodes. "auto": S, if a policy in use has these
    /// thresholds (lard, lard-r). Without such a policy, "auto" is 1000 per node, or t_high if that is larger. If
    /// only one of several nodes is up, "auto" is t_high with such a policy. Long-lived requests do not count, see
    /// [switch.admission.long_lived].
    limit: AdmissionKey = AdmissionKey::Word(AdmissionWord::Auto), range "1 to 4294967295";
    /// Number of requests that may wait for admission. Beyond it: 503 with Retry-After.
    queue_max: usize = settings.queue_max, range "0 to 1000000";
    /// Longest wait for admission. After it: 503 with Retry-After.
    queue_timeout: Span = Span(settings.queue_timeout), range "0s to 366d";
    /// Long-lived requests, such as WebSockets and streams, which have their own limit.
    long_lived: LongLivedSection;
}

keys! {
    /// `[switch.join]`.
    table JoinSection, settings = Settings::default();

    /// New targets per second that a joining node may take until it is warm.
    targets_per_s: u32 = settings.join_targets_per_s, range "1 to 1000000";
    /// Number of new targets after which a joining node counts as warm. 0: at once.
    warm_targets: u32 = settings.join_warm_targets;
}

keys! {
    /// `[switch.admission.long_lived]`.
    table LongLivedSection, long_lived = LongLivedConfig::default(), max = Settings::default().long_lived_max;

    /// Requests that leave the admission limit once the header of their reply has arrived: "upgrade" (WebSocket and
    /// other upgrades, CONNECT), "event-stream" (text/event-stream), "grpc" (application/grpc). Leave out a kind
    /// whose requests are work for the node all the time, such as event streams of a language model.
    kinds: Vec<LongLivedKind> = vec![LongLivedKind::Upgrade, LongLivedKind::EventStream, LongLivedKind::Grpc];
    /// Time at a node after which any other request leaves the admission limit, while its reply is sent. 0s: never.
    /// Policies that place by content do not count such requests, so keep 0s if downloads are the main load.
    after: Span = Span(long_lived.after.unwrap_or_default()), range "1s to 1h, or 0s";
    /// Number of long-lived requests at a node. Further ones stay within the admission limit.
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
    /// gRPC calls.
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
    /// The limit by thresholds if a policy has them, else a number per node.
    Auto,
    /// The limit by thresholds and the number of open nodes.
    Derived,
    /// No limit.
    Unlimited,
}

/// Returns the admission limit.
pub(crate) fn limit(raw: AdmissionKey) -> Admission {
    match raw {
        AdmissionKey::Fixed(limit) => Admission::Fixed(limit),
        AdmissionKey::Word(AdmissionWord::Auto) => Admission::Auto,
        AdmissionKey::Word(AdmissionWord::Derived) => Admission::Derived,
        AdmissionKey::Word(AdmissionWord::Unlimited) => Admission::Unlimited,
    }
}

/// Returns the rules for long-lived requests.
pub(crate) fn long_lived(raw: &LongLivedSection) -> LongLivedConfig {
    let has = |kind| raw.kinds.contains(&kind);
    LongLivedConfig {
        upgrades: has(LongLivedKind::Upgrade),
        event_streams: has(LongLivedKind::EventStream),
        grpc: has(LongLivedKind::Grpc),
        after: Some(raw.after.0).filter(|after| !after.is_zero()),
    }
}
