//! A straight line through few points: `y = base + slope * x`.
//!
//! Least squares of the relative errors (weights `1 / y^2`), so that the smallest replies count as much as the largest.

/// The line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) base: f64,
    pub(crate) slope: f64,
}

impl Line {
    /// The line through points with `y` above 0, at least two different `x`; `base` and `slope` are never negative.
    pub(crate) fn through(points: &[(f64, f64)]) -> Self {
        let weighted = |value: &dyn Fn(f64, f64) -> f64| -> f64 {
            points.iter().map(|(x, y)| value(*x, *y) / (y * y)).sum()
        };
        let (w, wx, wy) = (weighted(&|_, _| 1.0), weighted(&|x, _| x), weighted(&|_, y| y));
        let (wxx, wxy) = (weighted(&|x, _| x * x), weighted(&|x, y| x * y));
        let slope = ((w * wxy - wx * wy) / (w * wxx - wx * wx)).max(0.0);
        Self { base: ((wy - slope * wx) / w).max(0.0), slope }
    }

    pub(crate) fn at(&self, x: f64) -> f64 {
        self.base + self.slope * x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_of_a_line_give_the_line() {
        let line = Line::through(&[(1.0, 12.0), (4.0, 18.0), (100.0, 210.0)]);
        assert!((line.base - 10.0).abs() < 1e-9 && (line.slope - 2.0).abs() < 1e-9, "{line:?}");
        assert!((line.at(4.0) - 18.0).abs() < 1e-9);
    }

    #[test]
    fn errors_count_by_their_share() {
        // A tenth too much at either end: a plain fit would follow the large value and miss the small one by far.
        let line = Line::through(&[(0.0, 11.0), (10.0, 30.0), (1_000.0, 2_210.0)]);
        let worst =
            [(0.0, 11.0), (10.0, 30.0), (1_000.0, 2_210.0)].map(|(x, y)| (line.at(x) / y - 1.0).abs());
        assert!(worst.into_iter().all(|error| error < 0.12), "{line:?}");
    }

    #[test]
    fn noise_makes_nothing_negative() {
        let line = Line::through(&[(1.0, 10.0), (100.0, 9.0)]);
        assert!(line.slope == 0.0 && line.base > 9.0);
    }
}
