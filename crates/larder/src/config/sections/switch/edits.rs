//! Edits of requests and replies, as written in the config: `headers`, `redirect`, `respond`, `rewrite`,
//! `sticky`, `compress` and `hedge` of `[[switch.routes]]`; the first and the last three of `[switch]`.

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

    /// Fields that are taken out, first of all: names, or beginnings of names with "*" behind them.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    remove: Texts, example ["x-debug", "x-internal-*"];
    /// Fields that are there once, with this value; one that comes to nothing leaves none. Parts in values: {client}
    /// {client_port} {method} {scheme} {host} {host_name} {path} {query} {header:name} {cookie:name} {request_id} {route} {class}
    /// {policy} {target} {node} {reason}, in replies also {status} {cache}; "{{" and "}}" are the braces themselves.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    set: BTreeMap<String, String>, example serde_json::json!({ "x-served-by": "{node}" });
    /// Fields that are added to those of their name, last of all: a value, or a list of them.
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

    /// The field that carries a request's id to the node, or "off". Ids stand in the access log and in {request_id}. With them no
    /// connection is handed over.
    header: String = "off".to_owned(), example "x-request-id";
    /// Whether an id that a request brings is kept: 1 to 128 letters, digits and -_.:/+=@~. Else, and where there is none, it gets
    /// one of 32 hexadecimal digits. false: for clients that are not to choose.
    accept: bool = true;
    /// Whether the client is told the id.
    reply: bool = true;
}

keys! {
    /// `redirect`.
    table RedirectSection;

    /// Where to, with parts as in header rules but those of nodes and replies. Required.
    to: String, example "https://www.example.com{path}{query}";
    /// 301, 302, 303, 307 or 308; 301 and 308 are remembered by clients, 307 and 308 keep the method.
    status: u16 = 307;
    /// Only requests that came by "http" or by "https" (where TLS ends here); the others are served. Unset: all.
    scheme: Option<Scheme>, example "http";
}

keys! {
    /// `respond`.
    table RespondSection;

    /// The status of the reply.
    status: u16 = 200, range "200 to 599";
    /// The body: text of at most 16384 bytes, the same for all.
    body: String;
    /// Its type.
    r#type: String = "text/plain; charset=utf-8".to_owned();
}

keys! {
    /// `rewrite`.
    table RewriteSection;

    /// The beginning of the path that is replaced, by whole segments: "/api" is one of "/api" and "/api/x", not of "/apix". "/" is
    /// one of every path. Required.
    prefix: String, example "/api";
    /// What stands there instead towards nodes; "" takes it away.
    to: String;
    /// Which path the target is read from, and so what decides: the "client"'s, or that which the "node" is asked for.
    target: TargetPath = TargetPath::Client;
}

keys! {
    /// `sticky`.
    table StickySection;

    /// What a client is known by: a "cookie" of the switch's own, which names the node; parts of the request, such as
    /// "{header:x-user}", that pick the node; or "off".
    by: String = "cookie".to_owned();
    /// The cookie's name.
    cookie: String = "larder-node".to_owned();
    /// The path that it is for.
    path: String = "/".to_owned();
    /// When it comes along with requests from other sites: "lax", "strict" or "none". HttpOnly it is always, Secure with TLS and
    /// with "none".
    #[schemars(extend("enum" = ["lax", "strict", "none"]))]
    same_site: String = "lax".to_owned(), when "by = cookie";
    /// How long clients keep it after each reply. Unset: until they are closed.
    max_age: Option<Span>, range "1s to 400d", when "by = cookie", example "1h";
    /// File whose bytes (16 to 4096) go into the cookie's value, the same at all switches. Unset: whoever guesses a node's name
    /// can check the guess.
    secret: Option<String>, example "/etc/larder/sticky.key";
    /// How long a node that drains goes on serving clients whose cookies name it.
    drain: Span = Span(std::time::Duration::from_secs(600)), range "0s to 24h";
}

