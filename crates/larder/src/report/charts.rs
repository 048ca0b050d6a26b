//! The kinds of chart the reports need, drawn as SVG: bars, lines, and a strip of dots for each row.

use super::axis::Axis;
use super::svg::{Anchor, Svg};

const WIDTH: f64 = 640.0;
const LABELS: f64 = 96.0;
const RIGHT: f64 = 22.0;

/// One row of a bar chart.
pub(crate) struct Bar {
    /// Names the row and, through `p-<label>`, its colour.
    pub(crate) label: String,
    pub(crate) value: f64,
    /// Stands at the end of the bar.
    pub(crate) text: String,
}

/// Horizontal bars from zero; `heading` is drawn above them if it is not empty.
pub(crate) fn bars(title: &str, heading: (&str, &str), high: f64, rows: &[Bar]) -> Svg {
    const ROW: f64 = 34.0;
    let top = if heading.0.is_empty() { 8.0 } else { 66.0 };
    let height = top + ROW * rows.len() as f64 + 8.0;
    let told: Vec<String> = rows.iter().map(|bar| format!("{}: {}", bar.label, bar.text)).collect();
    let mut svg = Svg::new(WIDTH, height, title, &told.join("; "));
    if !heading.0.is_empty() {
        svg.text("head", (16.0, 28.0), Anchor::Start, heading.0);
        svg.text("soft", (16.0, 48.0), Anchor::Start, heading.1);
    }
    let axis = Axis::exact((0.0, high.max(f64::MIN_POSITIVE)), (LABELS, WIDTH - 170.0));
    for (i, bar) in rows.iter().enumerate() {
        let y = top + ROW * i as f64;
        svg.text("label", (LABELS - 12.0, y + 21.0), Anchor::End, &bar.label);
        let length = axis.at(bar.value) - LABELS;
        let class = format!("p-{}", bar.label);
        svg.rect(&class, (LABELS, y + 5.0), (length.max(1.0), 22.0), &format!("{}: {}", bar.label, bar.text));
        svg.text("strong", (LABELS + length + 8.0, y + 21.0), Anchor::Start, &bar.text);
    }
    svg
}

/// One line of a line chart.
pub(crate) struct Series {
    /// Names the line and, through `p-<label>`, its colour.
    pub(crate) label: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// What a line chart says about its axes.
pub(crate) struct Lines<'a> {
    pub(crate) title: &'a str,
    pub(crate) x_label: &'a str,
    pub(crate) y_label: &'a str,
    /// A logarithmic horizontal axis; all x must be above 0 then.
    pub(crate) x_log: bool,
    /// The vertical axis is a share and shown in percent.
    pub(crate) y_percent: bool,
}

/// Lines over two axes, with a legend above.
pub(crate) fn lines(about: &Lines<'_>, series: &[Series]) -> Svg {
    const HEIGHT: f64 = 330.0;
    let (left, top, bottom) = (56.0, 46.0, HEIGHT - 46.0);
    let names: Vec<&str> = series.iter().map(|line| line.label.as_str()).collect();
    let told = format!("{} against {} for {}", about.y_label, about.x_label, names.join(", "));
    let mut svg = Svg::new(WIDTH, HEIGHT, about.title, &told);
    let points = || series.iter().flat_map(|line| line.points.iter().copied());
    let x_high = points().map(|p| p.0).fold(0.0, f64::max);
    let x_low = points().map(|p| p.0).filter(|x| *x > 0.0).fold(f64::INFINITY, f64::min);
    let x = if about.x_log && x_low.is_finite() {
        Axis::log((x_low, x_high), (left, WIDTH - RIGHT))
    } else {
        Axis::from_zero(x_high, (left, WIDTH - RIGHT))
    };
    let y_high = if about.y_percent { 1.0 } else { points().map(|p| p.1).fold(0.0, f64::max) };
    let y = Axis::from_zero(y_high, (bottom, top));
    for tick in y.ticks() {
        svg.line("grid", (left, y.at(tick)), (WIDTH - RIGHT, y.at(tick)));
        let text = if about.y_percent { format!("{:.0} %", tick * 100.0) } else { number(tick) };
        svg.text("soft", (left - 8.0, y.at(tick) + 4.0), Anchor::End, &text);
    }
    for tick in x.ticks() {
        svg.text("soft", (x.at(tick), bottom + 18.0), Anchor::Middle, &number(tick));
    }
    svg.line("axis", (left, bottom), (WIDTH - RIGHT, bottom));
    svg.text("soft", (WIDTH - RIGHT, HEIGHT - 8.0), Anchor::End, about.x_label);
    legend(&mut svg, &names, left);
    for line in series {
        let places: Vec<(f64, f64)> = line.points.iter().map(|(a, b)| (x.at(*a), y.at(*b))).collect();
        svg.polyline(&format!("p-{}", line.label), &places, &line.label);
    }
    svg
}

