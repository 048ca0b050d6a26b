//! Translation of the TOML reader's messages into plain English with a remedy.
//!
//! No message names a type of this program. A remedy shows the key with its example of the reference, or the nearest known
//! names. Names that HAProxy, nginx and Envoy use lead to larder's own.

use super::moved::names_in;
use super::reference::{elsewhere, example};
use super::sections::moves::REMOVED;
use super::suggest::{LISTED_MAX, did_you_mean, foreign, nearest, suggest};

/// Reference of all keys.
const REFERENCE: &str =
    "every key is described in examples/larder.toml, which `larder check --defaults` prints";

/// Returns the reason why the reader refuses the value of `key`, and the remedy.
pub(super) fn explain(message: &str, key: &str) -> (String, Option<String>) {
    let message = message.trim_end();
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.split_first() {
        Some((name, known)) if message.starts_with("unknown field") => {
            (format!("unknown key '{name}'"), Some(unknown_key(name, known, key)))
        }
        Some((value, known)) if message.starts_with("unknown variant") => {
            (format!("unknown value '{value}'"), Some(suggest(value, known)))
        }
        Some((name, _)) if message.starts_with("missing field") => {
            (format!("missing: the key '{name}'"), shown(&format!("{key}.{name}")))
        }
        _ => mistyped(message, key).or_else(|| choice(message, key)).unwrap_or_else(|| plain(message, key)),
    }
}

/// Returns the remedy for an unknown key; `key` is its whole path.
fn unknown_key(name: &str, known: &[&str], key: &str) -> String {
    if let Some((_, remedy)) = REMOVED.iter().find(|(removed, _)| *removed == key) {
        return (*remedy).to_owned();
    }
    // A name that stands in the same table is nearer than another program's habit. A misspelt old name leads to the new one.
    let moved = names_in(key.rsplit_once('.').map_or("", |(table, _)| table));
    let old = moved.iter().map(|(old, _)| *old).filter(|old| !known.contains(old));
    let names: Vec<&str> = known.iter().copied().chain(old).collect();
    let now = |near| {
        let row = moved.iter().find(|(old, _)| *old == near && !known.contains(old));
        row.map_or(near, |(_, new)| new.as_str())
    };
    let near: Vec<&str> = nearest(name, &names).into_iter().map(now).collect();
    if let Some(near) = did_you_mean(&near) {
        return format!("{near} ({REFERENCE})");
    }
    if let Some(here) = foreign(name) {
        return here.to_owned();
    }
    match elsewhere(name).as_slice() {
        [] if known.len() <= LISTED_MAX => format!("known here: {}", known.join(", ")),
        [] => REFERENCE.to_owned(),
        tables => format!("'{name}' is a key of {} ({REFERENCE})", tables.join(" and ")),
    }
}

/// Translates "invalid type: FOUND, expected WANTED"; `None` for any other message.
fn mistyped(message: &str, key: &str) -> Option<(String, Option<String>)> {
    let rest = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "))?;
    let (found, wanted) = rest.split_once(", expected ")?;
    let wanted = match wanted {
        "a sequence" if found == "map" => {
            let hint = format!("write [[{key}]] above the keys, once for each table");
            return Some(("expected a list of tables, found one table".to_owned(), Some(hint)));
        }
        "a sequence" => "a list",
        "a boolean" => "true or false",
        "f32" | "f64" => "a number",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "a map" => "a table",
        wanted if wanted.starts_with("struct ") => "a table",
        wanted if names_a_type(wanted) => "a value of another kind",
        wanted => wanted,
    };
    let wanted = wanted.replace('`', "");
    let hint = seconds(key, &wanted, found).or_else(|| shown(key)).or_else(|| written(key, &wanted));
    Some((format!("expected {wanted}, found {}", found_in_words(found)), hint))
}

/// Returns the remedy for a number without a unit where a span of time is expected.
fn seconds(key: &str, wanted: &str, found: &str) -> Option<String> {
    let number = found.strip_prefix("integer `").filter(|_| wanted.starts_with("a span of time"))?;
    let (number, name) = (number.trim_end_matches('`'), key.rsplit('.').next().unwrap_or(key));
    (!number.starts_with('-')).then(|| format!("write {name} = \"{number}s\" for seconds, or \"{number}ms\""))
}

/// Returns an example of a value of this kind, for keys without an example.
fn written(key: &str, wanted: &str) -> Option<String> {
    let name = key.rsplit('.').next().unwrap_or(key);
    let value = match wanted {
        "a string" => "\"...\"",
        "a string or a list of strings" => "[\"...\", \"...\"]",
        "a list" => "[ ... ]",
        "a table" => "{ ... }",
        "true or false" => "true",
        // The first of the examples that the kind is described with.
        _ if wanted.contains('"') => &format!("\"{}\"", wanted.split('"').nth(1)?),
        _ if wanted.contains("number") => "1",
        _ => return None,
    };
    Some(if name.contains('[') { format!("write {value}") } else { format!("write {name} = {value}") })
}

fn found_in_words(found: &str) -> String {
    let value = found.split('`').nth(1).unwrap_or_default();
    match found {
        "map" => "a table".to_owned(),
        "sequence" => "a list".to_owned(),
        _ if found.starts_with("integer") || found.starts_with("floating point") => {
            format!("the number {value}")
        }
        _ if found.starts_with("boolean") => value.to_owned(),
        _ => found.strip_prefix("string ").unwrap_or(found).replace('`', ""),
    }
}

