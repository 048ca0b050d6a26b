//! Claims as data: `claims/AREA.toml` has the claims of an area. The tidy test reads them with the same code.

use std::path::Path;

use serde::Deserialize;
use toml::value::Datetime;

/// The claims of a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Area {
    #[serde(rename = "area")]
    pub(crate) title: String,
    /// Place of the area on the page.
    pub(crate) order: u32,
    #[serde(rename = "claim")]
    pub(crate) claims: Vec<Claim>,
}

/// A statement with numbers, and the commands that measure them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Claim {
    pub(crate) id: String,
    /// The statement, one sentence.
    #[serde(rename = "claim")]
    pub(crate) statement: String,
    /// Documents with a mark of the claim.
    #[serde(rename = "where")]
    pub(crate) documents: Vec<String>,
    pub(crate) commands: Vec<String>,
    /// Absent where the result does not depend on the machine, or where no machine is recorded.
    pub(crate) machine: Option<String>,
    /// Day of the measurement.
    pub(crate) date: Datetime,
    pub(crate) values: Vec<Measurement>,
    #[serde(default)]
    pub(crate) remarks: Vec<String>,
}

/// A measured value, or several that a name tells apart, such as `p50 and p99`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Measurement {
    pub(crate) name: String,
    pub(crate) value: Option<Figures>,
    #[serde(default)]
    pub(crate) unit: String,
    /// Lowest and highest result of repeated measurements.
    pub(crate) range: Option<[f64; 2]>,
    pub(crate) at_most: Option<f64>,
    pub(crate) at_least: Option<f64>,
    pub(crate) note: Option<String>,
}

/// The numbers of a measurement.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Figures {
    One(f64),
    Several(Vec<f64>),
}

impl Figures {
    /// Returns the numbers.
    pub(crate) fn all(&self) -> &[f64] {
        match self {
            Figures::One(value) => std::slice::from_ref(value),
            Figures::Several(values) => values,
        }
    }
}

impl Measurement {
    /// Reports whether the value has a bound.
    pub(crate) fn is_bounded(&self) -> bool {
        self.at_most.is_some() || self.at_least.is_some()
    }

    /// Returns all numbers that a bound applies to.
    fn figures(&self) -> impl Iterator<Item = f64> {
        let value = self.value.as_ref().map_or(&[][..], Figures::all);
        value.iter().copied().chain(self.range.into_iter().flatten())
    }

    fn fault(&self) -> Option<&'static str> {
        if self.figures().next().is_none() {
            return Some("has neither value nor range");
        }
        if self.range.is_some_and(|[lowest, highest]| lowest > highest) {
            return Some("has a range whose first number is the larger one");
        }
        let above = |bound: f64| self.figures().any(|figure| figure > bound);
        let below = |bound: f64| self.figures().any(|figure| figure < bound);
        (self.at_most.is_some_and(above) || self.at_least.is_some_and(below)).then_some("exceeds its bound")
    }
}

impl Claim {
    /// Returns what is wrong with the record.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let is_of_id = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.id.is_empty() || !self.id.chars().all(is_of_id) {
            faults.push("has an id with other characters than a-z, 0-9 and '-'".to_owned());
        }
        if !self.statement.ends_with('.') || self.statement.trim_end_matches('.').contains(". ") {
            faults.push("is not one sentence".to_owned());
        }
        if self.commands.is_empty() {
            faults.push("has no command".to_owned());
        }
        if self.values.is_empty() {
            faults.push("has no values".to_owned());
        }
        for value in &self.values {
            faults.extend(value.fault().map(|fault| format!("{}: {fault}", value.name)));
        }
        faults
    }
}

/// Reads the claims of a text.
pub(crate) fn parse(path: &str, text: &str) -> Result<Area, String> {
    toml::from_str(text).map_err(|error| format!("{path}: {error}"))
}

/// Reads all files in `claims/` of the repository, in the order of the page.
pub(crate) fn read(root: &Path) -> Result<Vec<Area>, String> {
    let folder = root.join("claims");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut areas = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|ending| ending == "toml") {
            let shown = path.display().to_string();
            let text = std::fs::read_to_string(&path).map_err(|error| format!("{shown}: {error}"))?;
            areas.push(parse(&shown, &text)?);
        }
    }
    areas.sort_by(|a, b| (a.order, &a.title).cmp(&(b.order, &b.title)));
    Ok(areas)
}
