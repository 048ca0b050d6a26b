//! Dates for log lines, in UTC. The text of the current second is kept per thread.

use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// A second in both formats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Second {
    at_s: u64,
    /// `10/Oct/2000:13:55:36 +0000`.
    pub(super) clf: String,
    /// `2000-10-10T13:55:36`.
    pub(super) iso: String,
}

impl Second {
    fn new(at_s: u64) -> Self {
        let (year, month, day) = civil(at_s / 86_400);
        let (hour, minute, second) = (at_s / 3600 % 24, at_s / 60 % 60, at_s % 60);
        let name = MONTHS[month as usize - 1];
        Self {
            at_s,
            clf: format!("{day:02}/{name}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000"),
            iso: format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"),
        }
    }
}

/// Calls `use_it` with the current second and its milliseconds.
pub(super) fn with_now<T>(use_it: impl FnOnce(&Second, u32) -> T) -> T {
    thread_local!(static LAST: RefCell<Second> = RefCell::new(Second::new(0)));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    LAST.with_borrow_mut(|last| {
        if last.at_s != now.as_secs() {
            *last = Second::new(now.as_secs());
        }
        use_it(last, now.subsec_millis())
    })
}

/// Converts days since 1970-01-01 to year, month (1 to 12) and day (1 to 31) of the Gregorian calendar. It counts in
/// 400-year cycles of years that begin in March, so that the leap day comes last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (cycle, day_of_cycle) = (days / 146_097, days % 146_097);
    let year_of_cycle =
        (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (cycle * 400 + year_of_cycle + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_seconds() {
        // From `date -u -d @SECONDS`.
        for (at_s, clf) in [
            (0, "01/Jan/1970:00:00:00 +0000"),
            (971_186_136, "10/Oct/2000:13:55:36 +0000"),
            (951_782_400, "29/Feb/2000:00:00:00 +0000"),
            (4_107_542_399, "28/Feb/2100:23:59:59 +0000"),
            (4_107_542_400, "01/Mar/2100:00:00:00 +0000"),
        ] {
            assert_eq!(Second::new(at_s).clf, clf);
        }
        assert_eq!(Second::new(971_186_136).iso, "2000-10-10T13:55:36");
    }

    #[test]
    fn days_are_consecutive() {
        let mut last = civil(0);
        for day in 1..200_000 {
            let next = civil(day);
            let follows = next == (last.0, last.1, last.2 + 1)
                || next == (last.0, last.1 + 1, 1) && last.2 >= 28
                || next == (last.0 + 1, 1, 1) && (last.1, last.2) == (12, 31);
            assert!(follows, "{last:?} then {next:?}");
            last = next;
        }
    }
}
