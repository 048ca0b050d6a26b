//! Facts about a request that rules and templates read.

use super::client::Client;
use super::exchange::Exchange;
use super::requests::Requests;
use crate::edits::{FieldRules, FieldValues, RequestFacts};
use crate::target;
use larder_core::rules::{Head, Headers};
use larder_core::{CacheResult, Reason};
use larder_edge::Fields;
use larder_http::h1::{self, FieldName, RequestHead};

/// Header fields of a request, for rules and key templates.
#[derive(Debug)]
pub(super) struct RuleHeaders<'a>(pub(super) &'a h1::Fields);

impl Headers for RuleHeaders<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name.as_bytes())
    }
}

/// Returns the host of a request; empty if there is none.
pub(super) fn host(head: &RequestHead) -> &[u8] {
    head.fields.named(FieldName::Host).unwrap_or_default()
}

/// Calls `act` with the request in the form that rules read.
pub(super) fn with_head<T>(head: &RequestHead, act: impl FnOnce(&Head<'_>) -> T) -> T {
    act(&target::rule_head(head.method(), host(head), head.target(), &RuleHeaders(&head.fields)))
}

impl Requests {
    /// Calls `act` with the facts about a request, and about its reply if `status` is given.
    pub(super) fn with_facts<T>(
        &self,
        (client, exchange): (&Client, &Exchange),
        head: &RequestHead,
        status: Option<u16>,
        act: impl FnOnce(&RequestFacts<'_>) -> T,
    ) -> T {
        let node = exchange.decision.and_then(|decision| self.shared.decider.nodes.get(decision.node));
        with_head(head, |head| {
            act(&RequestFacts {
                head: *head,
                client: Some(client.address),
                secure: client.is_secure(),
                request_id: exchange.request_id.as_deref(),
                target: exchange.request.target,
                route: &self.shared.decider.routing.route(exchange.request.route).name,
                class: exchange.request.class.name(),
                policy: self.shared.decider.dispatcher.settings_of(exchange.request.route).policy.name(),
                node: node.as_ref().map(|node| &*node.name),
                reason: exchange.decision.map(|decision| decision.reason).map(Reason::name),
                status,
                cache: exchange.cache.map(CacheResult::name),
            })
        })
    }

    /// Renders the values of header rules; `None` if there are no rules.
    pub(super) fn values(
        &self,
        of: (&Client, &Exchange),
        head: &RequestHead,
        status: Option<u16>,
        rules: [&FieldRules; 2],
    ) -> Option<FieldValues> {
        if rules.iter().all(|rules| rules.is_empty()) {
            return None;
        }
        let mut values = FieldValues::default();
        self.with_facts(of, head, status, |facts| {
            rules.iter().for_each(|rules| rules.render(facts, &mut values));
        });
        Some(values)
    }
}

/// Applies header rules in their order.
pub(super) fn apply(rules: [&FieldRules; 2], values: &FieldValues, fields: &mut impl Fields) {
    rules.iter().fold(0, |from, rules| rules.edit(fields, values, from));
}
