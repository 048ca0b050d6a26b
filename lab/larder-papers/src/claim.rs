//! Claims: the published statement, the measurement, and the bounds within which the claim holds.

use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use super::report::{Judgement, Sample};

/// The measure that reduces a line to a number. The line may first be divided, point by point, by another
/// line (`per`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// The value at `at`.
    Value,
    /// The least value from `from` to `to`.
    Least,
    /// The greatest value from `from` to `to`.
    Most,
    /// The mean of the values from `from` to `to`.
    Mean,
    /// The spread of the values from `from` to `to`: (greatest - least) / mean. 0 is a flat line.
    Spread,
    /// The value at `to` over the value at `from`.
    Gain,
    /// The gain from `from` to `to`, divided by `to` / `from`. Above 1, the line rises faster than its x.
    Growth,
    /// The least-squares slope from `from` to `to`.
    Slope,
    /// The share of the x from `from` to `to` at which no line of `among` is lower; it may be above by `slack`.
    Lowest,
    /// The share of the x from `from` to `to` at which no line of `among` is higher; it may be below by `slack`.
    Highest,
    /// The x of the greatest value.
    PeakAt,
    /// The share of the x from `from` to `to` at which the lines of `order` are in this order, greatest
    /// first. Each may be below the next by the share `slack`.
    Order,
    /// The share of the line's variance that a straight line explains, 0 to 1.
    Straight,
    /// The first x at which the line is below `level`.
    FirstBelow,
    /// The first x at which the line is above `level`.
    FirstAbove,
}

/// The unit in which a number is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Unit {
    /// A plain number.
    #[default]
    #[serde(rename = "")]
    Plain,
    /// A factor: `3.90x`.
    #[serde(rename = "x")]
    Factor,
    /// A share: 0.04 is `4.0 %`.
    #[serde(rename = "%")]
    Percent,
    /// A factor as a difference: 1.16 is `16.0 % more`.
    #[serde(rename = "% more")]
    More,
    /// Requests per second.
    #[serde(rename = "req/s")]
    PerSecond,
    /// Seconds, written in ms.
    #[serde(rename = "ms")]
    Millis,
    /// Nodes.
    #[serde(rename = "nodes")]
    Nodes,
}

impl Unit {
    /// Formats a number in this unit.
    pub fn write(self, value: f64) -> String {
        match self {
            Self::Plain => plain(value),
            Self::Factor => format!("{value:.2}x"),
            Self::Percent => format!("{:.1} %", value * 100.0),
            Self::More if value < 1.0 => format!("{:.1} % less", (1.0 - value) * 100.0),
            Self::More => format!("{:.1} % more", (value - 1.0) * 100.0),
            Self::PerSecond => format!("{value:.0} requests/s"),
            Self::Millis => format!("{:.1} ms", value * 1_000.0),
            Self::Nodes => format!("{value:.0} nodes"),
        }
    }
}

fn plain(value: f64) -> String {
    if value == value.trunc() { format!("{value:.0}") } else { format!("{value:.3}") }
}

/// The bounds within which a claim holds; at least one is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The lower bound.
    pub min: Option<f64>,
    /// The upper bound.
    pub max: Option<f64>,
}

impl Bounds {
    /// Returns whether a value lies within the bounds.
    pub fn hold(&self, value: f64) -> bool {
        self.min.is_none_or(|min| value >= min) && self.max.is_none_or(|max| value <= max)
    }

    fn text(&self, unit: Unit) -> String {
        match (self.min, self.max) {
            (Some(min), Some(max)) if min == max => unit.write(min),
            (Some(min), Some(max)) => format!("{} to {}", unit.write(min), unit.write(max)),
            (Some(min), None) => format!("at least {}", unit.write(min)),
            (None, Some(max)) => format!("at most {}", unit.write(max)),
            (None, None) => "anything".to_owned(),
        }
    }
}

/// The verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Our value lies within the bounds.
    Holds,
    /// Our value lies outside the bounds.
    HoldsNot,
    /// There is no value of ours, because the experiment was left out.
    NotJudged,
}

