//! Axes of charts: positions of values and ticks.

/// Maps values to positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Axis {
    /// Creates a linear axis from 0 to at least `high` that ends at a round tick.
    pub(crate) fn from_zero(high: f64, (from, to): (f64, f64)) -> Self {
        let step = round_step(high.max(f64::MIN_POSITIVE) / 5.0);
        Self { low: 0.0, high: (high / step).ceil().max(1.0) * step, from, to, log: false }
    }

    /// Creates a linear axis over exactly `low..high`.
    pub(crate) fn exact((low, high): (f64, f64), (from, to): (f64, f64)) -> Self {
        Self { low, high, from, to, log: false }
    }

    /// Creates a logarithmic axis over `low..high`. Both must be above 0.
    pub(crate) fn log((low, high): (f64, f64), (from, to): (f64, f64)) -> Self {
        Self { low, high: high.max(low * 1.001), from, to, log: true }
    }

    /// Returns the position of a value. Values outside the axis are placed at its end.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Returns round values along the axis: about five on a linear axis, and the 1-2-5 series on a
    /// logarithmic axis.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        if self.log {
            return self.log_ticks();
        }
        let step = round_step((self.high - self.low) / 5.0);
        let count = ((self.high - self.low) / step + 1e-9).floor() as u32;
        (0..=count).map(|i| self.low + f64::from(i) * step).collect()
    }

    fn log_ticks(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let mantissas: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let all = (first..=last).flat_map(|e| mantissas.iter().map(move |m| m * 10f64.powi(e)));
        all.filter(|tick| (self.low..=self.high).contains(tick)).collect()
    }
}

/// Returns the smallest number of the 1-2-5 series that is not below a positive value.
fn round_step(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let mantissa = value / power;
    let rounded = [1.0, 2.0, 5.0].into_iter().find(|m| mantissa <= m * 1.000_001).unwrap_or(10.0);
    rounded * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within() {
        let axis = Axis::from_zero(742.0, (0.0, 100.0));
        assert_eq!(axis.ticks(), [0.0, 200.0, 400.0, 600.0, 800.0]);
        assert!((axis.at(400.0) - 50.0).abs() < 1e-9);
        assert!((axis.at(1e9) - 100.0).abs() < 1e-9);
        let log = Axis::log((1.0, 100.0), (0.0, 100.0));
        assert_eq!(log.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert!((log.at(10.0) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn an_empty_axis_is_valid() {
        let axis = Axis::from_zero(0.0, (0.0, 100.0));
        assert!(axis.at(0.0).is_finite() && axis.ticks().len() >= 2);
    }
}
