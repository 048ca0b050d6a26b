//! A small SVG writer. It escapes text, shortens numbers, and takes colours from the style sheet by class.

use std::fmt::Write as _;

/// A drawing with a title and a description for screen readers.
#[derive(Clone, Debug)]
pub struct Svg {
    width: f64,
    height: f64,
    title: String,
    description: String,
    body: String,
}

/// The part of a text that is at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// Creates an empty drawing of `width` by `height` units.
    pub(crate) fn new(width: f64, height: f64, title: &str, description: &str) -> Self {
        let (title, description) = (escape(title), escape(description));
        Self { width, height, title, description, body: String::new() }
    }

    pub(crate) fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64), tip: &str) {
        let (x, y, width, height) =
            (format_short(x), format_short(y), format_short(width.max(0.0)), format_short(height.max(0.0)));
        let tip = tooltip(tip);
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}" rx="2">{tip}</rect>"#
        );
    }

    pub(crate) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let (x1, y1, x2, y2) =
            (format_short(from.0), format_short(from.1), format_short(to.0), format_short(to.1));
        let _ = write!(self.body, r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#);
    }

    pub(crate) fn polyline(&mut self, class: &str, points: &[(f64, f64)], tip: &str) {
        let mut path = String::new();
        for (x, y) in points {
            let _ = write!(path, "{},{} ", format_short(*x), format_short(*y));
        }
        let tip = tooltip(tip);
        let _ =
            write!(self.body, r#"<polyline class="{class}" points="{}">{tip}</polyline>"#, path.trim_end());
    }

    pub(crate) fn dot(&mut self, class: &str, (x, y): (f64, f64), radius: f64, tip: &str) {
        let (x, y, radius, tip) = (format_short(x), format_short(y), format_short(radius), tooltip(tip));
        let _ = write!(self.body, r#"<circle class="{class}" cx="{x}" cy="{y}" r="{radius}">{tip}</circle>"#);
    }

    pub(crate) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y, text) = (format_short(x), format_short(y), escape(text));
        let _ = write!(
            self.body,
            r#"<text class="{class}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>"#
        );
    }

    /// Returns the SVG element for a page that contains [`super::STYLE`].
    pub fn inline(&self) -> String {
        self.element("")
    }

    /// Returns a self-contained SVG file with the style sheet.
    pub fn standalone(&self) -> String {
        let style = format!("<style>{}</style>", super::STYLE);
        let ground = r#"<rect class="ground" width="100%" height="100%"/>"#;
        self.element(&format!("{style}{ground}"))
    }

    fn element(&self, head: &str) -> String {
        let Self { width, height, title, description, body } = self;
        format!(
            concat!(
                r#"<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" "#,
                r#"viewBox="0 0 {} {}"><title>{}</title><desc>{}</desc>{}{}</svg>"#
            ),
            format_short(*width),
            format_short(*height),
            title,
            description,
            head,
            body
        )
    }
}

fn tooltip(tip: &str) -> String {
    if tip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tip)) }
}

/// Formats a number with at most two decimals, which is finer than a pixel.
fn format_short(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Escapes text for XML and HTML, including attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_escaped() {
        let mut svg = Svg::new(10.0, 10.0, "</title><script>", "\"'&");
        svg.text("t", (0.0, 0.0), Anchor::Start, "<b>\u{0}");
        let text = svg.inline();
        assert!(!text.contains("<script>") && !text.contains("<b>") && !text.contains('\u{0}'), "{text}");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            (format_short(1.0), format_short(0.126), format_short(-0.5)),
            ("1".into(), "0.13".into(), "-0.5".into())
        );
    }
}
