//! Comparison of this machine's clock with the clocks of the hosts that it connects to.

use larder_kernel::probe::{Finding, FindingState};

/// Name of the finding.
pub(super) const FINDING_NAME: &str = "clock";

/// Tolerated difference of a host's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tolerance {
    /// A host of the cluster, whose clock should be right. A `Date` has whole seconds, and a reply takes
    /// time.
    Seconds,
    /// An origin whose certificate is verified.
    Certificates,
    /// An origin whose requests are signed with the time. S3 refuses differences above 15 minutes.
    Signatures,
}

impl Tolerance {
    /// Seconds above which a difference is a warning.
    const fn warning_s(self) -> f64 {
        match self {
            Self::Seconds => 3.0,
            Self::Certificates | Self::Signatures => 60.0,
        }
    }

    /// Seconds above which a difference is an error.
    const fn error_s(self) -> f64 {
        match self {
            Self::Seconds => f64::INFINITY,
            Self::Certificates | Self::Signatures => 300.0,
        }
    }

    fn state(self, ahead_s: f64) -> FindingState {
        match ahead_s.abs() {
            difference if difference > self.error_s() => FindingState::Missing,
            difference if difference > self.warning_s() => FindingState::Degraded,
            _ => FindingState::Works,
        }
    }

    const fn consequence(self) -> &'static str {
        match self {
            Self::Signatures => "; S3 refuses signed requests above 15 minutes",
            Self::Certificates => "; valid certificates may look expired or not yet valid",
            Self::Seconds => "",
        }
    }
}

/// The comparison with one host.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockComparison<'a> {
    pub(super) host: &'a str,
    pub(super) tolerance: Tolerance,
    /// Seconds by which the host's clock is ahead.
    pub(super) ahead_s: f64,
}

/// Returns the finding on this machine's clock.
pub(super) fn finding(comparisons: &[ClockComparison<'_>]) -> Finding {
    let weight = |one: &ClockComparison<'_>| match one.tolerance.state(one.ahead_s) {
        FindingState::Missing => 2,
        FindingState::Degraded => 1,
        _ => 0,
    };
    let order = |a: &&ClockComparison<'_>, b: &&ClockComparison<'_>| {
        weight(a).cmp(&weight(b)).then(a.ahead_s.abs().total_cmp(&b.ahead_s.abs()))
    };
    let (state, found, remedy) = match comparisons.iter().max_by(order) {
        None => {
            let found = "no host sent a Date header, so there is no clock to compare".to_owned();
            let remedy = "run `timedatectl`: it shows whether this machine's clock is synchronized";
            (FindingState::Unknown, found, Some(remedy))
        }
        Some(worst) if weight(worst) > 0 => {
            let way = if worst.ahead_s > 0.0 { "behind" } else { "ahead of" };
            let (difference, consequence) = (worst.ahead_s.abs(), worst.tolerance.consequence());
            let found = format!(
                "this machine's clock is {difference:.0} s {way} the clock of {}{consequence}",
                worst.host
            );
            let remedy = "run chrony or systemd-timesyncd on both machines";
            (worst.tolerance.state(worst.ahead_s), found, Some(remedy))
        }
        Some(worst) => {
            let hosts = match comparisons.len() {
                1 => "1 host".to_owned(),
                count => format!("{count} hosts"),
            };
            (
                FindingState::Works,
                format!("within {:.0} s of {hosts}", worst.ahead_s.abs().ceil().max(3.0)),
                None,
            )
        }
    };
    Finding {
        what: FINDING_NAME.to_owned(),
        state,
        found,
        why: "certificates, signatures, the age of content and logs depend on the clock",
        remedy: remedy.map(str::to_owned),
        needed_for: &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_severity_of_a_difference_depends_on_the_tolerance() {
        let of = |tolerance, ahead_s| {
            let found = finding(&[ClockComparison { host: "origin", tolerance, ahead_s }]);
            assert_eq!(found.remedy.is_some(), found.state != FindingState::Works, "{found:?}");
            (found.state, found.found)
        };
        for (tolerance, ahead_s, state) in [
            (Tolerance::Seconds, 2.9, FindingState::Works),
            (Tolerance::Seconds, -600.0, FindingState::Degraded),
            (Tolerance::Certificates, 61.0, FindingState::Degraded),
            (Tolerance::Certificates, -301.0, FindingState::Missing),
            (Tolerance::Signatures, 59.0, FindingState::Works),
            (Tolerance::Signatures, -61.0, FindingState::Degraded),
            (Tolerance::Signatures, 301.0, FindingState::Missing),
        ] {
            assert_eq!(of(tolerance, ahead_s).0, state, "{tolerance:?} {ahead_s}");
        }
        let said = of(Tolerance::Signatures, 301.0).1;
        assert_eq!(
            said,
            "this machine's clock is 301 s behind the clock of origin; S3 refuses signed requests above 15 minutes"
        );
        assert!(of(Tolerance::Seconds, -600.0).1.ends_with("600 s ahead of the clock of origin"));
        assert_eq!(of(Tolerance::Seconds, 0.4).1, "within 3 s of 1 host");
        assert_eq!(of(Tolerance::Signatures, 12.3).1, "within 13 s of 1 host");
    }

    #[test]
    fn the_worst_host_is_reported_and_an_error_precedes_a_larger_warning() {
        let node = ClockComparison { host: "node a", tolerance: Tolerance::Seconds, ahead_s: 900.0 };
        let origin = ClockComparison { host: "origin", tolerance: Tolerance::Signatures, ahead_s: 400.0 };
        let found = finding(&[node, origin]);
        assert!(
            found.state == FindingState::Missing && found.found.contains("the clock of origin"),
            "{found:?}"
        );
        assert_eq!(finding(&[]).state, FindingState::Unknown);
    }
}
