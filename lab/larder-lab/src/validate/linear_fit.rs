//! Linear fit of a few points: `y = base + slope * x`, by least squares of the relative errors (weights `1 / y^2`), so that small
//! replies count as much as large ones.

/// A fitted line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LinearFit {
    pub(crate) base: f64,
    pub(crate) slope: f64,
}

impl LinearFit {
    /// Fits points with positive `y` and at least two different `x`. `base` and `slope` are never negative.
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
    fn points_on_a_line_give_the_line() {
        let line = LinearFit::through(&[(1.0, 12.0), (4.0, 18.0), (100.0, 210.0)]);
        assert!((line.base - 10.0).abs() < 1e-9 && (line.slope - 2.0).abs() < 1e-9, "{line:?}");
        assert!((line.at(4.0) - 18.0).abs() < 1e-9);
    }

    #[test]
    fn relative_errors_are_minimised() {
        // Both ends are a tenth too high. An unweighted fit would follow the large value and miss the small one.
        let line = LinearFit::through(&[(0.0, 11.0), (10.0, 30.0), (1_000.0, 2_210.0)]);
        let worst =
            [(0.0, 11.0), (10.0, 30.0), (1_000.0, 2_210.0)].map(|(x, y)| (line.at(x) / y - 1.0).abs());
        assert!(worst.into_iter().all(|error| error < 0.12), "{line:?}");
    }

    #[test]
    fn noise_gives_no_negative_values() {
        let line = LinearFit::through(&[(1.0, 10.0), (100.0, 9.0)]);
        assert!(line.slope == 0.0 && line.base > 9.0);
    }
}