impl Verdict {
    /// Returns the verdict in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::HoldsNot => "does not hold",
            Self::NotJudged => "not judged",
        }
    }
}

/// The comparison that a measured value is divided by: the same measure of another line or range. Missing
/// fields are those of the claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// The line; with `per`, it is divided as well.
    pub line: Option<String>,
    /// The line to divide by.
    pub per: Option<String>,
    /// The x of the value.
    pub at: Option<f64>,
    /// The start of the range. With this field or `to`, the claim's range is ignored.
    pub from: Option<f64>,
    /// The end of the range.
    pub to: Option<f64>,
}

impl Comparison {
    /// Returns the claim with the fields of the comparison.
    fn of(&self, claim: &Claim) -> Claim {
        let (line, per) = match &self.line {
            Some(_) => (self.line.clone(), self.per.clone()),
            None => (claim.line.clone(), self.per.clone().or_else(|| claim.per.clone())),
        };
        let (from, to) = match (self.from, self.to) {
            (None, None) => (claim.from, claim.to),
            range => range,
        };
        Claim { line, per, from, to, at: self.at.or(claim.at), versus: None, ..claim.clone() }
    }
}

/// A claim of an experiment file.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The id, unique within the file.
    pub id: String,
    /// The paper's statement, in our words.
    pub says: String,
    /// The section and figure.
    pub place: String,
    /// The evidence for the published value.
    pub known: String,
    /// The published value.
    pub published: String,
    /// The value of the verdict as evidence.
    pub evidence: Evidence,
    /// The measure of our value.
    pub measure: Measure,
    /// The measured line; `None` for [`Measure::Order`].
    pub line: Option<String>,
    /// The line that it is divided by.
    pub per: Option<String>,
    /// The comparison that the measured value is divided by.
    pub versus: Option<Comparison>,
    /// The other lines of [`Measure::Lowest`] and [`Measure::Highest`].
    pub among: Vec<String>,
    /// The lines of [`Measure::Order`], greatest first.
    pub order: Vec<String>,
    /// The share by which a line may be below the next in [`Measure::Order`].
    pub slack: f64,
    /// The metric of the samples.
    pub metric: String,
    /// The x of [`Measure::Value`].
    pub at: Option<f64>,
    /// The start of the range; the first x if `None`.
    pub from: Option<f64>,
    /// The end of the range; the last x if `None`.
    pub to: Option<f64>,
    /// The level of [`Measure::FirstBelow`] and [`Measure::FirstAbove`].
    pub level: Option<f64>,
    /// The unit of our value.
    pub unit: Unit,
    /// The bounds within which the claim holds.
    pub bounds: Bounds,
    /// The reason for the bounds.
    pub tolerance: String,
    /// The reason why the claim does not hold, if it does not.
    pub why: String,
    /// Whether the small run judges the claim too.
    pub ci: bool,
}

impl Claim {
    /// Measures and judges the claim. Without samples for it, the claim is not judged.
    pub fn judge(&self, samples: &[Sample]) -> Judgement {
        let measured = self.measure_value(samples).filter(|value| !value.is_nan());
        let ours = measured.filter(|value| value.is_finite());
        let verdict = match (measured, ours) {
            (None, _) => Verdict::NotJudged,
            (_, Some(value)) if self.bounds.hold(value) => Verdict::Holds,
            _ => Verdict::HoldsNot,
        };
        let absent = if measured.is_some() { "nowhere" } else { "-" };
        Judgement {
            id: self.id.clone(),
            says: self.says.clone(),
            place: self.place.clone(),
            known: self.known.clone(),
            published: self.published.clone(),
            evidence: self.evidence.clone(),
            ours,
            ours_text: ours.map_or_else(|| absent.to_owned(), |value| self.unit.write(value)),
            rule: self.rule(),
            tolerance: self.tolerance.clone(),
            verdict,
            why: if verdict == Verdict::HoldsNot { self.why.clone() } else { String::new() },
        }
    }

