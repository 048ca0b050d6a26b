//! The config of a picker.

use larder_core::Settings;
use larder_core::dispatch::Admission;
use larder_core::rules::KeyTemplate;
use larder_edge::TlsConfig;
use larder_embed::extra_input;
use larder_peer_switches::SwitchesConfig;
use larder_prompts::PromptConfig;
use std::time::Duration;

/// The largest number of fallback endpoints.
pub const FALLBACKS_MAX: usize = 7;

/// The config of a picker. Addresses and nodes come with the calls that start it.
#[derive(Clone, Debug)]
pub struct PickerConfig {
    /// The settings of the dispatcher. Requests do not queue. [`Admission::Auto`] is no limit, because the gateway has limits of its own.
    pub settings: Settings,
    /// The template of the target key.
    pub key: KeyTemplate,
    /// The number of further endpoints that the gateway may try, at most [`FALLBACKS_MAX`]. Default 0, because not every gateway takes a
    /// list: Envoy's `ORIGINAL_DST` takes one address.
    pub fallbacks: usize,
    /// TLS of the listener.
    pub tls: PickerTls,
    /// Limits of connections and streams.
    pub limits: PickerLimits,
    /// Placement of prompts: completions of OpenAI's API go to the endpoint that has the longest part of their prompt cached. Default
    /// none.
    pub prompts: Option<PromptConfig>,
    /// Other replicas of this picker. Default none.
    pub peers: Option<SwitchesConfig>,
}

/// TLS of the listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PickerTls {
    /// No TLS: HTTP/2 with prior knowledge.
    Off,
    /// TLS with a certificate that is made at the start. It encrypts and does not authenticate; gateways do not check the picker's
    /// certificate by default.
    SelfSigned,
    /// TLS with certificates from files.
    Files(Box<TlsConfig>),
}

/// Limits of connections and streams. Each has a named outcome in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PickerLimits {
    /// Maximum connections. Further ones are closed: `connections_refused`. Default 1,024.
    pub connections: usize,
    /// Maximum streams in all, one for each request in flight at the gateways. Further ones end with the gRPC status
    /// `RESOURCE_EXHAUSTED`: `streams_refused`. Default 100,000.
    pub streams: usize,
    /// Maximum streams of a connection. The gateway waits, or opens another connection. Default 10,000.
    pub streams_per_connection: u32,
    /// Maximum size of a message, which has all headers or a piece of a body. A larger one ends the stream with `OUT_OF_RANGE`: outcome
    /// `too_large`. Default 4 MiB.
    pub message_bytes: usize,
    /// Maximum time of a TLS handshake, and then of the HTTP/2 preface. Default 10 s.
    pub handshake: Duration,
    /// Time for streams to end after a shutdown has begun. Default 30 s.
    pub drain: Duration,
}

impl Default for PickerLimits {
    fn default() -> Self {
        Self {
            connections: 1_024,
            streams: 100_000,
            streams_per_connection: 10_000,
            message_bytes: 4 << 20,
            handshake: Duration::from_secs(10),
            drain: Duration::from_secs(30),
        }
    }
}

impl PickerConfig {
    /// Creates a config with the defaults.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            key: KeyTemplate::default(),
            fallbacks: 0,
            tls: PickerTls::SelfSigned,
            limits: PickerLimits::default(),
            prompts: None,
            peers: None,
        }
    }

    /// Returns the reason why the policy cannot run in a picker; `None` if it can.
    pub fn refusal(&self) -> Option<String> {
        let policy = self.settings.policy;
        extra_input(policy).map(|reason| format!("{policy} cannot run in a picker: {reason}"))
    }

    /// Returns the settings of the dispatcher.
    pub(crate) fn dispatcher_settings(&self) -> Settings {
        let admission = match self.settings.admission {
            Admission::Auto => Admission::Unlimited,
            given => given,
        };
        Settings { admission, queue_max: 0, ..self.settings.clone() }
    }
}
