//! Rules about the form of a reply: status, body, age, and no fields for other clients.

use super::directives::{Directives, members, seconds};
use super::freshness::{age_max_s, age_min_s, parse_date};
use super::reuse::{RelayedValue, hosts, prefix, schemes};
use super::rule::Rule;
use super::stored::{Stored, end_to_end, selecting, tags_match};
use crate::record::{Record, Reply, Request};
use crate::step::parse_range;
use crate::wire::Fields;

/// A reply that a client received, with the exchange that it was made from.
pub struct ReceivedReply<'a> {
    /// The case.
    pub record: &'a Record,
    /// Index of the step.
    pub step: usize,
    /// The reply.
    pub reply: &'a Reply,
    /// The stored reply that it was made from; `None` if its body names no exchange.
    pub stored: Option<&'a Stored<'a>>,
}

/// A violated rule, with the values that violate it.
pub type RuleFault = (Rule, String);

impl ReceivedReply<'_> {
    /// Returns all violated rules about the form of the reply.
    pub fn faults(&self) -> Vec<RuleFault> {
        let checks = [
            Self::warning,
            Self::not_modified,
            Self::status_kept,
            Self::partial,
            Self::body,
            Self::age,
            Self::hop_by_hop,
            Self::secret_fields,
            Self::foreign,
            Self::only_if_cached,
        ];
        checks.iter().filter_map(|check| check(self)).collect()
    }

    fn is_own(&self) -> bool {
        self.stored.is_none_or(|stored| stored.base.step == self.step)
    }

    /// RFC 9111 section 5.5: Warning is obsolete and must not be generated.
    fn warning(&self) -> Option<RuleFault> {
        let value = self.reply.fields.first("warning")?;
        Some((Rule::Warning, format!("Warning: {value}")))
    }

    /// RFC 9110 sections 13.1.2, 13.1.3 and 15.4.5: 304 needs a precondition that the reply meets.
    fn not_modified(&self) -> Option<RuleFault> {
        if self.reply.status != 304 {
            return None;
        }
        let request = &self.record.client_exchanges[self.step].request.fields;
        let is_met = match request.joined("if-none-match") {
            Some(tags) => {
                let tag = self.reply.fields.first("etag");
                members(&tags).any(|one| one == "*" || tag.is_some_and(|tag| tags_match(one, tag)))
            }
            None => match (request.first("if-modified-since"), self.stored) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(since), Some(stored)) => {
                    let modified = stored.fields.first("last-modified").and_then(parse_date);
                    modified.is_none_or(|modified| parse_date(since).is_some_and(|since| modified <= since))
                }
            },
        };
        (!is_met).then(|| (Rule::NotModified, "304 to a request whose precondition it does not meet".into()))
    }

    /// RFC 9111 section 4: a stored reply keeps its status, except that a cache can make 206 and 304 from 200.
    fn status_kept(&self) -> Option<RuleFault> {
        let (stored, got) = (self.stored?.status, self.reply.status);
        let is_kept = got == stored || (stored == 200 && matches!(got, 206 | 304));
        (!is_kept).then(|| (Rule::StatusKept, format!("status {got}, the origin sent {stored}")))
    }

    /// RFC 9110 sections 13.1.5, 14.2 and 15.3.7: a 206 has the requested part of the right representation.
    fn partial(&self) -> Option<RuleFault> {
        let stored = self.stored?;
        if self.reply.status != 206 || stored.status == 206 {
            return None;
        }
        let request = &self.record.client_exchanges[self.step].request.fields;
        let fault = |why: &str| Some((Rule::Partial, why.to_owned()));
        let Some(range) = request.first("range") else { return fault("206 to a request without Range") };
        let whole = stored.base.reply.as_ref().map_or(&[][..], |sent| &sent.body);
        let Some((first, end)) = parse_range(range, whole.len()).filter(|(first, end)| first < end) else {
            return fault("206 to an invalid Range or one with several parts");
        };
        if let Some(named) = request.first("if-range")
            && stored.fields.first("etag").is_none_or(|tag| tag.starts_with("W/") || tag != named)
        {
            return fault("206 although If-Range names another reply");
        }
        let expected = format!("bytes {first}-{}/{}", end - 1, whole.len());
        match self.reply.fields.first("content-range") {
            Some(value) if value == expected => None,
            other => Some((Rule::Partial, format!("Content-Range is {other:?}, not {expected}"))),
        }
    }

    /// RFC 9110 section 6.4, RFC 9112 section 6.3: the bytes of the exchange that the reply names, all of them
    /// unless the origin broke off.
    fn body(&self) -> Option<RuleFault> {
        let stored = self.stored?;
        let (reply, sent) = (self.reply, stored.base.reply.as_ref()?);
        let method = &self.record.client_exchanges[self.step].request.method;
        let expected: &[u8] = match reply.status {
            _ if method == "HEAD" => &[],
            204 | 304 => &[],
            206 if stored.status == 200 => {
                let range = self.record.client_exchanges[self.step].request.fields.first("range")?;
                let (first, end) = parse_range(range, sent.body.len()).filter(|(first, end)| first < end)?;
                &sent.body[first..end]
            }
            _ => &sent.body,
        };
        let is_broken_off = stored.base.is_broken_off();
        if reply.whole && reply.body != expected {
            let lens = (reply.body.len(), expected.len());
            return Some((Rule::Body, format!("{} bytes that are not the {} expected ones", lens.0, lens.1)));
        }
        if !reply.whole && !is_broken_off {
            return Some((Rule::Length, format!("{} of {} bytes", reply.body.len(), expected.len())));
        }
        let stated = reply.fields.first("content-length").filter(|_| method != "HEAD" && reply.whole);
        let stated = stated.filter(|_| !matches!(reply.status, 204 | 304));
        let is_wrong = |stated: &str| stated.parse() != Ok(reply.body.len());
        stated
            .filter(|stated| is_wrong(stated))
            .map(|stated| (Rule::Length, format!("Content-Length: {stated}")))
    }

    /// RFC 9111 sections 4 and 5.1: a reply used without validation has Age, within the bounds that the harness computes.
    fn age(&self) -> Option<RuleFault> {
        let stored = self.stored.filter(|_| !self.is_own())?;
        let Some(text) = self.reply.fields.first("age") else {
            let is_needed = !stored.is_validated_for(self.step);
            return is_needed.then(|| (Rule::Age, "a stored reply without Age".to_owned()));
        };
        let (least, most) = (age_min_s(stored, self.step), age_max_s(stored, self.step));
        let is_right = self.reply.fields.all("age").count() == 1
            && seconds(text).is_some_and(|age| age >= least && most.is_none_or(|most| age <= most));
        (!is_right).then(|| (Rule::Age, format!("Age: {text}, but it is between {least} and {most:?}")))
    }

    /// RFC 9110 section 7.6.1: fields listed in the origin's Connection are not forwarded.
    fn hop_by_hop(&self) -> Option<RuleFault> {
        let value = self.reply.fields.first("x-hop")?;
        Some((Rule::HopByHop, format!("X-Hop: {value} reached the client, although Connection lists it")))
    }

    /// RFC 9111 sections 5.2.2.4 and 5.2.2.7: the fields listed by a qualified no-cache or private.
    fn secret_fields(&self) -> Option<RuleFault> {
        let stored = self.stored.filter(|_| !self.is_own())?;
        let value = self.reply.fields.first("x-secret")?;
        let names = |fields: &[String]| fields.iter().any(|field| field == "x-secret");
        let rule = if names(&stored.directives.private_fields) {
            Rule::PrivateFields
        } else if names(&stored.directives.no_cache_fields) && !stored.is_validated_for(self.step) {
            Rule::NoCacheFields
        } else {
            return None;
        };
        Some((rule, format!("X-Secret: {value}")))
    }

    /// A cookie must reach only the client whose request the origin replied to with it.
    fn foreign(&self) -> Option<RuleFault> {
        let numbers = self.reply.fields.all("set-cookie").filter_map(|value| value.strip_prefix("id="));
        let steps = numbers.filter_map(|number| self.record.exchanges.get(number.parse::<usize>().ok()?));
        let foreign = steps.map(|exchange| exchange.step).find(|step| *step != self.step)?;
        Some((Rule::Foreign, format!("Set-Cookie of the reply to step {}", foreign + 1)))
    }

    /// RFC 9111 section 5.2.1.7: with only-if-cached, the client wants a stored reply without contact to the origin.
    fn only_if_cached(&self) -> Option<RuleFault> {
        let request = &self.record.client_exchanges[self.step].request;
        let directives = Directives::of_request(&request.fields);
        // A stored reply cannot be used for an unsafe request.
        let stored = self.stored.filter(|_| directives.only_if_cached && request.method != "POST")?;
        let mut exchanges = stored.exchanges();
        exchanges
            .any(|exchange| exchange.step == self.step)
            .then(|| (Rule::OnlyIfCached, "the origin was contacted".to_owned()))
    }
}

