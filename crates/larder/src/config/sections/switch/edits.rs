//! Edits of requests and replies in the config: `headers`, `redirect`, `respond`, `rewrite`, `sticky`, `compress` and
//! `hedge` of `[[switch.routes]]`. `[switch]` has the first one and the last three too.

use std::collections::BTreeMap;
use std::io::Read as _;

use larder_core::Bytes;
use larder_switch::{
    Compression, ContentCoding, DirectReply, EditError, FieldRules, HedgeConfig, MechanismSetting,
    MessageKind, PathRewrite, RequestId, SameSite, Sticky, StickyBy, StickyCookie, StickyKey, SwitchConfig,
};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::sections::switch::rule::key as key_template;
use crate::config::suggest::suggest;
use crate::config::text::{Size, Span, Texts};
use crate::config::words::choice;

keys! {
    /// `headers.request` and `headers.reply`.
    table RulesSection;

    /// Fields that are removed, before all other rules: names, or beginnings of names followed by "*".
    #[serde(skip_serializing_if = "Texts::is_empty")]
    remove: Texts, example ["x-debug", "x-internal-*"];
    /// Fields that are set: each remains exactly once, with this value. An empty value removes the field. Variables:
    /// {client} {client_port} {method} {scheme} {host} {host_name} {path} {query} {header:name} {cookie:name}
    /// {request_id} {route} {class} {policy} {target} {node} {reason}, in replies also {status} {cache}. "{{" and
    /// "}}" are literal braces.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    set: BTreeMap<String, String>, example serde_json::json!({ "x-served-by": "{node}" });
    /// Fields that are added to existing ones of the same name, after all other rules: a value or a list.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    add: BTreeMap<String, Texts>, example serde_json::json!({ "vary": "accept" });
}

impl RulesSection {
    pub(crate) fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }
}

keys! {
    /// `[switch.headers.request_id]`.
    table RequestIdSection;

    /// Field that carries a request's id to the node, or "off". Ids appear in the access log and as {request_id}.
    /// With ids no connection is handed off.
    header: String = "off".to_owned(), example "x-request-id";
    /// Whether an id in the request is kept: 1 to 128 letters, digits and -_.:/+=@~. Otherwise the request gets an id
    /// of 32 hexadecimal digits. Set false if clients must not choose ids.
    accept: bool = true;
    /// Whether the reply carries the id to the client.
    reply: bool = true;
}

keys! {
    /// `redirect`.
    table RedirectSection;

    /// Target URL, with the variables of header rules except {node}, {reason}, {status} and {cache}. Required.
    to: String, example "https://www.example.com{path}{query}";
    /// Status of the redirect: 301, 302, 303, 307 or 308. Clients store 301 and 308; 307 and 308 keep the method.
    status: u16 = 307;
    /// Scheme of the requests that are redirected: "http" or "https" (TLS that ends at the switch). Other requests
    /// are served. Unset: all requests.
    scheme: Option<Scheme>, example "http";
}

keys! {
    /// `respond`.
    table RespondSection;

    /// Status of the reply.
    status: u16 = 200, range "200 to 599";
    /// Body of the reply, at most 16384 bytes, the same for all requests.
    body: String;
    /// Media type of the body.
    r#type: String = "text/plain; charset=utf-8".to_owned();
}

keys! {
    /// `rewrite`.
    table RewriteSection;

    /// Beginning of the path that is replaced, in whole segments: "/api" matches "/api" and "/api/x", but not
    /// "/apix". "/" matches every path. Required.
    prefix: String, example "/api";
    /// Replacement of the prefix in requests to nodes. "" removes the prefix.
    to: String;
    /// Path that the target is made of: "client" is the path of the client, "node" the rewritten path.
    target: TargetPath = TargetPath::Client;
}

keys! {
    /// `sticky`.
    table StickySection;

    /// Identification of a client: "cookie" is a cookie of the switch that names the node. Parts of the request, such
    /// as "{header:x-user}", choose the node. "off" turns sticky sessions off.
    by: String = "cookie".to_owned();
    /// Name of the cookie.
    cookie: String = "larder-node".to_owned();
    /// Path of the cookie.
    path: String = "/".to_owned();
    /// SameSite attribute of the cookie: "lax", "strict" or "none". The cookie is always HttpOnly, and Secure with
    /// TLS or "none".
    #[schemars(extend("enum" = ["lax", "strict", "none"]))]
    same_site: String = "lax".to_owned(), when "by = cookie";
    /// Lifetime of the cookie after each reply. Unset: until the browser is closed.
    max_age: Option<Span>, range "1s to 400d", when "by = cookie", example "1h";
    /// File with 16 to 4096 secret bytes that the cookie's value depends on, the same on all switches. Unset: a
    /// client that guesses a node's name can verify its guess.
    secret: Option<String>, example "/etc/larder/sticky.key";
    /// Time for which a draining node continues to serve clients whose cookies name it.
    drain: Span = Span(std::time::Duration::from_secs(600)), range "0s to 24h";
}

