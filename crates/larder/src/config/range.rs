//! Ranges of values, in the text form of a declaration: `1 to 64`, `10ms to 1h`, `1s to 1h, or 0s`, `1s to 31d, or
//! "off"`, `body_timeout to 1d`, `a power of two from 1 to 4096`, `1B or more`.
//!
//! The text appears in the reference, and is parsed here to check values. A bound that is a name stands for the value of
//! another key of the section.

use std::str::FromStr;

use toml::Value;

use super::error::Fault;
use super::text::{Size, Span};

/// A range, parsed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Range<'a> {
    shape: Shape,
    least: &'a str,
    /// `None`: no upper bound.
    most: Option<&'a str>,
    /// A value outside of the range that is valid too.
    or: Option<&'a str>,
}

/// A condition on the numbers of a range.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Any,
    PowerOfTwo,
    Prime,
    MultipleOf(f64),
}

/// The unit that amounts are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Number,
    Microseconds,
    Bytes,
}

impl Unit {
    /// Parses an amount; `None` if the text has another unit.
    fn read(self, text: &str) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "bounds are far below 2^53")]
        match self {
            Self::Number => text.parse().ok(),
            Self::Microseconds => Span::from_str(text).ok().map(|span| span.0.as_nanos() as f64 / 1e3),
            Self::Bytes => Size::from_str(text).ok().map(|size| size.0.get() as f64),
        }
    }
}

impl<'a> Range<'a> {
    /// Parses a range; `None` if the text is no range.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let (text, or) = match text.split_once(", or ") {
            Some((text, or)) => (text, Some(or.trim_matches('"'))),
            None => (text, None),
        };
        let (shape, text) = match text.split_once(" from ") {
            Some(("a power of two", rest)) => (Shape::PowerOfTwo, rest),
            Some(("a prime", rest)) => (Shape::Prime, rest),
            Some((shape, rest)) => {
                (Shape::MultipleOf(Unit::Bytes.read(shape.strip_prefix("a multiple of ")?)?), rest)
            }
            None => (Shape::Any, text),
        };
        if let Some(least) = text.strip_suffix(" or more") {
            return Some(Self { shape, least, most: None, or });
        }
        let (least, most) = text.split_once(" to ")?;
        // The unit of a number is for the reader.
        let most = most.strip_suffix(" percent").unwrap_or(most);
        Some(Self { shape, least, most: Some(most), or })
    }

    /// Whether exactly the numbers between the bounds are valid.
    pub(super) fn is_plain(&self) -> bool {
        self.shape == Shape::Any && self.or.is_none()
    }

    /// Returns the bounds as plain numbers; `None` if they have a unit.
    pub(super) fn numbers(&self) -> Option<(f64, Option<f64>)> {
        let most = self.most.map(|most| Unit::Number.read(most).ok_or(())).transpose().ok()?;
        Some((Unit::Number.read(self.least)?, most))
    }

    /// Whether a value is valid. `beside` returns the values of the other keys of its section. A value of another type is
    /// valid here, because its type is checked elsewhere.
    pub(super) fn has<'v>(&self, value: &Value, beside: impl Fn(&str) -> Option<&'v Value>) -> bool {
        let (Some((least, least_unit)), Some((most, unit))) = (
            bound(self.least, &beside),
            self.most.map_or(Some((f64::INFINITY, None)), |most| bound(most, &beside)),
        ) else {
            return true;
        };
        // 0 is 0 in any unit, so that the upper bound says which one it is.
        let unit = unit.or(least_unit).unwrap_or(Unit::Number);
        if self.or.is_some_and(|or| text(value).is_some_and(|text| text == or)) {
            return true;
        }
        let right = |amount: f64| {
            (least..=most).contains(&amount) && self.shape.fits(amount)
                || self.or.and_then(|or| unit.read(or)) == Some(amount)
        };
        match value {
            Value::Integer(_) | Value::Float(_) => number(value).is_some_and(right),
            Value::String(text) => unit.read(text.trim()).is_none_or(right),
            _ => true,
        }
    }

    /// Returns the keys that are bounds, with their values.
    pub(super) fn names<'v>(&self, beside: impl Fn(&str) -> Option<&'v Value>) -> Vec<(&'a str, String)> {
        let bounds = std::iter::once(self.least).chain(self.most);
        bounds.filter_map(|name| Some((name, text(beside(name)?)?))).collect()
    }
}

