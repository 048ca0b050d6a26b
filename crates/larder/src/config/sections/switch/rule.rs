//! Conditions of `[[switch.classes]]` and `[[switch.routes]]`, classes and keys.

use std::collections::BTreeMap;
use std::fmt::Display;

use larder_core::ServiceClass;
use larder_core::rules::{ClassRules, KeyTemplate, Matcher, RULES_MAX, RuleError};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::sections::switch::covers::covers;
use crate::config::text::Texts;
use crate::config::values::word;

keys! {
    /// An entry of `classes`.
    table ClassSection;

    /// Service class: "n" (only sends bytes), "db" (uses the disk), "cb" (uses the CPU) or "dcb" (uses both).
    /// Required.
    #[schemars(extend("enum" = ["n", "db", "cb", "dcb"]))]
    class: String, example "cb";
    /// Patterns of the path, as sent and without the query. "*" matches any run of bytes.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    path: Texts, example "/cgi-bin/*";
    /// Extensions of the path, without the dot, in any case.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    extension: Texts, example ["php", "asp"];
    /// Methods, with their case.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    method: Texts, example "POST";
    /// Hosts: a name, or "*.example.com" for all names below it. With a port, the client must have sent that port.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    host: Texts, example "secure.example.com";
    /// Header fields, and patterns of their values. Every listed field must be present and match.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    header: BTreeMap<String, Texts>, example serde_json::json!({ "accept": "*json*" });
}

/// Conditions of a rule. Every kind that is given must match, with one alternative of the kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions<'a> {
    pub(crate) method: &'a [String],
    pub(crate) host: &'a [String],
    pub(crate) path: &'a [String],
    pub(crate) extension: &'a [String],
    pub(crate) header: &'a BTreeMap<String, Texts>,
}

impl ClassSection {
    pub(crate) fn conditions(&self) -> Conditions<'_> {
        Conditions {
            method: &self.method.0,
            host: &self.host.0,
            path: &self.path.0,
            extension: &self.extension.0,
            header: &self.header,
        }
    }
}

/// Adds an alternative to a kind of condition.
type And = fn(Matcher, &str) -> Result<Matcher, RuleError>;

/// Returns the matcher of the conditions at `at`.
pub(crate) fn matcher(at: &str, given: Conditions<'_>) -> Result<Matcher, Fault> {
    let kinds: [(&str, &[String], And); 4] = [
        ("method", given.method, Matcher::method),
        ("host", given.host, Matcher::host),
        ("path", given.path, Matcher::path),
        ("extension", given.extension, Matcher::extension),
    ];
    let mut matcher = Matcher::new();
    for (kind, texts, and) in kinds {
        matcher = alternatives(&format!("{at}.{kind}"), texts, matcher, and)?;
    }
    for (name, values) in given.header {
        let key = format!("{at}.header.{name}");
        if values.0.is_empty() {
            return Err(Fault::new(key, "no value is given").hint("write \"*\" for any value"));
        }
        matcher = alternatives(&key, &values.0, matcher, |matcher, value| matcher.header(name, value))?;
    }
    Ok(matcher)
}

fn alternatives(
    key: &str,
    texts: &[String],
    matcher: Matcher,
    and: impl Fn(Matcher, &str) -> Result<Matcher, RuleError>,
) -> Result<Matcher, Fault> {
    let numbered = |i: usize| if texts.len() == 1 { key.to_owned() } else { format!("{key}[{i}]") };
    let mut texts = texts.iter().enumerate();
    texts.try_fold(matcher, |matcher, (i, text)| {
        and(matcher, text).map_err(|error| fault(numbered(i), &error))
    })
}

/// Validates the class rules at `at`.
pub(crate) fn classes(
    at: &str,
    raw: &[ClassSection],
    warnings: &mut Vec<Fault>,
) -> Result<ClassRules, Fault> {
    let mut rules = Vec::with_capacity(raw.len());
    for (i, class) in raw.iter().enumerate() {
        let key = format!("{at}.classes[{i}]");
        if class.class.is_empty() {
            let what = "missing: the service class";
            return Err(Fault::new(format!("{key}.class"), what).hint("write class = \"cb\""));
        }
        let known = ServiceClass::ALL.map(ServiceClass::name);
        let class_of = word(&format!("{key}.class"), &class.class, &known)?;
        rules.push((matcher(&key, class.conditions())?, class_of));
    }
    unreachable(
        &format!("{at}.classes"),
        &raw.iter().map(|class| Some(class.conditions())).collect::<Vec<_>>(),
        warnings,
    );
    ClassRules::new(rules).map_err(|error| list_fault(&format!("{at}.classes"), &error))
}

/// Parses the key template at `at`.
pub(crate) fn key(at: &str, text: &str) -> Result<KeyTemplate, Fault> {
    text.parse().map_err(|error| fault(at, &error))
}

/// Warns of each rule all of whose requests an earlier rule takes. `None` stands for a rule without conditions of its
/// own.
pub(crate) fn unreachable(at: &str, rules: &[Option<Conditions<'_>>], warnings: &mut Vec<Fault>) {
    for (i, rule) in rules.iter().enumerate().take(RULES_MAX) {
        let Some(rule) = rule else { continue };
        let covers = |earlier: &Option<Conditions<'_>>| earlier.is_some_and(|earlier| covers(&earlier, rule));
        if let Some(by) = rules[..i].iter().position(covers) {
            let what = format!("is never reached: {at}[{by}] takes all its requests");
            warnings.push(Fault::new(format!("{at}[{i}]"), what).hint("put the narrower one first"));
        }
    }
}

/// Returns the fault of a list of rules, at the rule with the fault.
pub(crate) fn list_fault(at: &str, error: &RuleError) -> Fault {
    match error {
        RuleError::Unreachable { rule, by, coverage: everything } => {
            let takes = if everything.0 { "every request" } else { "the same requests" };
            let right = if everything.0 { "put that one last" } else { "leave one of them out" };
            let (rule, by) = (rule.saturating_sub(1), by.saturating_sub(1));
            Fault::new(format!("{at}[{rule}]"), format!("is never reached: {at}[{by}] takes {takes}"))
                .hint(right)
        }
        error => fault(at, error),
    }
}

/// Returns the fault of an error of the rules. The text before its first colon is the fault, and the text after it the
/// remedy.
fn fault(key: impl Into<String>, error: &RuleError) -> Fault {
    let split = |what: &dyn Display, text: &str| match text.split_once(": ") {
        Some((wrong, right)) => Fault::new("", format!("{what}{wrong}")).hint(right),
        None => Fault::new("", format!("{what}{text}")),
    };
    let fault = match error {
        RuleError::Text { text, column, fault, .. } => {
            split(&format_args!("'{text}', column {column}: "), &fault.to_string())
        }
        error => split(&"", &error.to_string()),
    };
    fault.at(key)
}
