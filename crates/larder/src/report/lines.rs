//! Line charts. Each line has its own colour, dash pattern, marker and label, so that overlapping lines stay
//! distinguishable.

use super::axis::Axis;
use super::marks::{colour, dashed, marker};
use super::number;
use super::svg::{Anchor, Svg};

const WIDTH: f64 = 640.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 40.0;
const FOOT: f64 = 46.0;
/// Minimum height of a chart.
const HEIGHT: f64 = 330.0;
/// Minimum distance of labels.
const LABEL_STEP: f64 = 16.0;
/// Length of the line sample before a label.
const SWATCH: f64 = 26.0;
/// Largest number of points for which every point has a marker.
const MARKED_POINTS_MAX: usize = 24;
/// Minimum distance of ticks with text.
const TICK_STEP: f64 = 44.0;
/// Share of the largest value within which values count as equal.
const EQUAL: f64 = 0.005;

/// A line of a line chart.
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Title, axis labels and scales of a line chart.
pub(crate) struct LineChart<'a> {
    pub(crate) title: &'a str,
    pub(crate) x_label: &'a str,
    pub(crate) y_label: &'a str,
    /// Whether the horizontal axis is logarithmic. If so, all x must be above 0.
    pub(crate) x_log: bool,
    /// Ticks of the horizontal axis with their texts. If empty, round values are used.
    pub(crate) x_ticks: Vec<(f64, String)>,
    /// Whether the vertical axis is a share, which is shown in percent.
    pub(crate) y_percent: bool,
}

/// Whether a chart of these lines shows a difference: a line has two points, and not all values are equal.
pub(crate) fn differ(series: &[Series]) -> bool {
    let values = || series.iter().flat_map(|line| line.points.iter().map(|point| point.1));
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
    series.iter().any(|line| line.points.len() > 1) && high - low > EQUAL * high.abs()
}

/// Draws lines over two axes. The label of each line is to the right of its end.
pub(crate) fn lines(chart: &LineChart<'_>, series: &[Series]) -> Svg {
    let names: Vec<&str> = series.iter().map(|line| line.label.as_str()).collect();
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0) as f64;
    let right = WIDTH - if names.len() > 1 { SWATCH + 34.0 + 7.0 * longest } else { 22.0 };
    let height = HEIGHT.max(TOP + FOOT + LABEL_STEP * names.len() as f64);
    let bottom = height - FOOT;
    let description = format!("{} against {} for {}", chart.y_label, chart.x_label, names.join(", "));
    let mut svg = Svg::new(WIDTH, height, chart.title, &description);
    let (x, y) = axes(chart, series, (right, bottom));
    frame(&mut svg, chart, (&x, &y), (right, bottom));
    let places: Vec<Vec<(f64, f64)>> =
        series.iter().map(|line| line.points.iter().map(|(a, b)| (x.at(*a), y.at(*b))).collect()).collect();
    for (i, (line, places)) in series.iter().zip(&places).enumerate() {
        svg.polyline(&dashed(i), places, &line.label);
    }
    for (i, (line, places)) in series.iter().zip(&places).enumerate() {
        let marked = places.iter().zip(&line.points).filter(|_| places.len() <= MARKED_POINTS_MAX);
        for (place, (a, b)) in marked {
            let value = if chart.y_percent { format!("{:.1} %", b * 100.0) } else { number(*b) };
            marker(&mut svg, i, *place, &format!("{}, {}: {value}", line.label, number(*a)));
        }
    }
    if names.len() > 1 {
        labels(&mut svg, &names, &places, (right, bottom));
    }
    svg
}

fn axes(chart: &LineChart<'_>, series: &[Series], (right, bottom): (f64, f64)) -> (Axis, Axis) {
    let points = || series.iter().flat_map(|line| line.points.iter().copied());
    let x_high = points().map(|p| p.0).fold(0.0, f64::max);
    let x_low = points().map(|p| p.0).filter(|x| *x > 0.0).fold(f64::INFINITY, f64::min);
    let x = if chart.x_log && x_low.is_finite() {
        Axis::log((x_low, x_high), (LEFT, right))
    } else {
        Axis::from_zero(x_high, (LEFT, right))
    };
    let y_high = if chart.y_percent { 1.0 } else { points().map(|p| p.1).fold(0.0, f64::max) };
    (x, Axis::from_zero(y_high, (bottom, TOP)))
}

