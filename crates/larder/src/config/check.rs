//! The one check for all keys: their ranges, numbers of entries and allowed words, as they are declared.
//!
//! A key with a condition (`when`) is checked only where it is used: `policy = press` holds if the key `policy` beside it is
//! "press", and `policies` alone if that key is given and neither empty, zero nor "off". `used` stands for a condition that only
//! the section's own code knows, which then asks [`super::range::checked_number`].

use toml::{Table, Value};

use super::error::Fault;
use super::range::{fault_of, text};
use super::schema::Part;
use super::sections::Sections;

/// Returns the faults of single values, in the order of the keys.
pub(super) fn faults(raw: &Sections) -> Vec<Fault> {
    let mut faults = Vec::new();
    match Table::try_from(raw) {
        Ok(values) => table(Part::root(), &values, "", &mut faults),
        Err(error) => match through_json(raw) {
            Some(values) => table(Part::root(), &values, "", &mut faults),
            // The types of sections are made so that this cannot happen; a config that is not checked must not be used.
            None => faults.push(Fault::new("", format!("cannot be checked: {error}"))),
        },
    }
    faults
}

/// Returns the values of a config that TOML cannot write, because a number such as a seed is above 2^63 - 1. Such a
/// number is rounded, which changes the result of no range check.
fn through_json(raw: &Sections) -> Option<Table> {
    match value_of(serde_json::to_value(raw).ok()?) {
        Some(Value::Table(values)) => Some(values),
        _ => None,
    }
}

/// Converts a JSON value to TOML; `None` for null, which means that the key is not set.
fn value_of(json: serde_json::Value) -> Option<Value> {
    use serde_json::Value as Json;
    Some(match json {
        Json::Null => return None,
        Json::Bool(value) => Value::Boolean(value),
        Json::Number(number) => match number.as_i64() {
            Some(whole) => Value::Integer(whole),
            None => Value::Float(number.as_f64()?),
        },
        Json::String(text) => Value::String(text),
        Json::Array(entries) => Value::Array(entries.into_iter().filter_map(value_of).collect()),
        Json::Object(keys) => Value::Table(
            keys.into_iter().filter_map(|(name, value)| Some((name, value_of(value)?))).collect(),
        ),
    })
}

