//! The reader of experiment files. Errors name file, line, key and valid values.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;

use super::builtin::{Builtin, Plan};
use super::builtins;
use super::claim::{Bounds, Claim, Comparison, Measure, Unit};
use super::cluster::RunSettings;
use super::evidence::Evidence;
use super::experiment::{CiSubset, Experiment, FigureSpec, LineSpec, Paper, SampleSource, Sweep};
use super::point::METRICS;

/// An error in an experiment file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {key}{colon}{message}", colon = if key.is_empty() { "" } else { ": " })]
pub struct FileError {
    /// The file's name.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The key with its tables, such as `claim.within`; empty if the text is not TOML.
    pub key: String,
    /// The cause and the valid values.
    pub message: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    id: Spanned<String>,
    paper: Paper,
    place: String,
    title: String,
    about: String,
    run: Option<Spanned<RunSettings>>,
    sweep: Option<Spanned<RawSweep>>,
    #[serde(default)]
    line: Vec<RawLine>,
    builtin: Option<Spanned<String>>,
    params: Option<Spanned<toml::Table>>,
    params_ci: Option<Spanned<toml::Table>>,
    ci: Option<Spanned<RawCi>>,
    #[serde(default)]
    figure: Vec<RawFigure>,
    #[serde(default)]
    claim: Vec<RawClaim>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSweep {
    over: String,
    values: Vec<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLine {
    name: Spanned<String>,
    #[serde(default)]
    set: RunSettings,
    values: Option<Vec<f64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCi {
    #[serde(default)]
    set: RunSettings,
    values: Vec<f64>,
    lines: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFigure {
    name: Spanned<String>,
    title: String,
    x_label: String,
    y_label: String,
    metric: Spanned<String>,
    lines: Option<Spanned<Vec<String>>>,
    y_max: Option<f64>,
    #[serde(default)]
    y_percent: bool,
    #[serde(default)]
    x_log: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClaim {
    id: Spanned<String>,
    says: String,
    place: String,
    known: String,
    published: String,
    evidence: Spanned<String>,
    measure: Measure,
    line: Option<Spanned<String>>,
    per: Option<Spanned<String>>,
    versus: Option<Spanned<Comparison>>,
    among: Option<Spanned<Vec<String>>>,
    order: Option<Spanned<Vec<String>>>,
    #[serde(default)]
    slack: f64,
    metric: Spanned<String>,
    at: Option<f64>,
    from: Option<f64>,
    to: Option<f64>,
    level: Option<f64>,
    #[serde(default)]
    unit: Unit,
    near: Option<f64>,
    within: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    tolerance: String,
    #[serde(default)]
    why: String,
    #[serde(default)]
    ci: bool,
}

/// A text with its name, for errors.
struct SourceText<'t> {
    name: &'t str,
    text: &'t str,
}

impl SourceText<'_> {
    /// Returns an error at an offset of the text.
    fn error(&self, offset: usize, message: impl Into<String>) -> FileError {
        let (line, table, key) = locate(self.text, offset);
        let key = join_key(&table, &key);
        FileError { file: self.name.to_owned(), line, key, message: message.into() }
    }

    /// Returns an error about a key of the table at an offset. If the message begins with `KEY: ` or
    /// `KEY.KEY: ` and the key is set, the error is at its line. Otherwise it is at the beginning of the
    /// table.
    fn error_below(&self, offset: usize, message: &str) -> FileError {
        let (path, rest) = message.split_once(": ").unwrap_or(("", message));
        let key = path.split('.').next().unwrap_or_default();
        let table = self.text.get(offset..).unwrap_or_default();
        let mut at = offset;
        for (number, line) in table.split_inclusive('\n').enumerate() {
            if number > 0 && line.starts_with('[') {
                break;
            }
            let set = line.trim_start().strip_prefix(key).map(str::trim_start);
            if !key.is_empty() && set.is_some_and(|rest| rest.starts_with('=')) {
                return self.error_in(at, path, rest);
            }
            at += line.len();
        }
        self.error(offset, message)
    }

    /// Returns an error about a key of the table at an offset.
    fn error_in(&self, offset: usize, key: &str, message: impl Into<String>) -> FileError {
        let (line, table, _) = locate(self.text, offset);
        let key = join_key(&table, key);
        FileError { file: self.name.to_owned(), line, key, message: message.into() }
    }
}

fn join_key(table: &str, key: &str) -> String {
    if table.is_empty() || key.is_empty() { format!("{table}{key}") } else { format!("{table}.{key}") }
}

/// Returns the line of an offset, the table that contains it, and the key there; empty if there is none.
fn locate(text: &str, offset: usize) -> (usize, String, String) {
    let before = text.get(..offset.min(text.len())).unwrap_or(text);
    let number = before.matches('\n').count();
    let key_of = |line: &str| {
        let key = line.split('=').next().unwrap_or("").trim();
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        (line.contains('=') && !key.is_empty() && key.chars().all(plain)).then(|| key.to_owned())
    };
    let lines: Vec<&str> = text.lines().take(number + 1).collect();
    let header = lines.iter().rev().find(|line| line.starts_with('['));
    let table = header.map_or(String::new(), |line| line.trim().trim_matches(['[', ']']).to_owned());
    // A value over several lines belongs to the key above it.
    let above = lines.iter().rev().take_while(|line| !line.starts_with('[')).find_map(|line| key_of(line));
    (number + 1, table, above.unwrap_or_default())
}

/// Reads and checks an experiment file.
pub(super) fn parse(name: &str, text: &str) -> Result<Experiment, FileError> {
    let source = SourceText { name, text };
    let raw: RawFile = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        source.error(offset, error.message().trim())
    })?;
    let id = raw.id.get_ref().clone();
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if id.is_empty() || id.len() > 60 || !id.chars().all(good) {
        return Err(source.error(raw.id.span().start, "must be 1 to 60 of a-z, 0-9 and '-'"));
    }
    if raw.figure.len() > LIST_MAX || raw.claim.len() > LIST_MAX {
        return Err(
            source.error(raw.id.span().start, format!("at most {LIST_MAX} figures and as many claims"))
        );
    }
    let (lines, metrics, from) = read_source(&source, &raw)?;
    let figures = raw.figure.iter().map(|figure| read_figure(&source, figure, &lines, &metrics));
    let figures = figures.collect::<Result<Vec<_>, _>>()?;
    let mut claims = Vec::new();
    let mut ids = BTreeSet::new();
    for claim in &raw.claim {
        if !ids.insert(claim.id.get_ref()) {
            return Err(source.error(claim.id.span().start, "another claim has this id already"));
        }
        claims.push(read_claim(&source, claim, &lines, &metrics)?);
    }
    check_followed(&source, &raw.claim, &claims)?;
    if claims.is_empty() && figures.is_empty() {
        return Err(source.error(0, "an experiment needs at least one [[figure]] or [[claim]]"));
    }
    let RawFile { paper, place, title, about, .. } = raw;
    Ok(Experiment { id, paper, place, title, about, source: from, figures, claims })
}

type SampleOrigin = (Vec<String>, Vec<String>, SampleSource);

/// Reads the source of the samples, with the names of its lines and metrics.
fn read_source(source: &SourceText<'_>, raw: &RawFile) -> Result<SampleOrigin, FileError> {
    match (&raw.builtin, &raw.sweep) {
        (Some(builtin), None) => {
            let place = raw.params.as_ref().map_or(builtin.span().start, |params| params.span().start);
            let empty = toml::Table::new();
            let params = raw.params.as_ref().map_or(&empty, |params| params.get_ref());
            let found = builtins::by_name(builtin.get_ref())
                .map_err(|message| source.error(builtin.span().start, message))?;
            let plan = found.plan(params).map_err(|message| source.error_below(place, &message))?;
            let small =
                raw.params_ci.as_ref().map(|ci| read_small_plan(source, found, params, ci)).transpose()?;
            let metrics = plan.metrics().into_iter().map(str::to_owned).collect();
            let lines = plan.lines();
            Ok((lines, metrics, SampleSource::Builtin { name: found.name(), plan: plan.into(), small }))
        }
        (None, Some(sweep)) => {
            let sweep = read_sweep(source, raw, sweep)?;
            let lines = sweep.lines.iter().map(|line| line.name.clone()).collect();
            Ok((lines, METRICS.map(str::to_owned).to_vec(), SampleSource::Sweep(sweep.into())))
        }
        _ => {
            Err(source.error(raw.id.span().start, "an experiment needs [sweep] or 'builtin', one of the two"))
        }
    }
}

/// Reads the small run of a builtin: `[params]`, overridden by `[params_ci]`.
fn read_small_plan(
    source: &SourceText<'_>,
    builtin: &dyn Builtin,
    params: &toml::Table,
    ci: &Spanned<toml::Table>,
) -> Result<Arc<dyn Plan>, FileError> {
    let mut all = params.clone();
    all.extend(ci.get_ref().clone());
    let place = ci.span().start;
    builtin.plan(&all).map(Arc::from).map_err(|message| source.error_below(place, &message))
}

fn read_sweep(source: &SourceText<'_>, raw: &RawFile, sweep: &Spanned<RawSweep>) -> Result<Sweep, FileError> {
    let at = sweep.span().start;
    let RawSweep { over, values } = sweep.get_ref();
    check_values(values).map_err(|message| source.error_in(at, "values", message))?;
    if raw.line.len() > LINES_MAX {
        return Err(source.error(at, format!("a [sweep] takes at most {LINES_MAX} lines")));
    }
    let Some(run) = &raw.run else {
        return Err(source.error(at, "a [sweep] needs a [run] that says what is run"));
    };
    let mut lines: Vec<LineSpec> = Vec::new();
    for line in &raw.line {
        let place = line.name.span().start;
        let name = line.name.get_ref();
        if lines.iter().any(|other| other.name == *name) {
            return Err(source.error(place, format!("another line is called '{name}' already")));
        }
        let values = line.values.as_ref().unwrap_or(values).clone();
        check_values(&values).map_err(|message| source.error_in(place, "values", message))?;
        let settings = run.get_ref().override_with(&line.set);
        for x in &values {
            let point = settings.with(over, *x).and_then(|settings| settings.run());
            point.map_err(|message| source.error(place, format!("at {over} = {x}: {message}")))?;
        }
        lines.push(LineSpec { name: name.clone(), settings, values });
    }
    if lines.is_empty() {
        return Err(source.error(at, "a [sweep] needs at least one [[line]]"));
    }
    let ci = raw.ci.as_ref().map(|ci| read_ci(source, ci, &lines)).transpose()?;
    Ok(Sweep { over: over.clone(), lines, ci })
}

/// The largest number of x values of a line.
const VALUES_MAX: usize = 1_000;
/// The largest number of lines of a sweep.
const LINES_MAX: usize = 100;
/// The largest number of figures, and of claims, of a file.
const LIST_MAX: usize = 1_000;

fn check_values(values: &[f64]) -> Result<(), &'static str> {
    if values.is_empty() || values.len() > VALUES_MAX || values.iter().any(|x| !x.is_finite()) {
        return Err("must be 1 to 1,000 numbers");
    }
    Ok(())
}

