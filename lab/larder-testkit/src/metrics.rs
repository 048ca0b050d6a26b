//! Reading of a page of metrics.

/// Returns the sum of a metric's values over its lines that contain all of `labels`. `None` if there is no such line.
pub fn metric(page: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let is_counted = |line: &&str| {
        line.split(['{', ' ']).next() == Some(name) && labels.iter().all(|label| line.contains(label))
    };
    let values =
        page.lines().filter(is_counted).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.reduce(|sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_metric_with_the_labels_are_summed() {
        let page = "# TYPE a counter\na{x=\"1\",y=\"2\"} 3\na{x=\"1\",y=\"3\"} 4.5\nab 7\nb 0\n";
        assert_eq!(metric(page, "a", &["x=\"1\""]), Some(7.5));
        assert_eq!(metric(page, "a", &["x=\"1\"", "y=\"2\""]), Some(3.0));
        assert_eq!((metric(page, "b", &[]), metric(page, "ab", &[])), (Some(0.0), Some(7.0)));
        assert_eq!((metric(page, "a", &["z"]), metric(page, "c", &[])), (None, None));
    }
}