/// Checks the keys of a table.
fn table(at: Part, values: &Table, path: &str, faults: &mut Vec<Fault>) {
    for (name, value) in values {
        let Some(own) = at.key(name) else { continue };
        let part = if own.is_elsewhere() {
            Part::root().key("switch").and_then(|it| it.key(name)).unwrap_or(own)
        } else {
            own
        };
        if part.when().is_some_and(|condition| !holds(condition, values)) {
            continue;
        }
        let key = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        judge(part, &key, value, values, faults);
        match value {
            Value::Table(inner) => table(part, inner, &key, faults),
            Value::Array(entries) => {
                let Some(entry) = part.entry() else { continue };
                for (i, value) in entries.iter().enumerate() {
                    if let Value::Table(inner) = value {
                        table(entry, inner, &format!("{key}[{i}]"), faults);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Whether the condition of a key holds; `values` are those of its table.
fn holds(condition: &str, values: &Table) -> bool {
    let (name, wanted) = match condition.split_once(" = ") {
        Some((name, wanted)) => (name, Some(wanted)),
        None => (condition, None),
    };
    match (values.get(name), wanted) {
        (None, _) => false,
        (Some(value), Some(wanted)) => value.as_str() == Some(wanted),
        (Some(Value::Array(entries)), None) => !entries.is_empty(),
        (Some(value), None) => {
            text(value).is_none_or(|text| !["", "off", "0", "0s", "false"].contains(&&*text))
        }
    }
}

/// Checks the value of a key; `beside` are the values of its table.
fn judge(part: Part, key: &str, value: &Value, beside: &Table, faults: &mut Vec<Fault>) {
    if let (Some(most), Value::Array(entries)) = (part.entries(), value)
        && entries.len() as u64 > most
    {
        faults.push(
            Fault::new(key, format!("{} entries are too many", entries.len()))
                .hint(format!("at most {most}")),
        );
    }
    // An empty word that is the default is a key that is missing, which the section tells.
    let words = if part.get("default").is_some_and(|word| word == "" && value.as_str() == Some("")) {
        Vec::new()
    } else {
        part.words()
    };
    if let Some(word) = value.as_str().filter(|word| !words.is_empty() && !words.contains(word)) {
        faults.push(Fault::unknown(key, word, &words));
    }
    let Some(range) = part.range_text() else { return };
    match value {
        Value::Array(entries) => {
            for (i, entry) in entries.iter().enumerate() {
                faults.extend(fault_of(&format!("{key}[{i}]"), entry, range, |name| beside.get(name)));
            }
        }
        // The values of a map, which has no keys of its own.
        Value::Table(entries) if !part.has_keys() => {
            for (name, entry) in entries {
                faults.extend(fault_of(&format!("{key}.{name}"), entry, range, |name| beside.get(name)));
            }
        }
        value => faults.extend(fault_of(key, value, range, |name| beside.get(name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Written;
    use crate::config::range::Range;
    use crate::config::schema::keys;

    /// A misspelt range would check nothing.
    #[test]
    fn every_range_and_condition_can_be_read() {
        let mut count = 0;
        for key in keys() {
            let Some(part) = Part::find(&key) else { panic!("{key}") };
            if let Some(text) = part.range_text() {
                count += 1;
                assert!(Range::parse(text).is_some(), "{key}: {text}");
            }
            let table = key.rsplit_once('.').and_then(|(table, _)| Part::find(table));
            if let Some(condition) = part.when().filter(|condition| *condition != "used") {
                let name = condition.split(" = ").next().unwrap_or_default();
                assert!(table.is_some_and(|table| table.key(name).is_some()), "{key}: {condition}");
            }
        }
        assert!(count > 150, "{count} ranges");
    }

    #[test]
    fn all_faults_of_single_values_are_found_at_once() {
        let text = "[switch]\nlisten = \"[::]:80\"\nnodes = [\"a:1\"]\npolicies.lard.t_low = 0\nadmission.queue_timeout = \"1000d\"\n\
                    shadow = { one_in = 3 }\npolicies.static = { shares = { n = 2000000 } }\n[switch.health.outliers]\ntime = \"10m\"\n\
                    [[switch.routes]]\nname = \"a\"\npath = \"/a\"\npolicies = { lard.t_low = 0, hacc.margin = 2.0 }\n";
        let written = Written::parse("f", text).unwrap();
        let found: Vec<String> = faults(&written.raw).iter().map(|fault| fault.key().to_owned()).collect();
        let expected = [
            "switch.policies.lard.t_low",
            "switch.admission.queue_timeout",
            "switch.routes[0].policies.lard.t_low",
            "switch.routes[0].policies.hacc.margin",
            "switch.policies.static.shares.n",
            "switch.health.outliers.time_max",
        ];
        let mut sorted = expected.to_vec();
        sorted.sort_unstable();
        let mut found = found;
        found.sort_unstable();
        assert_eq!(found, sorted);
    }

    #[test]
    fn a_key_that_is_not_used_is_not_checked() {
        let check = |text: &str| {
            let head = "[switch]\nlisten = \"[::]:80\"\nnodes = [\"a:1\"]\n";
            let written = Written::parse("f", &format!("{head}{text}")).unwrap();
            faults(&written.raw).len()
        };
        for (off, on) in [
            ("shadow = { one_in = 3 }", "shadow = { one_in = 3, policies = \"all\" }"),
            ("hedge = { share = 101.0, after = \"0s\" }", "hedge = { share = 101.0 }"),
            ("compress = { level = 11, codings = [] }", "compress = { level = 11 }"),
            ("sticky = { max_age = \"500d\", by = \"{header:a}\" }", "sticky = { max_age = \"500d\" }"),
        ] {
            assert_eq!((check(off), check(on)), (0, 1), "{off}");
        }
    }

    #[test]
    fn a_number_above_those_of_toml_switches_no_check_off() {
        let head =
            "[switch]\nlisten = \"[::]:80\"\nnodes = [\"a:1\"]\npolicies.seed = 18446744073709551615\n";
        let keys = |text: &str| {
            let written = Written::parse("f", &format!("{head}{text}")).expect("it reads");
            faults(&written.raw).iter().map(|fault| fault.key().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(keys(""), Vec::<String>::new());
        assert_eq!(
            keys("admission.queue_max = 9999999999999999999\nconnect.follow_names = \"2h\"\n"),
            ["switch.admission.queue_max", "switch.connect.follow_names"]
        );
    }
}