fn legend(svg: &mut Svg, names: &[&str], left: f64) {
    let mut x = left;
    for name in names {
        svg.rect(&format!("p-{name}"), (x, 14.0), (14.0, 10.0), "");
        svg.text("soft", (x + 20.0, 23.0), Anchor::Start, name);
        x += 44.0 + 7.5 * name.chars().count() as f64;
    }
}

/// One row of dots.
pub(crate) struct Strip {
    /// Names the row and, through `p-<label>`, its colour.
    pub(crate) label: String,
    /// A dot each: name and value.
    pub(crate) dots: Vec<(String, f64)>,
}

/// Dots along one axis in a row for each label, the mean marked; `marks` are named vertical lines.
pub(crate) fn strips(title: &str, x_label: &str, marks: &[(&str, f64)], rows: &[Strip]) -> Svg {
    const ROW: f64 = 40.0;
    let (top, foot) = (28.0, 42.0);
    let bottom = top + ROW * rows.len() as f64;
    let means: Vec<f64> = rows.iter().map(|row| mean(&row.dots)).collect();
    let told: Vec<String> =
        rows.iter().zip(&means).map(|(row, mean)| format!("{}: mean {}", row.label, number(*mean))).collect();
    let mut svg = Svg::new(WIDTH, bottom + foot, title, &told.join("; "));
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
            svg.dot(&format!("p-{}", row.label), (axis.at(*value), y), 7.0, &tip);
        }
        svg.line("mean", (axis.at(*mean), y - 13.0), (axis.at(*mean), y + 13.0));
    }
    svg.text("soft", (WIDTH - RIGHT, bottom + foot - 4.0), Anchor::End, x_label);
    svg
}

fn mean(dots: &[(String, f64)]) -> f64 {
    dots.iter().map(|dot| dot.1).sum::<f64>() / dots.len().max(1) as f64
}

/// A number for people: three significant digits below a thousand, thousands grouped above.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 1_000.0 {
        return grouped(value.round());
    }
    let digits = if value == value.trunc() || size >= 100.0 {
        0
    } else if size >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$}")
}

fn grouped(whole: f64) -> String {
    let digits = format!("{:.0}", whole.abs());
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if whole < 0.0 { format!("-{out}") } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        for (value, text) in
            [(0.0, "0"), (1.239, "1.24"), (12.34, "12.3"), (742.4, "742"), (1_234_567.0, "1,234,567")]
        {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_bar_is_as_long_as_its_value() {
        let row = |label: &str, value: f64| Bar { label: label.into(), value, text: number(value) };
        let text = bars("t", ("", ""), 100.0, &[row("wrr", 50.0), row("lard-r", 100.0)]).inline();
        assert!(text.contains(r#"class="p-wrr" x="96" y="13" width="187""#), "{text}");
        assert!(text.contains(r#"class="p-lard-r" x="96" y="47" width="374""#), "{text}");
    }
}