impl Shape {
    fn fits(self, amount: f64) -> bool {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the bounds")]
        let whole = amount as u64;
        match self {
            Self::Any => true,
            Self::PowerOfTwo => whole.is_power_of_two(),
            Self::Prime => {
                whole > 1 && (2..).take_while(|n| n * n <= whole).all(|n| !whole.is_multiple_of(n))
            }
            Self::MultipleOf(step) => amount % step == 0.0,
        }
    }
}

/// Returns a bound and its unit. The unit is `None` if the bound is 0, or the value of another key that is a plain
/// number.
fn bound<'v>(written: &str, beside: impl Fn(&str) -> Option<&'v Value>) -> Option<(f64, Option<Unit>)> {
    let value = beside(written);
    let shown = match value {
        Some(value) => text(value)?,
        None => written.to_owned(),
    };
    if let Some(amount) = Unit::Number.read(&shown) {
        return Some((amount, (amount != 0.0).then_some(Unit::Number)));
    }
    [Unit::Microseconds, Unit::Bytes].into_iter().find_map(|unit| Some((unit.read(&shown)?, Some(unit))))
}

fn number(value: &Value) -> Option<f64> {
    match value {
        #[expect(clippy::cast_precision_loss, reason = "bounds are far below 2^53")]
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    }
}

/// Checks a value against the range of its key. `beside` returns the values of the other keys of its section. `None` if
/// the value is valid.
pub(super) fn fault_of<'v>(
    key: &str,
    value: &Value,
    range: &str,
    beside: impl Fn(&str) -> Option<&'v Value>,
) -> Option<Fault> {
    let parsed = Range::parse(range).filter(|parsed| !parsed.has(value, &beside))?;
    let mut hint = range.to_owned();
    for (name, value) in parsed.names(&beside) {
        hint.push_str(&format!("; {name} is {value}"));
    }
    Some(Fault::out_of_range(key, text(value).unwrap_or_default()).hint(hint))
}

/// Checks a number that is checked only where it is used.
pub(super) fn checked_number(key: &str, value: f64, range: &str) -> Result<f64, Fault> {
    fault_of(key, &Value::Float(value), range, |_| None).map_or(Ok(value), Err)
}

/// Returns a value as a message shows it; `None` for a table or a list.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(value) => Some(value.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(range: &str, value: &str) -> bool {
        let table: toml::Table = format!("v = {value}\nother = \"5s\"\n").parse().unwrap();
        Range::parse(range).unwrap().has(&table["v"], |name| table.get(name))
    }

    #[test]
    fn values_are_held_against_the_text() {
        for (range, right, wrong) in [
            ("1 to 64", &["1", "64"][..], &["0", "65", "-1", "nan", "64.5"][..]),
            ("0.001 to 1", &["0.001", "1", "1.0"], &["0.0009", "1.01", "inf"]),
            ("0 to 100 percent", &["0", "100.0"], &["100.1", "-0.1"]),
            ("10ms to 1h", &["\"10ms\"", "\"1h\"", "\"60m\""], &["\"9ms\"", "\"61m\"", "\"0s\""]),
            ("1s to 1h, or 0s", &["\"0s\"", "\"1s\""], &["\"1ms\"", "\"2h\""]),
            ("1s to 31d, or \"off\"", &["\"off\"", "\"31d\""], &["\"32d\"", "\"0s\""]),
            ("0.005 to 1, or 0", &["0", "0.0", "0.005"], &["0.001"]),
            ("0B to 16MiB", &["\"0B\"", "\"16MiB\""], &["\"17MiB\""]),
            ("1B or more", &["\"1B\"", "\"1TiB\""], &["\"0B\""]),
            ("a power of two from 1 to 4096", &["1", "4096"], &["0", "3", "8192"]),
            ("a prime from 101 to 5000011", &["101", "5000011"], &["7", "102", "65536"]),
            ("a multiple of 4KiB from 4KiB to 64MiB", &["\"4KiB\"", "\"12KiB\""], &["\"5KiB\"", "\"0B\""]),
            ("other to 1d", &["\"5s\"", "\"1d\""], &["\"4s\"", "\"25h\""]),
        ] {
            assert!(right.iter().all(|value| has(range, value)), "{range}: {right:?}");
            for value in wrong {
                assert!(!has(range, value), "{range}: {value}");
            }
        }
        assert_eq!(Range::parse("any number"), None);
    }

    #[test]
    fn a_value_of_another_kind_is_not_judged() {
        assert!(has("1 to 100000", "\"learned\"") && has("1 to 2", "{ a = 1 }"));
    }
}
