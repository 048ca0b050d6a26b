//! Header rules, answers and rewritten paths, checked and turned into what the front is told.

use std::io::Read as _;
use std::time::Duration;

use larder_front::{
    Compression, ContentCoding, DirectReply, EditError, Edits, FieldRules, HedgeConfig, MechanismSetting,
    MessageKind, PathRewrite, RequestId, SameSite, Sticky, StickyBy, StickyCookie, StickyKey, SwitchConfig,
};

use super::error::Fault;
use super::explain::suggest;
use super::raw_edits::{RawCompress, RawHeaders, RawHedge, RawRedirect, RawRequestId, RawRewrite, RawSticky};
use super::raw_route::RawRoute;
use super::raw_switch::RawSwitch;
use super::valid_guard::{guard, guard_of_route};
use super::valid_rule::key as key_template;

/// Thousandths of a percent, in which shares are counted.
const THOUSANDTHS: f64 = 1_000.0;

/// One of a few words.
fn one_of<'w>(key: &str, text: &'w str, known: &[&str]) -> Result<&'w str, Fault> {
    let unknown =
        || Fault::new(key, format!("unknown value '{}'", text.escape_debug())).hint(suggest(text, known));
    if known.contains(&text) { Ok(text) } else { Err(unknown()) }
}

fn fault(key: &str, error: EditError) -> Fault {
    Fault::new(key, error.what).hint(error.right)
}

/// Header rules at `at`.
fn headers(at: &str, raw: &RawHeaders, side: MessageKind) -> Result<FieldRules, Fault> {
    let mut rules = FieldRules::default();
    let numbered = |key: String, i: usize, of: usize| if of == 1 { key } else { format!("{key}[{i}]") };
    for (i, name) in raw.remove.0.iter().enumerate() {
        let key = numbered(format!("{at}.remove"), i, raw.remove.0.len());
        rules.remove(side, name).map_err(|error| fault(&key, error))?;
    }
    for (name, value) in &raw.set {
        rules.set(side, name, value).map_err(|error| fault(&format!("{at}.set.{name}"), error))?;
    }
    for (name, values) in &raw.add {
        for (i, value) in values.0.iter().enumerate() {
            let key = numbered(format!("{at}.add.{name}"), i, values.0.len());
            rules.add(side, name, value).map_err(|error| fault(&key, error))?;
        }
    }
    Ok(rules)
}

/// `switch.request_id`.
fn request_id(raw: &RawRequestId) -> Result<Option<RequestId>, Fault> {
    if raw.header == "off" {
        return Ok(None);
    }
    let mut id = RequestId::new(&raw.header).map_err(|error| fault("switch.request_id.header", error))?;
    (id.accept, id.reply) = (raw.accept, raw.reply);
    Ok(Some(id))
}

fn redirect(at: &str, raw: &RawRedirect) -> Result<DirectReply, Fault> {
    let scheme = |scheme: &String| {
        one_of(&format!("{at}.scheme"), scheme, &["http", "https"]).map(|scheme| scheme == "https")
    };
    let secure = raw.scheme.as_ref().map(scheme).transpose()?;
    if raw.to.is_empty() {
        let hint = "write to = \"https://www.example.com{path}{query}\"";
        return Err(Fault::new(format!("{at}.to"), "missing: where the redirect leads").hint(hint));
    }
    DirectReply::redirect(raw.status, &raw.to, secure).map_err(|error| {
        let key = if error.what.contains("status") { "status" } else { "to" };
        fault(&format!("{at}.{key}"), error)
    })
}

fn rewrite(at: &str, raw: &RawRewrite) -> Result<PathRewrite, Fault> {
    let decides = one_of(&format!("{at}.target"), &raw.target, &["client", "node"])? == "node";
    if raw.prefix.is_empty() {
        let hint = "write prefix = \"/api\", or \"/\" to put something before every path";
        return Err(Fault::new(format!("{at}.prefix"), "missing: what is replaced").hint(hint));
    }
    PathRewrite::new(&raw.prefix, &raw.to, decides).map_err(|error| {
        let key = if error.what.starts_with("prefix") { "prefix" } else { "to" };
        fault(&format!("{at}.{key}"), error)
    })
}

/// The least and the most bytes of a secret.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 16..=4096;