fn read_ci(source: &SourceText<'_>, ci: &Spanned<RawCi>, lines: &[LineSpec]) -> Result<CiSubset, FileError> {
    let RawCi { set, values, lines: names } = ci.get_ref();
    let known = |name: &&String| lines.iter().any(|line| line.name == **name);
    check_values(values).map_err(|message| source.error_in(ci.span().start, "values", message))?;
    match names.iter().find(|name| !known(name)) {
        Some(name) => Err(source.error_in(ci.span().start, "lines", format!("there is no line '{name}'"))),
        None => Ok(CiSubset { set: set.clone(), values: values.clone(), lines: names.clone() }),
    }
}

/// Checks that a name is one of `names`.
fn check_name(
    source: &SourceText<'_>,
    at: usize,
    what: &str,
    name: &str,
    names: &[String],
) -> Result<(), FileError> {
    if names.iter().any(|known| known == name) {
        return Ok(());
    }
    Err(source.error(at, format!("there is no {what} '{name}': use one of {}", names.join(", "))))
}

fn read_figure(
    source: &SourceText<'_>,
    raw: &RawFigure,
    lines: &[String],
    metrics: &[String],
) -> Result<FigureSpec, FileError> {
    check_name(source, raw.metric.span().start, "metric", raw.metric.get_ref(), metrics)?;
    if let Some(names) = &raw.lines {
        for name in names.get_ref() {
            check_name(source, names.span().start, "line", name, lines)?;
        }
    }
    if raw.y_max.is_some_and(|max| max <= 0.0 || !max.is_finite()) {
        return Err(source.error_in(raw.name.span().start, "y_max", "must be above 0"));
    }
    Ok(FigureSpec {
        name: raw.name.get_ref().clone(),
        title: raw.title.clone(),
        x_label: raw.x_label.clone(),
        y_label: raw.y_label.clone(),
        metric: raw.metric.get_ref().clone(),
        lines: raw.lines.as_ref().map_or_else(|| lines.to_vec(), |names| names.get_ref().clone()),
        y_max: raw.y_max,
        y_percent: raw.y_percent,
        x_log: raw.x_log,
    })
}

