//! Styles that distinguish the lines of a chart: colours, dash patterns and markers.

use super::svg::Svg;

/// Number of colours in the style sheet, from `s0` on. Further lines reuse them.
pub(super) const COLOURS: usize = 8;
/// Number of dash patterns in the style sheet, from `d0` on.
const DASHES: usize = 6;
/// Number of marker shapes.
const SHAPES: usize = 7;

/// Returns the CSS class for the colour of the i-th line.
pub(super) fn colour(i: usize) -> String {
    format!("s{}", i % COLOURS)
}

/// Returns the CSS classes for the colour and the dash pattern of the i-th line.
pub(super) fn dashed(i: usize) -> String {
    format!("s{} d{}", i % COLOURS, i % DASHES)
}

/// Draws the marker of the i-th line. Markers are hollow, so that overlapping markers stay visible.
pub(super) fn marker(svg: &mut Svg, i: usize, (x, y): (f64, f64), tip: &str) {
    const R: f64 = 3.6;
    let class = format!("{} mark", colour(i));
    let closed = |offsets: &[(f64, f64)]| -> Vec<(f64, f64)> {
        let around = offsets.iter().chain(offsets.first());
        around.map(|(dx, dy)| (x + dx * R, y + dy * R)).collect()
    };
    let path = match i % SHAPES {
        0 => return svg.dot(&class, (x, y), R, tip),
        1 => closed(&[(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)]),
        2 => closed(&[(0.0, -1.4), (1.3, 0.9), (-1.3, 0.9)]),
        3 => closed(&[(0.0, -1.5), (1.5, 0.0), (0.0, 1.5), (-1.5, 0.0)]),
        4 => closed(&[(0.0, 1.4), (1.3, -0.9), (-1.3, -0.9)]),
        5 => closed(&[(-1.2, -1.2), (1.2, 1.2), (0.0, 0.0), (1.2, -1.2), (-1.2, 1.2), (0.0, 0.0)]),
        _ => closed(&[(-1.6, 0.0), (1.6, 0.0), (0.0, 0.0), (0.0, -1.6), (0.0, 1.6), (0.0, 0.0)]),
    };
    svg.polyline(&class, &path, tip);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::STYLE;

    type Vector = [f64; 3];

    /// Matrices that simulate colour vision in linear RGB, with the minimum distance of two colours: normal
    /// vision, protanopia and deuteranopia (Machado et al., 2009).
    const VISIONS: [(&str, [Vector; 3], f64); 3] = [
        ("all", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], 25.0),
        ("protanopia", [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]], 20.0),
        ("deuteranopia", [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]], 20.0),
    ];

    /// Returns the values of `--NAME:#rrggbb` in the style sheet, for the light and the dark theme.
    fn values(name: &str) -> Vec<Vector> {
        let linear = |text: &str| {
            let share = f64::from(u8::from_str_radix(text, 16).unwrap()) / 255.0;
            if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        };
        let of = |text: &str| [&text[0..2], &text[2..4], &text[4..6]].map(linear);
        STYLE.split(&format!("--{name}:#")).skip(1).map(of).collect()
    }

    fn luminance(rgb: Vector) -> f64 {
        0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]
    }

    /// Converts linear RGB to CIE 1976 L*a*b*.
    fn lab(rgb: Vector) -> Vector {
        let f = |t: f64| if t > 0.008856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
        let x = f((0.4124 * rgb[0] + 0.3576 * rgb[1] + 0.1805 * rgb[2]) / 0.9505);
        let y = f(luminance(rgb));
        let z = f((0.0193 * rgb[0] + 0.1192 * rgb[1] + 0.9505 * rgb[2]) / 1.089);
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    fn simulate(rgb: Vector, vision: &[Vector; 3]) -> Vector {
        vision.map(|row| row.iter().zip(rgb).map(|(a, b)| a * b).sum::<f64>().clamp(0.0, 1.0))
    }

    #[test]
    fn colours_differ_for_colour_blind_readers() {
        for theme in 0..2 {
            let ground = luminance(values("card")[theme]);
            let colours: Vec<Vector> = (0..COLOURS).map(|i| values(&format!("s{i}"))[theme]).collect();
            for (i, one) in colours.iter().enumerate() {
                let (low, high) = (luminance(*one).min(ground), luminance(*one).max(ground));
                assert!((high + 0.05) / (low + 0.05) >= 3.0, "theme {theme}: s{i} against the ground");
                for (j, other) in colours.iter().enumerate().skip(i + 1) {
                    for (name, vision, least) in &VISIONS {
                        let (a, b) = (lab(simulate(*one, vision)), lab(simulate(*other, vision)));
                        let apart = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
                        assert!(apart >= *least, "theme {theme}, {name}: s{i} and s{j} are {apart:.0} apart");
                    }
                }
            }
        }
    }

    #[test]
    fn each_line_has_a_style_of_its_own() {
        let styles: std::collections::BTreeSet<_> = (0..24).map(|i| (dashed(i), i % SHAPES)).collect();
        assert_eq!(styles.len(), 24);
        for i in 1..DASHES {
            assert!(STYLE.contains(&format!("polyline.d{i}{{stroke-dasharray:")), "d{i}");
        }
    }
}