fn secret(key: &str, path: &str) -> Result<Vec<u8>, Fault> {
    let failed = |error: std::io::Error| format!("cannot read '{}': {error}", path.escape_debug());
    let read = || {
        let file = std::fs::File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        larder_edge::refuse_exposed(path.as_ref(), &metadata).map_err(|fault| fault.to_string())?;
        let mut bytes = Vec::new();
        file.take(*SECRET_BYTES.end() as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        if SECRET_BYTES.contains(&bytes.len()) {
            return Ok(bytes);
        }
        Err(format!("'{}' does not hold 16 to 4096 bytes", path.escape_debug()))
    };
    read().map_err(|what: String| {
        Fault::new(key, what).hint("make one: (umask 077; head -c 32 /dev/urandom > FILE)").of_machine()
    })
}

/// Sticky sessions at `at`; none if they are off.
fn sticky(at: &str, raw: &RawSticky) -> Result<Option<Sticky>, Fault> {
    let of = |key: &str| format!("{at}.{key}");
    if raw.drain.0 > Duration::from_secs(86_400) {
        return Err(Fault::new(of("drain"), format!("{} is out of range", raw.drain)).hint("0s to 24h"));
    }
    let by = match raw.by.as_str() {
        "off" => return Ok(None),
        "cookie" => StickyBy::Cookie(cookie(at, raw)?),
        text if text.contains('{') => StickyBy::Key(StickyKey::new(key_template(&of("by"), text)?)),
        other => {
            let what = format!("unknown value '{}'", other.escape_debug());
            let hint = "\"cookie\", \"off\", or parts of the request such as \"{header:x-user}\"";
            return Err(Fault::new(of("by"), what).hint(hint));
        }
    };
    Ok(Some(Sticky { by, drain: raw.drain.0 }))
}

fn cookie(at: &str, raw: &RawSticky) -> Result<StickyCookie, Fault> {
    let of = |key: &str| format!("{at}.{key}");
    let same_site = match one_of(&of("same_site"), &raw.same_site, &["lax", "strict", "none"])? {
        "strict" => SameSite::Strict,
        "none" => SameSite::None,
        _ => SameSite::Lax,
    };
    let secret = raw.secret.as_ref().map(|path| secret(&of("secret"), path)).transpose()?;
    let age = raw.max_age.map(|age| age.0);
    StickyCookie::new(&raw.cookie, &raw.path, same_site, age, secret.as_deref()).map_err(|error| {
        let key = match &error.what {
            what if what.starts_with("max_age") => "max_age",
            what if what.contains("path") => "path",
            _ => "cookie",
        };
        fault(&of(key), error)
    })
}

/// What is compressed, as `at` says; none if nothing is.
fn compress(at: &str, raw: &RawCompress) -> Result<Option<Compression>, Fault> {
    if raw.codings.is_empty() {
        return Ok(None);
    }
    let mut codings = Vec::new();
    for name in &raw.codings.0 {
        let coding = ContentCoding::ALL.into_iter().find(|coding| coding.name() == name);
        codings.push(coding.ok_or_else(|| {
            let what = format!("unknown coding '{}'", name.escape_debug());
            Fault::new(format!("{at}.codings"), what)
                .hint(suggest(name, &ContentCoding::ALL.map(ContentCoding::name)))
        })?);
    }
    let min = raw.min.0.get();
    if !(1..=1 << 30).contains(&min) {
        return Err(
            Fault::new(format!("{at}.min"), format!("{} is out of range", raw.min)).hint("1 byte to 1GiB")
        );
    }
    let made = Compression::new(&codings, &raw.types.0, min, raw.level);
    made.map(Some).map_err(|error| {
        let key = match &error.what {
            what if what.starts_with("codings") => "codings",
            what if what.starts_with("level") => "level",
            _ => "types",
        };
        fault(&format!("{at}.{key}"), error)
    })
}

/// When requests are hedged, as `at` says; never if nothing is.
fn hedge(at: &str, raw: &RawHedge) -> Result<Option<HedgeConfig>, Fault> {
    if raw.after.0.is_zero() {
        return Ok(None);
    }
    let range = Duration::from_millis(1)..=Duration::from_secs(60);
    if !range.contains(&raw.after.0) {
        return Err(
            Fault::new(format!("{at}.after"), format!("{} is out of range", raw.after)).hint("1ms to 1m")
        );
    }
    if !(0.0..=100.0).contains(&raw.share) {
        let what = format!("{} is out of range", raw.share);
        return Err(Fault::new(format!("{at}.share"), what).hint("0 to 100 percent"));
    }
    Ok(Some(HedgeConfig { after: raw.after.0, share: (raw.share * THOUSANDTHS).round() as u32 }))
}

/// A client that must come back to its node is not served by another.
fn hedge_or_stick(at: &str, hedges: bool, sticks: bool) -> Result<(), Fault> {
    if !(hedges && sticks) {
        return Ok(());
    }
    let what = "contradicts sticky: its clients come back to one node, and another has not what that one has";
    Err(Fault::new(format!("{at}.hedge"), what).hint("leave one of them out"))
}

/// What the switch edits for all routes, and on the default one.
pub(super) fn edits_of_all(raw: &RawSwitch, switch: &mut SwitchConfig) -> Result<(), Fault> {
    switch.request_fields = headers("switch.request_headers", &raw.request_headers, MessageKind::Request)?;
    switch.reply_fields = headers("switch.reply_headers", &raw.reply_headers, MessageKind::Reply)?;
    switch.sticky = raw.sticky.as_ref().map_or(Ok(None), |raw| sticky("switch.sticky", raw))?;
    switch.compress = raw.compress.as_ref().map_or(Ok(None), |raw| compress("switch.compress", raw))?;
    switch.guard = raw.guard.as_ref().map_or(Ok(None), |raw| guard("switch.guard", raw))?;
    switch.hedge = raw.hedge.as_ref().map_or(Ok(None), |raw| hedge("switch.hedge", raw))?;
    hedge_or_stick("switch", switch.hedge.is_some(), switch.sticky.is_some())?;
    switch.request_id = request_id(&raw.request_id)?;
    Ok(())
}

/// What a route edits; `standard` has what it inherits.
pub(super) fn edits(at: &str, raw: &RawRoute, standard: &RawSwitch) -> Result<Edits, Fault> {
    let of = |key: &str| format!("{at}.{key}");
    let answer = match (&raw.redirect, &raw.respond) {
        (Some(_), Some(_)) => {
            return Err(
                Fault::new(of("respond"), "contradicts redirect: both answer").hint("leave one of them out")
            );
        }
        (Some(raw), None) => Some(redirect(&of("redirect"), raw)?),
        (None, Some(raw)) => {
            let answer = DirectReply::respond(raw.status, &raw.body, &raw.r#type).map_err(|error| {
                let key = match &error.what {
                    what if what.contains("bytes") || what.contains("no body") => "body",
                    what if what.contains("type") => "type",
                    _ => "status",
                };
                fault(&format!("{at}.respond.{key}"), error)
            });
            Some(answer?)
        }
        (None, None) => None,
    };
    let mut edits = Edits {
        request_fields: headers(&of("request_headers"), &raw.request_headers, MessageKind::Request)?,
        reply_fields: headers(&of("reply_headers"), &raw.reply_headers, MessageKind::Reply)?,
        guard: guard_of_route(at, raw, standard)?,
        answer,
        rewrite: raw.rewrite.as_ref().map(|raw| rewrite(&of("rewrite"), raw)).transpose()?,
        compress: match (&raw.compress, &standard.compress) {
            (Some(own), _) => compress(&of("compress"), own)?,
            (None, Some(standard)) => compress("switch.compress", standard)?,
            (None, None) => None,
        },
        hedge: None,
        sticky: match (&raw.sticky, &standard.sticky) {
            (Some(own), _) => sticky(&of("sticky"), own)?,
            (None, Some(standard)) => sticky("switch.sticky", standard)?,
            (None, None) => None,
        },
    };
    edits.hedge = match (&raw.hedge, &standard.hedge) {
        (Some(own), _) => hedge(&of("hedge"), own)?,
        (None, Some(standard)) if edits.sticky.is_none() => hedge("switch.hedge", standard)?,
        _ => None,
    };
    hedge_or_stick(at, edits.hedge.is_some(), edits.sticky.is_some())?;
    let all_answered = matches!(
        edits.answer,
        Some(DirectReply::Respond { .. } | DirectReply::Redirect { secure: None, .. })
    );
    if all_answered && (edits.rewrite.is_some() || !edits.request_fields.is_empty()) {
        let key = if edits.rewrite.is_some() { "rewrite" } else { "request_headers" };
        let what = "has nothing to do: the switch answers all requests of this route itself";
        return Err(Fault::new(of(key), what).hint("leave it out, or the answer"));
    }
    Ok(edits)
}