keys! {
    /// `compress`.
    table CompressSection, texts = |all: &[&str]| Texts(all.iter().map(ToString::to_string).collect());

    /// The codings, the preferred one first: "zstd", "br", "gzip". What a client weighs more goes first. [] for none.
    codings: Texts = texts(&["zstd", "br", "gzip"]);
    /// The types of replies that are compressed: "text/html", "text/*" for all under it, "*+json" for all with the suffix.
    types: Texts = texts(&[ "text/*", "application/json", "application/javascript", "application/xml", "application/wasm", "*+json", "*+xml", ]),
        entries 64, when "codings";
    /// Replies whose length is known and below this are left as they are.
    min: Size = Size(Bytes(1_000)), range "1B to 1GiB", when "codings";
    /// Effort: 1 is quick, 9 makes small replies.
    level: u8 = 4, range "1 to 9", when "codings";
}

keys! {
    /// `mirror`.
    table MirrorSection;

    /// The route whose requests are copied; "default" for what no route takes. Required.
    of: String, example "shop";
    /// How many of them, in percent.
    share: f64 = 100.0, range "0 to 100 percent";
    /// Copies under way at a time; more are left out and counted.
    copies_max: u32 = 64, range "1 to 65536";
    /// Requests with a longer body are not copied.
    body_max: Size = Size(Bytes(64 << 10)), range "0B to 16MiB";
    /// How long a copy may take.
    timeout: Span = Span(std::time::Duration::from_secs(10)), range "10ms to 1m";
}

keys! {
    /// `hedge`.
    table HedgeSection;

    /// How long a node may take to begin its answer before another is asked too. 0s: never.
    after: Span = Span(std::time::Duration::from_millis(200)), range "1ms to 1m, or 0s";
    /// How many of a route's requests may be, in percent. One a second may be whatever this is.
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

/// Thousandths of a percent, in which shares are counted.
const THOUSANDTHS: f64 = 1_000.0;

/// A fault of the edit at `at`.
pub(super) fn fault(at: &str, error: EditError) -> Fault {
    let key = if error.key.is_empty() { at.to_owned() } else { format!("{at}.{}", error.key) };
    Fault::new(key, error.what).hint(error.right)
}

/// Header rules at `at`.
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

/// `switch.headers.request_id`.
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
        return Err(Fault::new(format!("{at}.to"), "missing: where the redirect leads").hint(hint));
    }
    DirectReply::redirect(raw.status, &raw.to, secure).map_err(|error| fault(at, error))
}

pub(super) fn rewrite(at: &str, raw: &RewriteSection) -> Result<PathRewrite, Fault> {
    if raw.prefix.is_empty() {
        let hint = "write prefix = \"/api\", or \"/\" to put something before every path";
        return Err(Fault::new(format!("{at}.prefix"), "missing: what is replaced").hint(hint));
    }
    let decides = raw.target == TargetPath::Node;
    PathRewrite::new(&raw.prefix, &raw.to, decides).map_err(|error| fault(at, error))
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

/// What is compressed, as `at` says; none if nothing is.
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

/// When requests are hedged; never if nothing is.
pub(super) fn hedge(raw: &HedgeSection) -> Option<HedgeConfig> {
    let share = (raw.share * THOUSANDTHS).round() as u32;
    (!raw.after.0.is_zero()).then_some(HedgeConfig { after: raw.after.0, share })
}

/// A client that must come back to its node is not served by another.
pub(super) fn hedge_or_stick(at: &str, hedges: bool, sticks: bool) -> Result<(), Fault> {
    if !(hedges && sticks) {
        return Ok(());
    }
    let what = "contradicts sticky: its clients come back to one node, and another has not what that one has";
    Err(Fault::new(format!("{at}.hedge"), what).hint("leave one of them out"))
}

/// What is edited must be relayed.
pub(crate) fn against_mechanism(switch: &SwitchConfig, warnings: &mut Vec<Fault>) -> Result<(), Fault> {
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
        ("headers.request_id", switch.request_id.is_some()),
        ("headers.request", !switch.request_fields.is_empty()),
        ("headers.reply", !switch.reply_fields.is_empty()),
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