/// docs/operate/clients.md: the origin receives scheme and hosts as stated by a trusted relay; for other clients, the scheme of the
/// connection and Host.
fn identity(request: &Request, got: &Fields) -> Option<RuleFault> {
    let sent = Request { fields: got.clone(), relayed: true, ..request.clone() };
    let uri = |request| (schemes(request), hosts(request), prefix(request));
    let (received, expected) = (uri(&sent), uri(request));
    // An untrusted client's Forwarded is replaced by an element with the true values.
    let is_true = |(_, _, value): &RelayedValue| *value == request.host || value == "http";
    let is_right = match request.relayed {
        true => received == expected,
        false => received.2.is_none() && received.0.iter().chain(&received.1).all(is_true),
    };
    (!is_right).then(|| (Rule::Identity, format!("the origin received {received:?}, not {expected:?}")))
}

/// RFC 9110 sections 7.6 and 7.6.1: the requests to the origin have the fields of the client's request. Returns the violations
/// with their steps.
pub fn forwarding_faults(record: &Record) -> Vec<(usize, RuleFault)> {
    let mut faults = Vec::new();
    for exchange in &record.exchanges {
        let Some(client_exchange) = record.client_exchanges.get(exchange.step) else { continue };
        let wanted = end_to_end(&client_exchange.request.fields);
        faults.extend(
            identity(&client_exchange.request, &exchange.request_fields).map(|fault| (exchange.step, fault)),
        );
        for name in ["cookie", "authorization", "x-lang"] {
            let (got, expected) = (selecting(&exchange.request_fields, name), selecting(&wanted, name));
            if got != expected {
                let is_named = expected.is_none() && client_exchange.request.fields.has(name);
                let rule = if is_named { Rule::HopByHop } else { Rule::Credentials };
                let text = format!("the origin received {name} {got:?}, the client sent {expected:?}");
                faults.push((exchange.step, (rule, text)));
            }
        }
    }
    faults
}