fn read_claim(
    source: &SourceText<'_>,
    raw: &RawClaim,
    lines: &[String],
    metrics: &[String],
) -> Result<Claim, FileError> {
    check_name(source, raw.metric.span().start, "metric", raw.metric.get_ref(), metrics)?;
    for name in [&raw.line, &raw.per].into_iter().flatten() {
        check_name(source, name.span().start, "line", name.get_ref(), lines)?;
    }
    for names in [&raw.order, &raw.among].into_iter().flatten() {
        for name in names.get_ref() {
            check_name(source, names.span().start, "line", name, lines)?;
        }
    }
    for (versus, name) in raw.versus.iter().flat_map(|versus| {
        let Comparison { line, per, .. } = versus.get_ref();
        line.iter().chain(per).map(move |name| (versus, name))
    }) {
        check_name(source, versus.span().start, "line", name, lines)?;
    }
    check_measure(source, raw)?;
    let list = |names: &Option<Spanned<Vec<String>>>| {
        names.as_ref().map_or_else(Vec::new, |names| names.get_ref().clone())
    };
    Ok(Claim {
        id: raw.id.get_ref().clone(),
        says: raw.says.clone(),
        place: raw.place.clone(),
        known: raw.known.clone(),
        published: raw.published.clone(),
        evidence: read_evidence(source, raw)?,
        measure: raw.measure,
        line: raw.line.as_ref().map(|name| name.get_ref().clone()),
        per: raw.per.as_ref().map(|name| name.get_ref().clone()),
        versus: raw.versus.as_ref().map(|versus| versus.get_ref().clone()),
        among: list(&raw.among),
        order: list(&raw.order),
        slack: raw.slack,
        metric: raw.metric.get_ref().clone(),
        at: raw.at,
        from: raw.from,
        to: raw.to,
        level: raw.level,
        unit: raw.unit,
        bounds: read_bounds(source, raw)?,
        tolerance: raw.tolerance.clone(),
        why: raw.why.clone(),
        ci: raw.ci,
    })
}