keys! {
    /// `compress`.
    table CompressSection, texts = |all: &[&str]| Texts(all.iter().map(ToString::to_string).collect());

    /// Content codings in the order of preference: "zstd", "br", "gzip". A client's own weights come first. []: none.
    codings: Texts = texts(&["zstd", "br", "gzip"]);
    /// Media types that are compressed: "text/html", "text/*" for all subtypes, "*+json" for all types with the
    /// suffix.
    types: Texts = texts(&[ "text/*", "application/json", "application/javascript", "application/xml", "application/wasm", "*+json", "*+xml", ]),
        entries 64, when "codings";
    /// Length below which a reply is not compressed, if its length is known.
    min: Size = Size(Bytes(1_000)), range "1B to 1GiB", when "codings";
    /// Effort of compression, from 1 (fast) to 9 (small replies).
    level: u8 = 4, range "1 to 9", when "codings";
}

keys! {
    /// `mirror`.
    table MirrorSection;

    /// Route whose requests are copied; "default" is the default route. Required.
    of: String, example "shop";
    /// Share of the requests that are copied, in percent.
    share: f64 = 100.0, range "0 to 100 percent";
    /// Number of copies in flight. Beyond it, requests are not copied, and are counted.
    copies_max: u32 = 64, range "1 to 65536";
    /// Size of a request's body above which it is not copied.
    body_max: Size = Size(Bytes(64 << 10)), range "0B to 16MiB";
    /// Timeout of a copy, from connecting to the end of the reply.
    timeout: Span = Span(std::time::Duration::from_secs(10)), range "10ms to 1m";
}

keys! {
    /// `hedge`.
    table HedgeSection;

    /// Time for a node to begin its reply before another node is asked too. 0s: never.
    after: Span = Span(std::time::Duration::from_millis(200)), range "1ms to 1m, or 0s";
    /// Share of a route's requests that may be hedged, in percent. One hedge per second is always allowed.
    share: f64 = 5.0, range "0 to 100 percent", when "after";
}

choice! {
    /// The words of `redirect.scheme`.
    Scheme { Http, Https }
}

choice! {
    /// The words of `rewrite.target`.
    TargetPath { Client, Node }
}

/// Number of thousandths in one percent; shares are counted in them.
const THOUSANDTHS: f64 = 1_000.0;

/// Creates the fault of the edit at `at`.
pub(super) fn fault(at: &str, error: EditError) -> Fault {
    let key = if error.key.is_empty() { at.to_owned() } else { format!("{at}.{}", error.key) };
    Fault::new(key, error.what).hint(error.right)
}