    /// Returns the lines that the claim needs.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.line.iter().chain(&self.per).chain(&self.among).chain(&self.order).map(String::as_str)
    }

    fn measure_value(&self, samples: &[Sample]) -> Option<f64> {
        if let Some(versus) = &self.versus {
            let own = Self { versus: None, ..self.clone() }.measure_value(samples)?;
            return Some(own / versus.of(self).measure_value(samples)?);
        }
        match self.measure {
            Measure::Order => return self.share_in_order(samples),
            Measure::Lowest => {
                return self.share_of_extremes(samples, |y, other| y <= other * (1.0 + self.slack));
            }
            Measure::Highest => {
                return self.share_of_extremes(samples, |y, other| y >= other * (1.0 - self.slack));
            }
            _ => {}
        }
        let line = self.ratio(samples);
        let part = self.range_of(&line);
        let values = || part.iter().map(|(_, y)| *y);
        let (first, last) = (part.first()?, part.last()?);
        let mean = values().sum::<f64>() / part.len() as f64;
        let (least, most) =
            (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
        match self.measure {
            Measure::Value => at(&line, self.at?),
            Measure::Least => Some(least),
            Measure::Most => Some(most),
            Measure::Mean => Some(mean),
            Measure::Spread => Some((most - least) / mean),
            Measure::Gain => Some(last.1 / first.1),
            Measure::Growth => Some((last.1 / first.1) / (last.0 / first.0)),
            Measure::PeakAt => part.iter().find(|(_, y)| *y == most).map(|(x, _)| *x),
            Measure::Straight => straightness(part),
            Measure::FirstBelow => Some(first_x(part, |y, level| y < level, self.level?)),
            Measure::FirstAbove => Some(first_x(part, |y, level| y > level, self.level?)),
            Measure::Slope => slope(part),
            Measure::Order | Measure::Lowest | Measure::Highest => None,
        }
    }

    /// Returns the line, divided by the line `per` at the x of both.
    fn ratio(&self, samples: &[Sample]) -> Vec<(f64, f64)> {
        let points = |name: &Option<String>| {
            name.as_ref().map_or_else(Vec::new, |name| series(samples, name, &self.metric))
        };
        let line = points(&self.line);
        if self.per.is_none() {
            return line;
        }
        let per = points(&self.per);
        line.into_iter().filter_map(|(x, y)| Some((x, y / at(&per, x)?))).collect()
    }

    fn range_of<'l>(&self, line: &'l [(f64, f64)]) -> &'l [(f64, f64)] {
        let (from, to) = (self.from.unwrap_or(f64::NEG_INFINITY), self.to.unwrap_or(f64::INFINITY));
        let begin = line.partition_point(|(x, _)| *x < from);
        let end = line.partition_point(|(x, _)| *x <= to);
        &line[begin.min(end)..end]
    }

    fn share_in_order(&self, samples: &[Sample]) -> Option<f64> {
        let lines: Vec<Vec<(f64, f64)>> =
            self.order.iter().map(|name| series(samples, name, &self.metric)).collect();
        let xs: Vec<f64> = self.range_of(lines.first()?).iter().map(|(x, _)| *x).collect();
        let in_order = |x: &&f64| {
            let values: Option<Vec<f64>> = lines.iter().map(|line| at(line, **x)).collect();
            values.is_some_and(|values| values.windows(2).all(|pair| pair[0] >= pair[1] * (1.0 - self.slack)))
        };
        (!xs.is_empty()).then(|| xs.iter().filter(in_order).count() as f64 / xs.len() as f64)
    }

    /// Returns the share of the x at which the line has this relation to each of the other lines.
    fn share_of_extremes(&self, samples: &[Sample], stands: impl Fn(f64, f64) -> bool) -> Option<f64> {
        let line = series(samples, self.line.as_ref()?, &self.metric);
        let others: Vec<_> = self.among.iter().map(|name| series(samples, name, &self.metric)).collect();
        let part = self.range_of(&line);
        let stands = |(x, y): &&(f64, f64)| {
            others.iter().all(|other| at(other, *x).is_some_and(|other| stands(*y, other)))
        };
        (!part.is_empty()).then(|| part.iter().filter(stands).count() as f64 / part.len() as f64)
    }

    fn rule(&self) -> String {
        let versus = self.versus.as_ref().map(|versus| versus.of(self).describe());
        let versus = versus.map_or_else(String::new, |what| format!(", divided by {what}"));
        format!("{}{versus}: {}", self.describe(), self.bounds.text(self.unit))
    }

    /// Describes the measured value.
    fn describe(&self) -> String {
        let metric = self.metric.replace('_', " ");
        let of = match (&self.line, &self.per) {
            (Some(line), Some(per)) => format!("{metric} of {line} over {per}"),
            (Some(line), None) => format!("{metric} of {line}"),
            _ => metric,
        };
        let range = match (self.from, self.to) {
            (None, None) => String::new(),
            (Some(from), None) => format!(" from {from}"),
            (None, Some(to)) => format!(" to {to}"),
            (Some(from), Some(to)) => format!(" from {from} to {to}"),
        };
        let (at, level) = (self.at.unwrap_or(f64::NAN), self.level.unwrap_or(f64::NAN));
        match self.measure {
            Measure::Value => format!("{of} at {at}"),
            Measure::Least => format!("least {of}{range}"),
            Measure::Most => format!("greatest {of}{range}"),
            Measure::Mean => format!("mean {of}{range}"),
            Measure::Spread => format!("(greatest - least) / mean {of}{range}"),
            Measure::Gain => format!("gain in {of}{range}"),
            Measure::Growth => format!("gain in {of}{range} over the gain in x"),
            Measure::PeakAt => format!("x of the greatest {of}{range}"),
            Measure::Order => {
                format!("share of x where {of} falls in the order {}{range}", self.order.join(", "))
            }
            Measure::Straight => {
                format!("share of the variance of {of} that a straight line explains{range}")
            }
            Measure::FirstBelow => format!("first x with {of} below {level}{range}"),
            Measure::FirstAbove => format!("first x with {of} above {level}{range}"),
            Measure::Slope => format!("rise of {of} with each unit of x{range}"),
            Measure::Lowest => {
                format!("share of x where {of} is the lowest among {}{range}", self.among.join(", "))
            }
            Measure::Highest => {
                format!("share of x where {of} is the highest among {}{range}", self.among.join(", "))
            }
        }
    }
}