/// Translates "KEY is THIS or THAT", the message of a value of several kinds; `None` for any other message.
fn choice(message: &str, key: &str) -> Option<(String, Option<String>)> {
    let (name, wanted) = message.split_once(" is ")?;
    let own = name == "a weight" || key.ends_with(name);
    own.then(|| (format!("expected {wanted}"), shown(key).or_else(|| written(key, wanted))))
}

/// Translates any other message: the reader's own text for a syntax error, else the example.
fn plain(message: &str, key: &str) -> (String, Option<String>) {
    if names_a_type(message) || message.starts_with("wanted ") {
        return ("this value does not fit the key".to_owned(), shown(key));
    }
    match message.split_once(": write ") {
        Some((what, remedy)) => (what.to_owned(), Some(format!("write {remedy}"))),
        None => (message.replace('`', "'"), syntax(message).map(str::to_owned)),
    }
}

/// Returns the remedy for a syntax error.
fn syntax(message: &str) -> Option<&'static str> {
    const REMEDIES: [(&str, &str); 6] = [
        (
            "array",
            "write a comma after each entry of a list, and ] after the last: nodes = [\"a:80\", \"b:80\"]",
        ),
        ("inline table", "write { name = value, name = value } on one line, and } after the last"),
        ("string", "write a text between double quotes on one line: listen = \"0.0.0.0:80\""),
        ("table", "write a section's name between brackets on a line of its own: [switch]"),
        (
            "duplicate key",
            "keep one of the two; a list has several values: listen = [\"0.0.0.0:80\", \"[::]:80\"]",
        ),
        ("expected", "write one key = value on each line: policy = \"lard-r\""),
    ];
    REMEDIES.iter().find(|(word, _)| message.contains(word)).map(|(_, remedy)| *remedy)
}

fn names_a_type(text: &str) -> bool {
    ["struct ", "enum ", "untagged", "unknown variant", "Section", "tuple "]
        .iter()
        .any(|word| text.contains(word))
}

/// Returns the key with the example of the reference.
fn shown(key: &str) -> Option<String> {
    example(key).map(|example| format!("for example {example}"))
}

#[cfg(test)]
mod tests {
    use crate::config::Written;
    use crate::config::schema::keys;

    #[test]
    fn names_of_other_programs_lead_to_ours() {
        for (text, says) in [
            ("[backends]\n", "nodes = ["),
            ("[[upstream]]\n", "nodes = ["),
            ("[frontend]\n", "listen = "),
            ("[switch]\nservers = []\n", "nodes = ["),
            ("[switch]\nlisten_addr = \":80\"\n", "listen = "),
            ("[switch]\nbalance = \"rr\"\n", "policy = "),
        ] {
            let error = Written::parse("f", text).unwrap_err();
            assert!(error.hint.as_ref().is_some_and(|hint| hint.contains(says)), "{error}");
        }
        let head = "[switch]\nlisten = \"127.0.0.1:80\"\nnodes = [\"a:1\"]\n";
        for (policy, says) in [
            ("roundrobin", "\"rr\""),
            ("round_robin", "\"rr\""),
            ("leastconn", "\"least-conn\""),
            ("least_request", "\"least-conn\""),
            ("ring_hash", "\"bounded\""),
            ("source", "sticky = "),
            ("ip_hash", "sticky = "),
        ] {
            let written = Written::parse("f", &format!("{head}policy = \"{policy}\"\n")).unwrap();
            let error = written.validate().unwrap_err();
            assert!(error.hint.as_ref().is_some_and(|hint| hint.contains(says)), "{error}");
        }
    }

    /// Sets every key and table of the reference to a value of each kind.
    #[test]
    fn no_error_names_a_type_of_this_program() {
        let (mut errors, keys) = (0, keys());
        assert!(keys.len() > 250, "{}", keys.len());
        for key in &keys {
            for value in
                ["80", "-1", "1.5", "true", "\"text\"", "[]", "[1]", "[{ a = 1 }]", "{ a = 1 }", "1979-05-27"]
            {
                let text = document(key, value);
                let Err(error) = Written::parse("f", &text) else { continue };
                errors += 1;
                let said = error.to_string();
                for word in ["struct ", "Section", "enum ", "untagged", "unknown variant", "invalid type"] {
                    assert!(!said.contains(word), "{said}\nfor\n{text}");
                }
                assert!(
                    error.line.is_some_and(|line| line as usize <= text.lines().count()),
                    "{said}\nfor\n{text}"
                );
            }
        }
        assert!(errors > keys.len() * 3, "{errors} errors for {} keys", keys.len());
    }

    /// Returns a config that sets one key. `a[].b` is key `b` of the list of tables `a`.
    fn document(key: &str, value: &str) -> String {
        let Some((table, name)) = key.rsplit_once('.') else { return format!("{key} = {value}\n") };
        let (mut text, mut path) = (String::new(), String::new());
        for part in table.split('.') {
            let bare = part.trim_end_matches("[]");
            path = if path.is_empty() { bare.to_owned() } else { format!("{path}.{bare}") };
            let heading = if part.ends_with("[]") { format!("[[{path}]]\n") } else { format!("[{path}]\n") };
            text.push_str(&heading);
        }
        format!("{text}{name} = {value}\n")
    }
}
