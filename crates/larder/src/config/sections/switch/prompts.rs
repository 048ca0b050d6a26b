//! `prompts` of `[[switch.routes]]` and of `[picker]`.

use larder_core::Bytes;
use larder_core::chain::{ChainPolicyKind, ChainSettings};
use larder_switch::PromptConfig;

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::sections::switch::route::RouteSection;
use crate::config::text::{Size, Span};
use crate::config::values::word;

keys! {
    /// `prompts`.
    table PromptsSection, standard = PromptConfig::default();

    /// Policy that places the prompts: "lard-prefix", or one to compare with. The policy of the route places all other
    /// requests.
    #[schemars(extend("enum" = ChainPolicyKind::ALL.map(ChainPolicyKind::name)))]
    policy: String = standard.settings.policy.name().to_owned(), example "least-load";
    /// Tokens that the KV cache of a server holds, unless its metrics say it. vLLM logs it as "GPU KV cache size".
    server_tokens: u64 = standard.node_tokens, range "1024 to 1000000000000 tokens";
    /// Time between two polls of the servers' /metrics, which show restarts and the size of the KV cache (vLLM and SGLang). 0s: no
    /// polls. A picker does not poll.
    metrics_period: Span = Span(standard.metrics_period.unwrap_or_default()), range "100ms to 1m, or 0s";
    /// Largest body of a completion. Larger ones get 413.
    body_max: Size = Size(Bytes(standard.body_bytes_max as u64)), range "1KiB to 64MiB";
    /// Longest time for the whole body of a completion to arrive: 8 MiB in 1 min are 1.1 Mbit/s. After it, the client gets 408.
    body_timeout: Span = Span(standard.body_timeout), range "10ms to 1h";
    /// Memory for the bodies that have no reply yet. If it is full, completions get 503.
    memory: Size = Size(Bytes(standard.memory_bytes_max as u64)), range "body_max to 64GiB";
    /// Number of credits: pairs of a block of 256 bytes and a server that is expected to have it. A credit takes at most
    /// 100 bytes. Beyond it, the oldest ones end.
    credits: u32 = standard.settings.credits_max, range "1 to 100000000";
}

/// Validates the prompts of a route.
pub(crate) fn prompts_of(
    at: &str,
    route: &RouteSection,
    raw: &PromptsSection,
) -> Result<PromptConfig, Fault> {
    let at = format!("{at}.prompts");
    let others = [
        ("sticky", route.sticky.is_some()),
        ("hedge", route.hedge.is_some()),
        ("mirror", route.mirror.is_some()),
        ("respond", route.respond.is_some()),
        ("redirect", route.redirect.is_some()),
    ];
    if let Some((key, _)) = others.into_iter().find(|(_, is_set)| *is_set) {
        let what = format!("contradicts {key}: both determine where a completion goes");
        return Err(Fault::new(at, what).hint(format!("leave prompts or {key} out")));
    }
    prompts(&at, raw)
}

/// Validates prompts. The ranges of single keys were checked before.
pub(crate) fn prompts(at: &str, raw: &PromptsSection) -> Result<PromptConfig, Fault> {
    let bytes = |size: Size| usize::try_from(size.0.get()).unwrap_or(usize::MAX);
    Ok(PromptConfig {
        settings: ChainSettings {
            policy: word(
                &format!("{at}.policy"),
                &raw.policy,
                &ChainPolicyKind::ALL.map(ChainPolicyKind::name),
            )?,
            credits_max: raw.credits,
            ..ChainSettings::default()
        },
        node_tokens: raw.server_tokens,
        metrics_period: Some(raw.metrics_period.0).filter(|period| !period.is_zero()),
        body_bytes_max: bytes(raw.body_max),
        body_timeout: raw.body_timeout.0,
        memory_bytes_max: bytes(raw.memory),
    })
}