fn frame(svg: &mut Svg, chart: &LineChart<'_>, (x, y): (&Axis, &Axis), (right, bottom): (f64, f64)) {
    for tick in y.ticks() {
        svg.line("grid", (LEFT, y.at(tick)), (right, y.at(tick)));
        let text = if chart.y_percent { format!("{:.0} %", tick * 100.0) } else { number(tick) };
        svg.text("soft", (LEFT - 8.0, y.at(tick) + 4.0), Anchor::End, &text);
    }
    let ticks = match &chart.x_ticks[..] {
        [] => x.ticks().into_iter().map(|tick| (tick, number(tick))).collect(),
        given => given.to_vec(),
    };
    let mut last = f64::NEG_INFINITY;
    for (tick, text) in ticks {
        let at = x.at(tick);
        svg.line("axis", (at, bottom), (at, bottom + 4.0));
        if at - last >= TICK_STEP || chart.x_ticks.is_empty() {
            svg.text("soft", (at, bottom + 18.0), Anchor::Middle, &text);
            last = at;
        }
    }
    svg.line("axis", (LEFT, bottom), (right, bottom));
    svg.text("soft", (LEFT - 40.0, TOP - 18.0), Anchor::Start, chart.y_label);
    svg.text("soft", (right, bottom + FOOT - 8.0), Anchor::End, chart.x_label);
}

/// Writes the label of each line near its end. Labels that would overlap are moved apart.
fn labels(svg: &mut Svg, names: &[&str], places: &[Vec<(f64, f64)>], (right, bottom): (f64, f64)) {
    let ends: Vec<(f64, f64)> =
        places.iter().map(|line| line.last().copied().unwrap_or((right, bottom))).collect();
    let heights: Vec<f64> = ends.iter().map(|end| end.1).collect();
    for (i, y) in spread(&heights, bottom).into_iter().enumerate() {
        let from = right + 20.0;
        // A leader connects a line that ends at the edge to its label.
        if right - ends[i].0 < 1.0 {
            svg.polyline(&format!("{} leader", colour(i)), &[ends[i], (from, y)], "");
        }
        svg.polyline(&dashed(i), &[(from, y), (from + SWATCH, y)], "");
        marker(svg, i, (from + SWATCH / 2.0, y), "");
        svg.text("soft", (from + SWATCH + 6.0, y + 4.0), Anchor::Start, names[i]);
    }
}

/// Returns positions near `wanted` and above `bottom` with a distance of [`LABEL_STEP`], in the same order.
fn spread(wanted: &[f64], bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut placed = wanted.to_vec();
    let mut least = f64::NEG_INFINITY;
    for at in &order {
        placed[*at] = placed[*at].max(least);
        least = placed[*at] + LABEL_STEP;
    }
    let mut most = bottom;
    for at in order.iter().rev() {
        placed[*at] = placed[*at].min(most);
        most = placed[*at] - LABEL_STEP;
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(lines: &[(&str, &[(f64, f64)])]) -> Vec<Series> {
        let one = |(label, points): &(&str, &[(f64, f64)])| Series {
            label: (*label).to_owned(),
            points: points.to_vec(),
        };
        lines.iter().map(one).collect()
    }

    fn chart() -> LineChart<'static> {
        let x_ticks = vec![(1.0, "1".to_owned()), (4.0, "4".to_owned())];
        LineChart {
            title: "t",
            x_label: "nodes",
            y_label: "requests/s",
            x_log: true,
            x_ticks,
            y_percent: false,
        }
    }

    #[test]
    fn charts_without_a_difference_are_detected() {
        for (lines, expected) in [
            (&[("a", &[(1.0, 5.0), (2.0, 6.0)][..])][..], true),
            (&[("a", &[(1.0, 5.0), (2.0, 5.0)]), ("b", &[(1.0, 6.0), (2.0, 6.0)])], true),
            (&[("a", &[(1.0, 5.0), (2.0, 5.0)]), ("b", &[(1.0, 5.01), (2.0, 5.0)])], false),
            (&[("a", &[(1.0, 0.0), (2.0, 0.0)])], false),
            (&[("a", &[(1.0, 5.0)]), ("b", &[(1.0, 9.0)])], false),
            (&[], false),
        ] {
            assert_eq!(differ(&series(lines)), expected, "{lines:?}");
        }
    }

    #[test]
    fn overlapping_lines_differ_in_dashes_markers_and_labels() {
        let same: &[(f64, f64)] = &[(1.0, 5.0), (4.0, 6.0)];
        let text = lines(&chart(), &series(&[("rr", same), ("wrr", same)])).inline();
        for part in [r#"class="s0 d0""#, r#"class="s1 d1""#, ">rr</text>", ">wrr</text>", "wrr, 4: 6</title>"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        // Each line has a marker at both points and before its label.
        assert_eq!(text.matches("<circle ").count(), 3, "{text}");
        assert_eq!(text.matches(r#"class="s1 mark""#).count(), 3, "{text}");
    }

    #[test]
    fn labels_keep_their_order_and_do_not_overlap() {
        assert_eq!(spread(&[100.0, 20.0, 100.0], 284.0), [100.0, 20.0, 116.0]);
        assert_eq!(spread(&[284.0, 284.0, 280.0], 284.0), [268.0, 284.0, 252.0]);
    }

    #[test]
    fn an_empty_chart_is_drawn() {
        assert!(lines(&chart(), &[]).inline().contains("</svg>"));
    }
}