/// Returns the points of a line, in ascending order of x.
pub(super) fn series(samples: &[Sample], line: &str, metric: &str) -> Vec<(f64, f64)> {
    let of_line = samples.iter().filter(|sample| sample.line == line);
    let mut points: Vec<(f64, f64)> =
        of_line.filter_map(|sample| Some((sample.x, *sample.values.get(metric)?))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

fn at(line: &[(f64, f64)], x: f64) -> Option<f64> {
    line.iter().find(|point| (point.0 - x).abs() < 1e-9).map(|point| point.1)
}

/// Returns the first x past the level; infinite if there is none.
fn first_x(line: &[(f64, f64)], is_past: fn(f64, f64) -> bool, level: f64) -> f64 {
    line.iter().find(|(_, y)| is_past(*y, level)).map_or(f64::INFINITY, |(x, _)| *x)
}

/// Returns the coefficient of determination of the least-squares line; `None` for fewer than three points or
/// a level line.
fn straightness(line: &[(f64, f64)]) -> Option<f64> {
    if line.len() < 3 {
        return None;
    }
    let n = line.len() as f64;
    let (mean_x, mean_y) =
        (line.iter().map(|p| p.0).sum::<f64>() / n, line.iter().map(|p| p.1).sum::<f64>() / n);
    let sum = |f: fn(f64, f64) -> f64| line.iter().map(|p| f(p.0 - mean_x, p.1 - mean_y)).sum::<f64>();
    let (xx, xy, yy) = (sum(|x, _| x * x), sum(|x, y| x * y), sum(|_, y| y * y));
    (xx > 0.0 && yy > 0.0).then(|| xy * xy / (xx * yy))
}

/// Returns the slope of the least-squares line; `None` for fewer than two points.
fn slope(line: &[(f64, f64)]) -> Option<f64> {
    let n = line.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| line.iter().map(of).sum::<f64>() / n;
    let (mean_x, mean_y) = (mean(|p| p.0), mean(|p| p.1));
    let xx: f64 = line.iter().map(|p| (p.0 - mean_x) * (p.0 - mean_x)).sum();
    let xy: f64 = line.iter().map(|p| (p.0 - mean_x) * (p.1 - mean_y)).sum();
    (line.len() > 1 && xx > 0.0).then(|| xy / xx)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(measure: Measure) -> Claim {
        Claim {
            id: "c".into(),
            says: String::new(),
            place: String::new(),
            known: String::new(),
            published: String::new(),
            evidence: Evidence::Reproduced,
            measure,
            line: Some("a".into()),
            per: None,
            versus: None,
            among: Vec::new(),
            order: Vec::new(),
            slack: 0.0,
            metric: "m".into(),
            at: None,
            from: None,
            to: None,
            level: None,
            unit: Unit::Plain,
            bounds: Bounds { min: None, max: None },
            tolerance: String::new(),
            why: "because".into(),
            ci: false,
        }
    }

    /// Returns a(x) = x^2 and b(x) = 2x at 1, 2, 4, in no order.
    fn samples() -> Vec<Sample> {
        let of = |line, x, y| Sample::new(line, x, [("m", y)]);
        vec![
            of("a", 4.0, 16.0),
            of("b", 1.0, 2.0),
            of("a", 1.0, 1.0),
            of("b", 4.0, 8.0),
            of("a", 2.0, 4.0),
            of("b", 2.0, 4.0),
        ]
    }

    #[test]
    fn every_measure_measures() {
        let range = |measure| Claim { from: Some(2.0), to: Some(4.0), ..claim(measure) };
        let b = |claim: Claim| Claim { per: Some("b".into()), ..claim };
        let cases = [
            (Claim { at: Some(2.0), ..claim(Measure::Value) }, Some(4.0)),
            (Claim { at: Some(3.0), ..claim(Measure::Value) }, None),
            (b(Claim { at: Some(4.0), ..claim(Measure::Value) }), Some(2.0)),
            (range(Measure::Least), Some(4.0)),
            (claim(Measure::Most), Some(16.0)),
            (claim(Measure::Mean), Some(7.0)),
            (range(Measure::Spread), Some(1.2)),
            (range(Measure::Gain), Some(4.0)),
            (range(Measure::Growth), Some(2.0)),
            (claim(Measure::PeakAt), Some(4.0)),
            (b(claim(Measure::Straight)), Some(1.0)),
            (Claim { level: Some(3.0), ..claim(Measure::FirstAbove) }, Some(2.0)),
            (Claim { level: Some(2.0), ..claim(Measure::FirstBelow) }, Some(1.0)),
        ];
        for (claim, expected) in cases {
            let ours = claim.measure_value(&samples());
            assert!(
                ours.zip(expected).map_or(ours == expected, |(a, b)| (a - b).abs() < 1e-12),
                "{:?}: {ours:?}",
                claim.measure
            );
        }
    }

    #[test]
    fn a_measure_is_compared_with_itself_elsewhere() {
        let versus = |claim: Claim, versus: Comparison| {
            Claim { versus: Some(versus), ..claim }.measure_value(&samples())
        };
        let b = Comparison { line: Some("b".into()), ..Comparison::default() };
        // The points are (1,1) (2,4) (4,16) and (1,2) (2,4) (4,8).
        let slope = claim(Measure::Slope).measure_value(&samples()).unwrap();
        assert!((slope - 36.0 / 7.0).abs() < 1e-12, "{slope}");
        assert!((versus(claim(Measure::Slope), b.clone()).unwrap() - 18.0 / 7.0).abs() < 1e-12);
        let at_4 = Claim { at: Some(4.0), ..claim(Measure::Value) };
        let at_2 = Comparison { at: Some(2.0), ..Comparison::default() };
        assert_eq!(versus(at_4.clone(), at_2.clone()), Some(4.0));
        assert_eq!(versus(at_4.clone(), b), Some(2.0));
        let ratio = Claim { per: Some("b".into()), ..at_4 };
        assert_eq!(versus(ratio.clone(), at_2.clone()), Some(2.0), "a ratio of ratios");
        let rule = Claim { versus: Some(at_2), ..ratio }.judge(&samples()).rule;
        assert!(rule.starts_with("m of a over b at 4, divided by m of a over b at 2: "), "{rule}");
        assert_eq!(slope_of_one_point(), None);
    }

    fn slope_of_one_point() -> Option<f64> {
        slope(&[(1.0, 1.0)])
    }

    #[test]
    fn the_lowest_is_compared_with_every_other() {
        let among = |measure, slack| {
            Claim { among: vec!["b".into()], slack, ..claim(measure) }.measure_value(&samples())
        };
        assert_eq!(among(Measure::Lowest, 0.0), Some(2.0 / 3.0));
        assert_eq!(among(Measure::Highest, 0.0), Some(2.0 / 3.0));
        assert_eq!(among(Measure::Highest, 0.5), Some(1.0));
        let absent = Claim { among: vec!["c".into()], ..claim(Measure::Lowest) };
        assert_eq!(absent.measure_value(&samples()), Some(0.0), "nothing is below a line that is not there");
    }

    #[test]
    fn an_order_holds_at_a_share_of_the_points() {
        let order = |names: [&str; 2], slack| Claim {
            line: None,
            order: names.map(str::to_owned).to_vec(),
            slack,
            ..claim(Measure::Order)
        };
        assert_eq!(order(["a", "b"], 0.0).measure_value(&samples()), Some(2.0 / 3.0));
        assert_eq!(order(["b", "a"], 0.0).measure_value(&samples()), Some(2.0 / 3.0));
        assert_eq!(order(["a", "b"], 0.5).measure_value(&samples()), Some(1.0));
        assert_eq!(
            order(["a", "c"], 0.0).measure_value(&samples()),
            Some(0.0),
            "a line that is not there is in no order"
        );
    }

    #[test]
    fn bounds_decide_and_reasons_explain_failures() {
        let of = |min, max| Claim { at: Some(2.0), bounds: Bounds { min, max }, ..claim(Measure::Value) };
        let good = of(Some(3.9), Some(4.1)).judge(&samples());
        assert_eq!((good.verdict, good.why.as_str()), (Verdict::Holds, ""));
        let bad = of(Some(4.5), None).judge(&samples());
        assert_eq!(
            (bad.verdict, bad.why.as_str(), bad.ours_text.as_str()),
            (Verdict::HoldsNot, "because", "4")
        );
        assert_eq!(bad.rule, "m of a at 2: at least 4.500");
        assert_eq!(of(None, None).judge(&[]).verdict, Verdict::NotJudged);
        let never = Claim { level: Some(1.0), ..claim(Measure::FirstBelow) }.judge(&samples());
        assert_eq!((never.verdict, never.ours_text.as_str()), (Verdict::HoldsNot, "nowhere"));
    }

    #[test]
    fn numbers_are_written_in_their_unit() {
        let cases = [
            (Unit::Factor, 3.9, "3.90x"),
            (Unit::Percent, 0.04, "4.0 %"),
            (Unit::More, 1.16, "16.0 % more"),
            (Unit::More, 0.9, "10.0 % less"),
            (Unit::Millis, 0.012, "12.0 ms"),
            (Unit::Plain, 0.25, "0.250"),
        ];
        for (unit, value, text) in cases {
            assert_eq!(unit.write(value), text);
        }
    }
}
