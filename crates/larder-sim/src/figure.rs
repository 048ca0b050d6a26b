//! Figures as data: lines over two axes. The reports of experiments and of live runs draw them.

use serde::Serialize;

/// A figure, for comparison with a paper's figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The figure's name in the paper, such as "Figure 7".
    pub name: String,
    /// The figure's title.
    pub title: String,
    /// The label of the x axis, with its unit.
    pub x_label: String,
    /// The label of the y axis, with its unit.
    pub y_label: String,
    /// The upper end of the y axis; `None` for the largest value.
    pub y_max: Option<f64>,
    /// Whether the y values are shares that are drawn as percent.
    pub y_percent: bool,
    /// Whether the x axis is logarithmic.
    pub x_log: bool,
    /// The lines, in the order of the paper's legend. Upper bounds are last.
    pub lines: Vec<Line>,
    /// The share of its own upper bound that each line reaches; empty for other values than throughput.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bound_shares: Vec<Line>,
}

/// One line of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// The name in the legend.
    pub name: String,
    /// Whether the line is an upper bound or a model, and not a line of the paper.
    pub ceiling: bool,
    /// The points, in ascending order of x.
    pub points: Vec<(f64, f64)>,
}