/// Checks that a claim has the fields that its measure needs.
fn check_measure(source: &SourceText<'_>, raw: &RawClaim) -> Result<(), FileError> {
    let wrong = |key: &str, message: &str| Err(source.error_in(raw.id.span().start, key, message));
    let order = raw.order.as_ref().map_or(&[][..], |order| order.get_ref());
    let among = raw.among.as_ref().map_or(&[][..], |among| among.get_ref());
    let extreme = matches!(raw.measure, Measure::Lowest | Measure::Highest);
    if extreme == among.is_empty() {
        return wrong("among", "the measures 'lowest' and 'highest', and only they, need other lines here");
    }
    if raw.per.is_some() && extreme {
        return wrong("per", "the measures 'lowest' and 'highest' take lines as they are");
    }
    match raw.measure {
        Measure::Order if order.len() < 2 || raw.line.is_some() => {
            return wrong("order", "the measure 'order' needs 'order' with two lines or more, and no 'line'");
        }
        Measure::Order => {}
        _ if raw.line.is_none() => return wrong("line", "is missing: this measure needs a line"),
        Measure::Value if raw.at.is_none() => {
            return wrong("at", "is missing: the measure 'value' needs an x");
        }
        Measure::FirstAbove | Measure::FirstBelow if raw.level.is_none() => {
            return wrong("level", "is missing: this measure needs a level");
        }
        _ => {}
    }
    if !(0.0..1.0).contains(&raw.slack) {
        return wrong("slack", "must be from 0 to below 1");
    }
    Ok(())
}

fn read_evidence(source: &SourceText<'_>, raw: &RawClaim) -> Result<Evidence, FileError> {
    let at = raw.evidence.span().start;
    let evidence: Evidence =
        raw.evidence.get_ref().parse().map_err(|message: String| source.error(at, message))?;
    match &evidence {
        Evidence::FollowsFrom(id) if id == raw.id.get_ref() => {
            Err(source.error(at, "a claim cannot follow from itself"))
        }
        _ => Ok(evidence),
    }
}

/// Checks that claims follow from claims of this file. The catalogue checks references to other files.
fn check_followed(source: &SourceText<'_>, raw: &[RawClaim], claims: &[Claim]) -> Result<(), FileError> {
    for (raw, claim) in raw.iter().zip(claims) {
        if let Evidence::FollowsFrom(id) = &claim.evidence
            && !id.contains('/')
            && claims.iter().all(|other| other.id != *id)
        {
            return Err(
                source.error(raw.evidence.span().start, format!("there is no claim '{id}' in this file"))
            );
        }
    }
    Ok(())
}

fn read_bounds(source: &SourceText<'_>, raw: &RawClaim) -> Result<Bounds, FileError> {
    let wrong = |key: &str, message: &str| Err(source.error_in(raw.id.span().start, key, message));
    match (raw.near, raw.within, raw.min, raw.max) {
        (Some(near), Some(within), None, None) if (0.0..1.0).contains(&within) => {
            let margin = near.abs() * within;
            Ok(Bounds { min: Some(near - margin), max: Some(near + margin) })
        }
        (Some(_), Some(_), None, None) => wrong("within", "must be a share from 0 to below 1"),
        (None, None, min, max) if min.or(max).is_some() => {
            if min.zip(max).is_some_and(|(min, max)| min > max) {
                return wrong("min", "must not be above 'max'");
            }
            Ok(Bounds { min, max })
        }
        _ => wrong("near", "a claim needs 'near' with 'within', or 'min' or 'max' or both"),
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
