//! The papers' figures: lines with markers over two axes, and a legend above that wraps.

use larder_sim::figure::{Figure, Line};

use super::axis::Axis;
use super::marks::{colour, marker};
use super::number;
use super::svg::{Anchor, Svg};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 18.0;
const FOOT: f64 = 46.0;

/// Draws a figure with the axes of the paper, so that both can be compared.
pub fn plot(figure: &Figure) -> Svg {
    let places = legend_places(&figure.lines);
    let rows = places.last().map_or(1.0, |place| place.1 + 1.0);
    let (top, bottom) = (18.0 + 18.0 * rows, HEIGHT - FOOT + 18.0 * (rows - 1.0));
    let names: Vec<&str> = figure.lines.iter().map(|line| line.name.as_str()).collect();
    let description = format!("{} against {} for {}", figure.y_label, figure.x_label, names.join(", "));
    let mut svg = Svg::new(WIDTH, bottom + FOOT, &figure.title, &description);
    let (x, y) = axes(figure, (top, bottom));
    frame(&mut svg, figure, (&x, &y), (top, bottom));
    for (at, (line, place)) in figure.lines.iter().zip(&places).enumerate() {
        let class = class(line, at);
        let from = (LEFT + place.0, 16.0 + 18.0 * place.1);
        svg.polyline(&class, &[from, (from.0 + 18.0, from.1)], "");
        marker(&mut svg, at, (from.0 + 9.0, from.1), "");
        svg.text("soft", (from.0 + 24.0, from.1 + 4.0), Anchor::Start, &line.name);
        let points: Vec<(f64, f64)> = line.points.iter().map(|(a, b)| (x.at(*a), y.at(*b))).collect();
        svg.polyline(&class, &points, &line.name);
        for ((a, b), point) in line.points.iter().zip(&points).filter(|_| line.points.len() <= 40) {
            let value = if figure.y_percent { format!("{:.2} %", b * 100.0) } else { number(*b) };
            marker(&mut svg, at, *point, &format!("{}, {}: {value}", line.name, number(*a)));
        }
    }
    svg
}

fn class(line: &Line, at: usize) -> String {
    format!("{}{}", colour(at), if line.ceiling { " ceiling" } else { "" })
}

/// Returns the horizontal offset and the row of each name in the legend.
fn legend_places(lines: &[Line]) -> Vec<(f64, f64)> {
    let (mut x, mut row) = (0.0, 0.0);
    let mut places = Vec::new();
    for line in lines {
        let width = 44.0 + 7.0 * line.name.chars().count() as f64;
        if x > 0.0 && x + width > WIDTH - LEFT - RIGHT {
            (x, row) = (0.0, row + 1.0);
        }
        places.push((x, row));
        x += width;
    }
    places
}

fn axes(figure: &Figure, (top, bottom): (f64, f64)) -> (Axis, Axis) {
    let points = || figure.lines.iter().flat_map(|line| line.points.iter().copied());
    let x_high = points().map(|point| point.0).fold(0.0, f64::max);
    let x_low = points().map(|point| point.0).filter(|x| *x > 0.0).fold(f64::INFINITY, f64::min);
    let across = (LEFT, WIDTH - RIGHT);
    let x = if figure.x_log && x_low.is_finite() {
        Axis::log((x_low, x_high), across)
    } else {
        Axis::from_zero(x_high, across)
    };
    let y = match figure.y_max {
        Some(max) => Axis::exact((0.0, max), (bottom, top)),
        None => Axis::from_zero(points().map(|point| point.1).fold(0.0, f64::max), (bottom, top)),
    };
    (x, y)
}

fn frame(svg: &mut Svg, figure: &Figure, (x, y): (&Axis, &Axis), (_top, bottom): (f64, f64)) {
    for tick in y.ticks() {
        svg.line("grid", (LEFT, y.at(tick)), (WIDTH - RIGHT, y.at(tick)));
        let text = if figure.y_percent { percent(tick) } else { number(tick) };
        svg.text("soft", (LEFT - 8.0, y.at(tick) + 4.0), Anchor::End, &text);
    }
    for tick in x.ticks() {
        svg.text("soft", (x.at(tick), bottom + 18.0), Anchor::Middle, &number(tick));
    }
    svg.line("axis", (LEFT, bottom), (WIDTH - RIGHT, bottom));
    svg.text("soft", (LEFT - 56.0, bottom + 38.0), Anchor::Start, &figure.y_label);
    svg.text("soft", (WIDTH - RIGHT, bottom + 38.0), Anchor::End, &figure.x_label);
}

fn percent(share: f64) -> String {
    format!("{} %", number(share * 100.0))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn figure() -> Figure {
        let line = |name: &str, ceiling, points: &[(f64, f64)]| Line {
            name: name.to_owned(),
            ceiling,
            points: points.to_vec(),
        };
        Figure {
            name: "Figure 7".to_owned(),
            title: "Throughput".to_owned(),
            x_label: "nodes".to_owned(),
            y_label: "requests/s".to_owned(),
            y_max: Some(100.0),
            y_percent: false,
            x_log: false,
            bound_shares: Vec::new(),
            lines: vec![
                line("LARD/R", false, &[(1.0, 10.0), (8.0, 80.0)]),
                line("unbounded", true, &[(8.0, 100.0)]),
            ],
        }
    }

    #[test]
    fn points_are_placed_by_the_axes() {
        let text = plot(&figure()).inline();
        // x runs from 66 (0) to 622 (8), and y from 314 (0) to 36 (100).
        assert!(text.contains(r#"<polyline class="s0" points="135.5,286.2 622,91.6">"#), "{text}");
        assert!(text.contains(r#"<polyline class="s1 ceiling" points="622,36">"#), "{text}");
        // The second line has a square marker.
        assert!(text.contains(r#"<polyline class="s1 mark" points="618.4,32.4 "#), "{text}");
    }

    #[test]
    fn a_long_legend_wraps() {
        let line = |name: &str| Line { name: name.to_owned(), ceiling: false, points: Vec::new() };
        let lines: Vec<Line> = ["a"; 20].into_iter().map(line).collect();
        let places = legend_places(&lines);
        assert!(places.iter().all(|place| place.0 < WIDTH - LEFT) && places[19].1 > 0.0);
    }

    #[test]
    fn a_figure_without_points_is_still_drawn() {
        let figure = Figure { lines: Vec::new(), y_max: None, ..figure() };
        assert!(plot(&figure).inline().contains("</svg>"));
    }
}
