//! Charts with a row for each policy, drawn as SVG: bars, and strips of dots. [`super::lines`] draws line
//! charts.

use super::axis::Axis;
use super::marks::colour;
use super::number;
use super::svg::{Anchor, Svg};

const WIDTH: f64 = 640.0;
const LABELS: f64 = 96.0;
const RIGHT: f64 = 22.0;

/// A row of a bar chart.
pub(crate) struct Bar {
    /// Rows whose labels begin with the same word have the same colour. The second word "model" makes the
    /// colour paler.
    pub(crate) label: String,
    pub(crate) value: f64,
    /// The text at the end of the bar.
    pub(crate) text: String,
}

/// Draws horizontal bars from zero. A non-empty `heading` is drawn above the bars.
pub(crate) fn bars(title: &str, heading: (&str, &str), high: f64, rows: &[Bar]) -> Svg {
    const ROW: f64 = 34.0;
    let top = if heading.0.is_empty() { 8.0 } else { 66.0 };
    let height = top + ROW * rows.len() as f64 + 8.0;
    let description: Vec<String> = rows.iter().map(|bar| format!("{}: {}", bar.label, bar.text)).collect();
    let mut svg = Svg::new(WIDTH, height, title, &description.join("; "));
    if !heading.0.is_empty() {
        svg.text("head", (16.0, 28.0), Anchor::Start, heading.0);
        svg.text("soft", (16.0, 48.0), Anchor::Start, heading.1);
    }
    let axis = Axis::exact((0.0, high.max(f64::MIN_POSITIVE)), (LABELS, WIDTH - 170.0));
    let mut names: Vec<&str> = Vec::new();
    for (i, bar) in rows.iter().enumerate() {
        let y = top + ROW * i as f64;
        svg.text("label", (LABELS - 12.0, y + 21.0), Anchor::End, &bar.label);
        let length = axis.at(bar.value) - LABELS;
        let (name, more) = bar.label.split_once(' ').unwrap_or((&bar.label, ""));
        let known = names.iter().position(|known| *known == name);
        let class = format!(
            "{}{}",
            colour(known.unwrap_or(names.len())),
            if more == "model" { " model" } else { "" }
        );
        if known.is_none() {
            names.push(name);
        }
        svg.rect(&class, (LABELS, y + 5.0), (length.max(1.0), 22.0), &format!("{}: {}", bar.label, bar.text));
        svg.text("strong", (LABELS + length + 8.0, y + 21.0), Anchor::Start, &bar.text);
    }
    svg
}

/// A row of a strip chart.
pub(crate) struct Strip {
    pub(crate) label: String,
    /// The name and value of each dot.
    pub(crate) dots: Vec<(String, f64)>,
}

/// Draws a row of dots for each label along one axis, and marks the mean of each row. `marks` are named
/// vertical lines.
pub(crate) fn strips(title: &str, x_label: &str, marks: &[(&str, f64)], rows: &[Strip]) -> Svg {
    const ROW: f64 = 40.0;
    let (top, foot) = (28.0, 42.0);
    let bottom = top + ROW * rows.len() as f64;
    let means: Vec<f64> = rows.iter().map(|row| mean(&row.dots)).collect();
    let description: Vec<String> =
        rows.iter().zip(&means).map(|(row, mean)| format!("{}: mean {}", row.label, number(*mean))).collect();
    let mut svg = Svg::new(WIDTH, bottom + foot, title, &description.join("; "));
    let highest = rows.iter().flat_map(|row| row.dots.iter().map(|dot| dot.1)).fold(0.0, f64::max);
    let axis =
        Axis::from_zero(marks.iter().map(|mark| mark.1).fold(highest, f64::max), (LABELS, WIDTH - RIGHT));
    for tick in axis.ticks() {
        svg.line("grid", (axis.at(tick), top), (axis.at(tick), bottom));
        svg.text("soft", (axis.at(tick), bottom + 18.0), Anchor::Middle, &number(tick));
    }
    for (name, value) in marks {
        svg.line("mark", (axis.at(*value), top - 8.0), (axis.at(*value), bottom));
        svg.text("soft", (axis.at(*value), top - 12.0), Anchor::Middle, name);
    }
    for (i, (row, mean)) in rows.iter().zip(&means).enumerate() {
        let y = top + ROW * (i as f64 + 0.5);
        svg.text("label", (LABELS - 12.0, y + 5.0), Anchor::End, &row.label);
        for (name, value) in &row.dots {
            let tip = format!("{}, {name}: {}", row.label, number(*value));
            svg.dot(&colour(i), (axis.at(*value), y), 7.0, &tip);
        }
        svg.line("mean", (axis.at(*mean), y - 13.0), (axis.at(*mean), y + 13.0));
    }
    svg.text("soft", (WIDTH - RIGHT, bottom + foot - 4.0), Anchor::End, x_label);
    svg
}

fn mean(dots: &[(String, f64)]) -> f64 {
    dots.iter().map(|dot| dot.1).sum::<f64>() / dots.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_value() {
        let row = |label: &str, value: f64| Bar { label: label.into(), value, text: number(value) };
        let rows = [row("wrr", 50.0), row("wrr model", 25.0), row("lard-r", 100.0)];
        let text = bars("t", ("", ""), 100.0, &rows).inline();
        assert!(text.contains(r#"class="s0" x="96" y="13" width="187""#), "{text}");
        assert!(text.contains(r#"class="s0 model" x="96" y="47" width="93.5""#), "{text}");
        assert!(text.contains(r#"class="s1" x="96" y="81" width="374""#), "{text}");
    }
}
