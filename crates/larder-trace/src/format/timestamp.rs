//! Timestamps of access logs, to nanoseconds since 1970-01-01 UTC.

const MONTHS: [[u8; 3]; 12] = [
    *b"Jan", *b"Feb", *b"Mar", *b"Apr", *b"May", *b"Jun", *b"Jul", *b"Aug", *b"Sep", *b"Oct", *b"Nov",
    *b"Dec",
];

/// `29/Aug/1995:23:53:25 -0400`, the 26 bytes between the brackets of a Common Log Format line.
///
/// Lines stand nearly in time order, so most share all but the seconds with the line before: that part is read once.
#[derive(Default)]
pub(crate) struct CommonClock {
    /// The last text read, its seconds blanked, and the time it stands for with seconds 00; no text before the first.
    last: Option<([u8; 26], i64)>,
}

impl CommonClock {
    /// Reads a time.
    pub(crate) fn read(&mut self, text: &[u8; 26]) -> Option<i64> {
        let second = two(text, 18)?;
        if second > 60 {
            return None;
        }
        let mut minute = *text;
        minute[18] = b'0';
        minute[19] = b'0';
        let seconds = match self.last {
            Some((last, seconds)) if last == minute => seconds,
            _ => {
                let seconds = common(&minute)?;
                self.last = Some((minute, seconds));
                seconds
            }
        };
        Some((seconds + second).saturating_mul(1_000_000_000))
    }
}

/// The whole text, in seconds.
fn common(text: &[u8; 26]) -> Option<i64> {
    let [_, _, s1, m1, m2, m3, s2, _, _, _, _, c1, _, _, c2, _, _, c3, _, _, sp, sign, ..] = *text;
    if [s1, s2, c1, c2, c3, sp] != *b"//::: " {
        return None;
    }
    let days = days_from_civil(four(text, 7)?, month([m1, m2, m3])?, two(text, 0)?)?;
    let clock = clock(two(text, 12)?, two(text, 15)?, two(text, 18)?)?;
    let zone = two(text, 22)? * 3_600 + two(text, 24)? * 60;
    let zone = match sign {
        b'+' => zone,
        b'-' => -zone,
        _ => return None,
    };
    Some(days * 86_400 + clock - zone)
}

/// `29:23:53:25`, day of the month and time of day, as the EPA-HTTP trace has it. The result is relative to the start
/// of a month the file does not name.
pub(crate) fn epa(text: &[u8; 11]) -> Option<i64> {
    let [_, _, c1, _, _, c2, _, _, c3, _, _] = *text;
    if [c1, c2, c3] != *b":::" {
        return None;
    }
    let day = two(text, 0)?;
    if !(1..=31).contains(&day) {
        return None;
    }
    Some(nanos(day - 1, clock(two(text, 3)?, two(text, 6)?, two(text, 9)?)?))
}

/// `Tue Aug 22 00:00:00 1995`, C's `ctime`; the day may be padded with a space. No zone: taken as UTC.
pub(crate) fn ctime(text: &[u8; 24]) -> Option<i64> {
    let [_, _, _, s1, m1, m2, m3, s2, d1, _, s3, _, _, c1, _, _, c2, _, _, s4, ..] = *text;
    if [s1, s2, s3, c1, c2, s4] != *b"   :: " {
        return None;
    }
    let day = if d1 == b' ' { digit(text[9])? } else { two(text, 8)? };
    let days = days_from_civil(four(text, 20)?, month([m1, m2, m3])?, day)?;
    Some(nanos(days, clock(two(text, 11)?, two(text, 14)?, two(text, 17)?)?))
}

/// The text that [`CommonClock`] reads, in UTC; years from 0 to 9999 (others wrap within their four digits).
pub(crate) fn write_common(seconds: i64) -> [u8; 26] {
    let (days, clock) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil_from_days(days);
    let mut text = *b"00/Jan/0000:00:00:00 +0000";
    let mut put = |at: usize, value: i64| {
        text[at] = b'0' + (value / 10 % 10) as u8;
        text[at + 1] = b'0' + (value % 10) as u8;
    };
    put(0, day);
    put(7, year / 100);
    put(9, year % 100);
    put(12, clock / 3_600);
    put(15, clock / 60 % 60);
    put(18, clock % 60);
    text[3..6].copy_from_slice(&MONTHS[(month - 1) as usize]);
    text
}