/// What is edited must be relayed.
pub(super) fn against_mechanism(switch: &SwitchConfig, warnings: &mut Vec<Fault>) -> Result<(), Fault> {
    for (i, route) in switch.routes.iter().enumerate() {
        let named = route
            .mechanism
            .filter(|setting| *setting != MechanismSetting::Relay && *setting != MechanismSetting::Auto);
        if let Some(setting) = named.filter(|_| !route.edits.is_none()) {
            let key = format!("switch.routes[{i}].mechanism");
            let what = format!("'{}' passes bytes as they are, and this route edits them", setting.name());
            return Err(Fault::new(key, what).hint("write mechanism = \"relay\", or leave it out"));
        }
    }
    if switch.handoff.setting == MechanismSetting::Relay {
        return Ok(());
    }
    let hint = "write mechanism = \"relay\", or let the nodes do what is edited";
    let key = "switch.handoff.mechanism";
    let all = [
        ("request_id", switch.request_id.is_some()),
        ("request_headers", !switch.request_fields.is_empty()),
        ("reply_headers", !switch.reply_fields.is_empty()),
        ("guard", switch.guard.is_some()),
        ("sticky", switch.sticky.is_some()),
        ("compress", switch.compress.is_some()),
        ("hedge", switch.hedge.is_some()),
    ];
    if let Some((name, _)) = all.into_iter().find(|(_, given)| *given) {
        let what = format!("hands over no connection of HTTP: switch.{name} edits what passes");
        warnings.push(Fault::new(key, what).hint(hint));
    } else if let Some(route) =
        switch.routes.iter().find(|route| !route.edits.is_none() || route.mirror_of.is_some())
    {
        let what = format!(
            "hands over no connection of HTTP: each may bring a request for route '{}', which edits what passes",
            route.name
        );
        warnings.push(Fault::new(key, what).hint(hint));
    }
    Ok(())
}
