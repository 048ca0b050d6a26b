//! Conversions from command line text to a format or to the keys of JSON lines.

use std::str::FromStr;

use super::Format;
use super::json_fields::JsonFields;
use crate::error::TraceError;

impl FromStr for Format {
    type Err = TraceError;

    fn from_str(name: &str) -> Result<Self, TraceError> {
        let known = Self::ALL.into_iter().find(|format| format.name() == name);
        known.ok_or_else(|| TraceError::NoSuchFormat(name.chars().take(40).collect()))
    }
}

impl FromStr for JsonFields {
    type Err = TraceError;

    fn from_str(text: &str) -> Result<Self, TraceError> {
        Self::parse(text).map_err(TraceError::JsonFields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for format in Format::ALL {
            assert_eq!(format.name().parse::<Format>().expect("its own name"), format);
        }
        assert!(matches!("csv".parse::<Format>(), Err(TraceError::NoSuchFormat(_))));
    }
}