/// Validates the header rules at `at`.
pub(super) fn headers(at: &str, raw: &RulesSection, side: MessageKind) -> Result<FieldRules, Fault> {
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

/// Validates `switch.headers.request_id`.
pub(super) fn request_id(raw: &RequestIdSection) -> Result<Option<RequestId>, Fault> {
    if raw.header == "off" {
        return Ok(None);
    }
    let mut id =
        RequestId::new(&raw.header).map_err(|error| fault("switch.headers.request_id.header", error))?;
    (id.accept, id.reply) = (raw.accept, raw.reply);
    Ok(Some(id))
}

pub(super) fn redirect(at: &str, raw: &RedirectSection) -> Result<DirectReply, Fault> {
    let secure = raw.scheme.map(|scheme| scheme == Scheme::Https);
    if raw.to.is_empty() {
        let hint = "write to = \"https://www.example.com{path}{query}\"";
        return Err(Fault::new(format!("{at}.to"), "missing: the target of the redirect").hint(hint));
    }
    DirectReply::redirect(raw.status, &raw.to, secure).map_err(|error| fault(at, error))
}

pub(super) fn rewrite(at: &str, raw: &RewriteSection) -> Result<PathRewrite, Fault> {
    if raw.prefix.is_empty() {
        let hint = "write prefix = \"/api\", or \"/\" to add `to` before every path";
        return Err(Fault::new(format!("{at}.prefix"), "missing: the prefix to replace").hint(hint));
    }
    let decides = raw.target == TargetPath::Node;
    PathRewrite::new(&raw.prefix, &raw.to, decides).map_err(|error| fault(at, error))
}

/// Permitted sizes of a secret. Bytes.
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

/// Validates sticky sessions at `at`; `None` if they are off.
pub(super) fn sticky(at: &str, raw: &StickySection) -> Result<Option<Sticky>, Fault> {
    let of = |key: &str| format!("{at}.{key}");
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

fn cookie(at: &str, raw: &StickySection) -> Result<StickyCookie, Fault> {
    let of = |key: &str| format!("{at}.{key}");
    let same_site = match raw.same_site.as_str() {
        "strict" => SameSite::Strict,
        "none" => SameSite::None,
        _ => SameSite::Lax,
    };
    let secret = raw.secret.as_ref().map(|path| secret(&of("secret"), path)).transpose()?;
    let age = raw.max_age.map(|age| age.0);
    let made = StickyCookie::new(&raw.cookie, &raw.path, same_site, age, secret.as_deref());
    made.map_err(|error| fault(at, error))
}

/// Validates compression at `at`; `None` if it is off.
pub(super) fn compress(at: &str, raw: &CompressSection) -> Result<Option<Compression>, Fault> {
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
    let made = Compression::new(&codings, &raw.types.0, raw.min.0.get(), raw.level);
    made.map(Some).map_err(|error| fault(at, error))
}

/// Returns the settings of hedging; `None` if it is off.
pub(super) fn hedge(raw: &HedgeSection) -> Option<HedgeConfig> {
    let share = (raw.share * THOUSANDTHS).round() as u32;
    (!raw.after.0.is_zero()).then_some(HedgeConfig { after: raw.after.0, share })
}

/// Refuses hedging together with sticky sessions, because a sticky client must not be served by another node.
pub(super) fn hedge_or_stick(at: &str, hedges: bool, sticks: bool) -> Result<(), Fault> {
    if !(hedges && sticks) {
        return Ok(());
    }
    let what = "contradicts sticky: a client's session is at one node, and other nodes do not have it";
    Err(Fault::new(format!("{at}.hedge"), what).hint("leave one of them out"))
}

/// Refuses handoff mechanisms on routes with edits, because edits need a relay.
pub(crate) fn against_mechanism(switch: &SwitchConfig, warnings: &mut Vec<Fault>) -> Result<(), Fault> {
    for (i, route) in switch.routes.iter().enumerate() {
        let named = route
            .mechanism
            .filter(|setting| *setting != MechanismSetting::Relay && *setting != MechanismSetting::Auto);
        if let Some(setting) = named.filter(|_| !route.edits.is_none()) {
            let key = format!("switch.routes[{i}].mechanism");
            let what = format!("'{}' forwards bytes unchanged, and this route edits them", setting.name());
            return Err(Fault::new(key, what).hint("write mechanism = \"relay\", or leave it out"));
        }
    }
    if switch.handoff.setting == MechanismSetting::Relay {
        return Ok(());
    }
    let hint = "write mechanism = \"relay\", or do the edits at the nodes";
    let key = "switch.handoff.mechanism";
    let all = [
        ("headers.request_id", switch.request_id.is_some()),
        ("headers.request", !switch.request_fields.is_empty()),
        ("headers.reply", !switch.reply_fields.is_empty()),
        ("guard", switch.guard.is_some()),
        ("sticky", switch.sticky.is_some()),
        ("compress", switch.compress.is_some()),
        ("hedge", switch.hedge.is_some()),
    ];
    if let Some((name, _)) = all.into_iter().find(|(_, given)| *given) {
        let what = format!("hands off no HTTP connection: switch.{name} edits requests or replies");
        warnings.push(Fault::new(key, what).hint(hint));
    } else if let Some(route) = switch
        .routes
        .iter()
        .find(|route| !route.edits.is_none() || route.mirror_of.is_some() || route.prompts.is_some())
    {
        let what = format!(
            "hands off no HTTP connection: each may carry a request for route '{}', which edits requests or replies",
            route.name
        );
        warnings.push(Fault::new(key, what).hint(hint));
    }
    Ok(())
}