/// Year, month and day of a day counted from 1970-01-01: the inverse of [`days_from_civil`].
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    // Counted from 0000-03-01, a cycle of 400 years has 146,097 days. The leap days are taken out before the year is
    // divided off: one every 1,461 days, not every 36,524, but every 146,096.
    let days = days + 719_468;
    let (cycle, of_cycle) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_cycle = (of_cycle - of_cycle / 1_460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (cycle * 400 + year_of_cycle + i64::from(month <= 2), month, day)
}

fn nanos(days: i64, seconds: i64) -> i64 {
    // Four-digit years keep the product within about 2.5e11 seconds, so only the nanoseconds can overflow.
    (days * 86_400 + seconds).saturating_mul(1_000_000_000)
}

fn clock(hour: i64, minute: i64, second: i64) -> Option<i64> {
    // A leap second is written as 60.
    (hour < 24 && minute < 60 && second <= 60).then_some(hour * 3_600 + minute * 60 + second)
}

fn month(name: [u8; 3]) -> Option<i64> {
    let at = MONTHS.iter().position(|month| *month == name)?;
    Some(at as i64 + 1)
}

fn digit(byte: u8) -> Option<i64> {
    let value = byte.wrapping_sub(b'0');
    (value < 10).then_some(i64::from(value))
}

fn two(text: &[u8], at: usize) -> Option<i64> {
    Some(digit(text[at])? * 10 + digit(text[at + 1])?)
}

fn four(text: &[u8], at: usize) -> Option<i64> {
    Some(two(text, at)? * 100 + two(text, at + 2)?)
}

/// Days since 1970-01-01 in the proleptic Gregorian calendar. Counting from March makes the leap day the year's last,
/// so that the days before a month follow from the month alone.
fn days_from_civil(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if !(1..=length).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let from_march = (month + 9) % 12;
    let before_month = (153 * from_march + 2) / 5;
    let before_year = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // 719,468 days lie between 0000-03-01 and 1970-01-01.
    Some(before_year + before_month + day - 1 - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn common(text: &[u8; 26]) -> Option<i64> {
        CommonClock::default().read(text)
    }

    #[test]
    fn common_times_are_utc() {
        // `date -u -d '...' +%s` gives these.
        for (text, seconds) in [
            (b"01/Jan/1970:00:00:00 +0000", 0),
            (b"29/Aug/1995:23:53:25 -0400", 809_754_805),
            (b"29/Feb/2016:12:00:00 +0130", 1_456_741_800),
            (b"31/Dec/1969:23:59:59 +0000", -1),
        ] {
            assert_eq!(common(text), Some(seconds * SECOND), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn impossible_times_are_refused() {
        for text in [
            b"30/Feb/2016:12:00:00 +0000",
            b"29/Feb/1900:12:00:00 +0000",
            b"00/Jan/2016:12:00:00 +0000",
            b"01/Jam/2016:12:00:00 +0000",
            b"01/Jan/2016:24:00:00 +0000",
            b"01/Jan/2016:12:00:00 *0000",
            b"01-Jan-2016:12:00:00 +0000",
            b"01/Jan/20x6:12:00:00 +0000",
        ] {
            assert_eq!(common(text), None, "{}", text.escape_ascii());
        }
        assert_eq!(epa(b"32:00:00:00"), None);
        assert_eq!(epa(b"00:00:00:00"), None);
    }

    #[test]
    fn other_clocks() {
        assert_eq!(epa(b"29:23:53:25"), Some((28 * 86_400 + 86_005) * SECOND));
        assert_eq!(ctime(b"Tue Aug 22 00:00:01 1995"), Some(809_049_601 * SECOND));
        assert_eq!(ctime(b"Tue Aug  1 00:00:01 1995"), Some(807_235_201 * SECOND));
    }

    #[test]
    fn a_shared_minute_changes_nothing() {
        let mut clock = CommonClock::default();
        for text in [
            b"29/Aug/1995:23:53:25 -0400",
            b"29/Aug/1995:23:53:26 -0400",
            b"29/Aug/1995:23:53:61 -0400",
            b"29/Aug/1995:23:53:2x -0400",
            b"29/Aug/1995:23:54:00 -0400",
            b"29/Aug/1995:23:54:01 -0500",
            b"30/Aug/1995:23:54:01 -0500",
        ] {
            assert_eq!(clock.read(text), common(text), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn what_is_written_is_read() {
        // A step of 11 hours and a bit, from 1902 to 2130, passes each kind of leap year and month end.
        for seconds in (-2_145_000_000..5_050_000_000_i64).step_by(40_009) {
            let text = write_common(seconds);
            assert_eq!(common(&text), Some(seconds * SECOND), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn years_out_of_range_saturate() {
        assert_eq!(common(b"01/Jan/9999:00:00:00 +0000"), Some(i64::MAX));
    }
}
