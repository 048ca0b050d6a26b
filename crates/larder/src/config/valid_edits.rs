//! Header rules, answers and rewritten paths, checked and turned into what the front is told.

use larder_front::{
    Answer, EditError, Edits, FieldRules, PathRewrite, RequestId, Setting, Side, SwitchConfig,
};

use super::error::{Fault, suggest};
use super::raw_edits::{RawHeaders, RawRedirect, RawRequestId, RawRewrite};
use super::raw_route::RawRoute;

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
pub(super) fn headers(at: &str, raw: &RawHeaders, side: Side) -> Result<FieldRules, Fault> {
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
pub(super) fn request_id(raw: &RawRequestId) -> Result<Option<RequestId>, Fault> {
    if raw.header == "off" {
        return Ok(None);
    }
    let mut id = RequestId::new(&raw.header).map_err(|error| fault("switch.request_id.header", error))?;
    (id.accept, id.reply) = (raw.accept, raw.reply);
    Ok(Some(id))
}

fn redirect(at: &str, raw: &RawRedirect) -> Result<Answer, Fault> {
    let scheme = |scheme: &String| {
        one_of(&format!("{at}.scheme"), scheme, &["http", "https"]).map(|scheme| scheme == "https")
    };
    let secure = raw.scheme.as_ref().map(scheme).transpose()?;
    if raw.to.is_empty() {
        let hint = "write to = \"https://www.example.com{path}{query}\"";
        return Err(Fault::new(format!("{at}.to"), "missing: where the redirect leads").hint(hint));
    }
    Answer::redirect(raw.status, &raw.to, secure).map_err(|error| {
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

/// What a route edits.
pub(super) fn edits(at: &str, raw: &RawRoute) -> Result<Edits, Fault> {
    let of = |key: &str| format!("{at}.{key}");
    let answer = match (&raw.redirect, &raw.respond) {
        (Some(_), Some(_)) => {
            return Err(
                Fault::new(of("respond"), "contradicts redirect: both answer").hint("leave one of them out")
            );
        }
        (Some(raw), None) => Some(redirect(&of("redirect"), raw)?),
        (None, Some(raw)) => {
            let answer = Answer::respond(raw.status, &raw.body, &raw.r#type).map_err(|error| {
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
    let edits = Edits {
        request_fields: headers(&of("request_headers"), &raw.request_headers, Side::Request)?,
        reply_fields: headers(&of("reply_headers"), &raw.reply_headers, Side::Reply)?,
        answer,
        rewrite: raw.rewrite.as_ref().map(|raw| rewrite(&of("rewrite"), raw)).transpose()?,
    };
    let all_answered =
        matches!(edits.answer, Some(Answer::Respond { .. } | Answer::Redirect { secure: None, .. }));
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
        let named = route.mechanism.filter(|setting| *setting != Setting::Relay && *setting != Setting::Auto);
        if let Some(setting) = named.filter(|_| !route.edits.is_none()) {
            let key = format!("switch.routes[{i}].mechanism");
            let what = format!("'{}' passes bytes as they are, and this route edits them", setting.name());
            return Err(Fault::new(key, what).hint("write mechanism = \"relay\", or leave it out"));
        }
    }
    if switch.handoff.setting == Setting::Relay {
        return Ok(());
    }
    let hint = "write mechanism = \"relay\", or let the nodes do what is edited";
    let key = "switch.handoff.mechanism";
    let all = [
        ("request_id", switch.request_id.is_some()),
        ("request_headers", !switch.request_fields.is_empty()),
        ("reply_headers", !switch.reply_fields.is_empty()),
    ];
    if let Some((name, _)) = all.into_iter().find(|(_, given)| *given) {
        let what = format!("hands over no connection of HTTP: switch.{name} edits what passes");
        warnings.push(Fault::new(key, what).hint(hint));
    } else if let Some(route) = switch.routes.iter().find(|route| !route.edits.is_none()) {
        let what = format!(
            "hands over no connection of HTTP: each may bring a request for route '{}', which edits what passes",
            route.name
        );
        warnings.push(Fault::new(key, what).hint(hint));
    }
    Ok(())
}
