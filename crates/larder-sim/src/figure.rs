//! Figures: lines over two axes, as data. The reports of experiments and of live runs draw them.

use serde::Serialize;

/// A figure, to be laid beside a paper's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// As the paper calls it: "Figure 7".
    pub name: String,
    /// The figure's title.
    pub title: String,
    /// The x axis, unit included.
    pub x_label: String,
    /// The y axis, unit included.
    pub y_label: String,
    /// The end of the y axis. `None`: at the largest value.
    pub y_max: Option<f64>,
    /// Shares are drawn as percent.
    pub y_percent: bool,
    /// A logarithmic x axis.
    pub x_log: bool,
    /// The lines, in the order of the paper's legend, ceilings last.
    pub lines: Vec<Line>,
}

/// One line of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Whether it is a ceiling rather than a line of the paper.
    pub ceiling: bool,
    /// Points by rising x.
    pub points: Vec<(f64, f64)>,
}
