//! Conversion of timestamps of access logs to nanoseconds since 1970-01-01 UTC.

use super::words::parse_decimal;

const MONTHS: [[u8; 3]; 12] = [
    *b"Jan", *b"Feb", *b"Mar", *b"Apr", *b"May", *b"Jun", *b"Jul", *b"Aug", *b"Sep", *b"Oct", *b"Nov",
    *b"Dec",
];

/// A parser for `29/Aug/1995:23:53:25 -0400`, the 26 bytes between the brackets of a Common Log Format line.
///
/// Lines are nearly in time order, so that most lines differ from the previous one only in the seconds. The
/// other part is parsed once.
#[derive(Default)]
pub(crate) struct CommonClock {
    /// The last text with its seconds set to 00, and the time of this text in seconds.
    last: Option<([u8; 26], i64)>,
}

impl CommonClock {
    /// Parses a time.
    pub(crate) fn read(&mut self, text: &[u8; 26]) -> Option<i64> {
        let second = parse_two_digits(text, 18)?;
        if second > 60 {
            return None;
        }
        let mut minute = *text;
        minute[18] = b'0';
        minute[19] = b'0';
        let seconds = match self.last {
            Some((last, seconds)) if last == minute => seconds,
            _ => {
                let seconds = parse_common(&minute)?;
                self.last = Some((minute, seconds));
                seconds
            }
        };
        Some((seconds + second).saturating_mul(1_000_000_000))
    }
}

/// Parses the whole text. Returns seconds since 1970.
fn parse_common(text: &[u8; 26]) -> Option<i64> {
    let [_, _, s1, m1, m2, m3, s2, _, _, _, _, c1, _, _, c2, _, _, c3, _, _, sp, sign, ..] = *text;
    if [s1, s2, c1, c2, c3, sp] != *b"//::: " {
        return None;
    }
    let days =
        days_from_civil(parse_four_digits(text, 7)?, parse_month([m1, m2, m3])?, parse_two_digits(text, 0)?)?;
    let clock = seconds_of_day(
        parse_two_digits(text, 12)?,
        parse_two_digits(text, 15)?,
        parse_two_digits(text, 18)?,
    )?;
    let zone = parse_two_digits(text, 22)? * 3_600 + parse_two_digits(text, 24)? * 60;
    let zone = match sign {
        b'+' => zone,
        b'-' => -zone,
        _ => return None,
    };
    Some(days * 86_400 + clock - zone)
}

/// Parses `29:23:53:25`, the day of the month and the time of day in the EPA-HTTP trace. The result is
/// relative to the start of the month, which the file does not name.
pub(crate) fn parse_epa(text: &[u8; 11]) -> Option<i64> {
    let [_, _, c1, _, _, c2, _, _, c3, _, _] = *text;
    if [c1, c2, c3] != *b":::" {
        return None;
    }
    let day = parse_two_digits(text, 0)?;
    if !(1..=31).contains(&day) {
        return None;
    }
    Some(unix_ns(
        day - 1,
        seconds_of_day(parse_two_digits(text, 3)?, parse_two_digits(text, 6)?, parse_two_digits(text, 9)?)?,
    ))
}

/// Parses `Tue Aug 22 00:00:00 1995`, the format of `ctime` in C. The day may be padded with a space. UTC is
/// assumed.
pub(crate) fn parse_ctime(text: &[u8; 24]) -> Option<i64> {
    let [_, _, _, s1, m1, m2, m3, s2, d1, _, s3, _, _, c1, _, _, c2, _, _, s4, ..] = *text;
    if [s1, s2, s3, c1, c2, s4] != *b"   :: " {
        return None;
    }
    let day = if d1 == b' ' { parse_digit(text[9])? } else { parse_two_digits(text, 8)? };
    let days = days_from_civil(parse_four_digits(text, 20)?, parse_month([m1, m2, m3])?, day)?;
    Some(unix_ns(
        days,
        seconds_of_day(
            parse_two_digits(text, 11)?,
            parse_two_digits(text, 14)?,
            parse_two_digits(text, 17)?,
        )?,
    ))
}

/// Parses a time in any notation that servers write into JSON: that of [`CommonClock`], that of [`parse_rfc3339`],
/// or that of [`parse_epoch`].
pub(crate) fn parse_any(text: &[u8], clock: &mut CommonClock) -> Option<i64> {
    match text.first_chunk::<26>() {
        Some(common) if text.len() == 26 && text[2] == b'/' => clock.read(common),
        _ if text.get(4) == Some(&b'-') => parse_rfc3339(text),
        _ => parse_epoch(text),
    }
}

/// Parses `1995-08-29T23:53:25.123-04:00` (RFC 3339).
///
/// A space may replace the `T`, and a comma the point. The colon of the zone may be missing. If there is no
/// zone, UTC is assumed.
pub(crate) fn parse_rfc3339(text: &[u8]) -> Option<i64> {
    let (date, [b'T' | b't' | b' ', clock @ ..]) = text.split_first_chunk::<10>()? else { return None };
    parse_date_and_clock(date, clock)
}

/// Parses the two parts of [`parse_rfc3339`], for a format with a field for each.
pub(crate) fn parse_date_and_clock(date: &[u8; 10], text: &[u8]) -> Option<i64> {
    let (seconds, rest) = text.split_first_chunk::<8>()?;
    if [date[4], date[7], seconds[2], seconds[5]] != *b"--::" {
        return None;
    }
    let month = parse_two_digits(date, 5)?;
    if !(1..=12).contains(&month) {
        return None;
    }
    let days = days_from_civil(parse_four_digits(date, 0)?, month, parse_two_digits(date, 8)?)?;
    let clock = seconds_of_day(
        parse_two_digits(seconds, 0)?,
        parse_two_digits(seconds, 3)?,
        parse_two_digits(seconds, 6)?,
    )?;
    let (fraction, zone) = match rest {
        [b'.' | b',', rest @ ..] => {
            rest.split_at(rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len()))
        }
        _ => rest.split_at(0),
    };
    Some(unix_ns(days, clock - parse_offset(zone)?).saturating_add(fraction_ns(fraction)))
}

/// Returns the offset of a zone from UTC in seconds. The zone is empty, `Z`, `+hh:mm` or `-hhmm`.
fn parse_offset(zone: &[u8]) -> Option<i64> {
    let (sign, hour, minute) = match *zone {
        [] | [b'Z' | b'z'] => return Some(0),
        [sign, h1, h2, b':', m1, m2] | [sign, h1, h2, m1, m2] => (sign, [h1, h2], [m1, m2]),
        _ => return None,
    };
    let seconds = parse_two_digits(&hour, 0)? * 3_600 + parse_two_digits(&minute, 0)? * 60;
    match sign {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

/// Returns the nanoseconds that the digits after a decimal point stand for. Digits after the ninth are
/// ignored.
pub(crate) fn fraction_ns(digits: &[u8]) -> i64 {
    (0..9)
        .fold(0, |value, at| value * 10 + digits.get(at).map_or(0, |b| i64::from(b.wrapping_sub(b'0') % 10)))
}

/// Parses a decimal number of seconds, milliseconds, microseconds or nanoseconds since 1970, with or without
/// a fraction.
fn parse_epoch(text: &[u8]) -> Option<i64> {
    let point = text.iter().position(|&b| b == b'.').unwrap_or(text.len());
    let fraction = text.get(point + 1..).unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let whole = parse_decimal(&text[..point])?;
    // A fraction of a nanosecond is dropped.
    let fraction_ns = fraction_ns(fraction) / (1_000_000_000 / epoch_unit_ns(whole as f64));
    Some(epoch_integer_ns(whole)?.saturating_add(fraction_ns))
}

/// Converts an integer as [`parse_epoch`] does.
pub(crate) fn epoch_integer_ns(value: u64) -> Option<i64> {
    Some(i64::try_from(value).ok()?.saturating_mul(epoch_unit_ns(value as f64)))
}

/// Converts a floating-point number as [`parse_epoch`] does. A double in seconds since 1970 is exact to a
/// microsecond.
pub(crate) fn epoch_number_ns(value: f64) -> Option<i64> {
    if !(value.is_finite() && value >= 0.0) {
        return None;
    }
    // A product beyond 64 bits saturates.
    let micros = (value * (epoch_unit_ns(value) as f64 / 1e3)).round();
    Some((micros as i64).saturating_mul(1_000))
}

/// Returns the unit of a number since 1970, in nanoseconds. Seconds reach 10^11 in the year 5138, and
/// milliseconds passed 10^11 in 1973.
fn epoch_unit_ns(value: f64) -> i64 {
    match value {
        ..1e11 => 1_000_000_000,
        ..1e14 => 1_000_000,
        ..1e17 => 1_000,
        _ => 1,
    }
}

/// Writes a time in UTC in the format of [`CommonClock`]. Years beyond 0 to 9999 wrap within their four
/// digits.
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

/// Returns the year, month and day of a number of days since 1970-01-01. This is the inverse of
/// [`days_from_civil`].
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    // Counted from 0000-03-01, a cycle of 400 years has 146,097 days. The leap days are removed before the
    // division by 365. There is one every 1,461 days, except every 36,524 days, but again every 146,096 days.
    let days = days + 719_468;
    let (cycle, of_cycle) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_cycle = (of_cycle - of_cycle / 1_460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (cycle * 400 + year_of_cycle + i64::from(month <= 2), month, day)
}

/// Converts days and seconds to nanoseconds.
fn unix_ns(days: i64, seconds: i64) -> i64 {
    // Years of four digits keep the product within about 2.5e11 seconds. Only the nanoseconds can overflow.
    (days * 86_400 + seconds).saturating_mul(1_000_000_000)
}

/// Returns the second of the day.
fn seconds_of_day(hour: i64, minute: i64, second: i64) -> Option<i64> {
    // A leap second is written as 60.
    (hour < 24 && minute < 60 && second <= 60).then_some(hour * 3_600 + minute * 60 + second)
}

fn parse_month(name: [u8; 3]) -> Option<i64> {
    let at = MONTHS.iter().position(|month| *month == name)?;
    Some(at as i64 + 1)
}

fn parse_digit(byte: u8) -> Option<i64> {
    let value = byte.wrapping_sub(b'0');
    (value < 10).then_some(i64::from(value))
}

fn parse_two_digits(text: &[u8], at: usize) -> Option<i64> {
    Some(parse_digit(text[at])? * 10 + parse_digit(text[at + 1])?)
}

fn parse_four_digits(text: &[u8], at: usize) -> Option<i64> {
    Some(parse_two_digits(text, at)? * 100 + parse_two_digits(text, at + 2)?)
}

/// Returns the number of days since 1970-01-01 in the proleptic Gregorian calendar.
///
/// Years start in March. The leap day is then the last day of the year, and the days before a month depend on
/// the month only.
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
    // There are 719,468 days from 0000-03-01 to 1970-01-01.
    Some(before_year + before_month + day - 1 - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn parse_common(text: &[u8; 26]) -> Option<i64> {
        CommonClock::default().read(text)
    }

    #[test]
    fn common_times_are_utc() {
        // The seconds are the output of `date -u -d '...' +%s`.
        for (text, seconds) in [
            (b"01/Jan/1970:00:00:00 +0000", 0),
            (b"29/Aug/1995:23:53:25 -0400", 809_754_805),
            (b"29/Feb/2016:12:00:00 +0130", 1_456_741_800),
            (b"31/Dec/1969:23:59:59 +0000", -1),
        ] {
            assert_eq!(parse_common(text), Some(seconds * SECOND), "{}", text.escape_ascii());
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
            assert_eq!(parse_common(text), None, "{}", text.escape_ascii());
        }
        assert_eq!(parse_epa(b"32:00:00:00"), None);
        assert_eq!(parse_epa(b"00:00:00:00"), None);
    }

    #[test]
    fn epa_and_ctime_times_are_parsed() {
        assert_eq!(parse_epa(b"29:23:53:25"), Some((28 * 86_400 + 86_005) * SECOND));
        assert_eq!(parse_ctime(b"Tue Aug 22 00:00:01 1995"), Some(809_049_601 * SECOND));
        assert_eq!(parse_ctime(b"Tue Aug  1 00:00:01 1995"), Some(807_235_201 * SECOND));
    }

    fn parse_any(text: &str) -> Option<i64> {
        super::parse_any(text.as_bytes(), &mut CommonClock::default())
    }

    #[test]
    fn every_notation_gives_the_same_instant() {
        for text in [
            "29/Aug/1995:23:53:25 -0400",
            "1995-08-29T23:53:25-04:00",
            "1995-08-29T23:53:25-0400",
            "1995-08-30T03:53:25Z",
            "1995-08-30t03:53:25.000z",
            "1995-08-30 03:53:25",
            "1995-08-30 03:53:25,000",
            "809754805",
            "809754805.000",
            "809754805000",
            "809754805000000",
            "809754805000000000",
        ] {
            assert_eq!(parse_any(text), Some(809_754_805 * SECOND), "{text}");
        }
    }

    #[test]
    fn fractions_are_kept_to_the_nanosecond() {
        let whole = 809_754_805 * SECOND;
        assert_eq!(parse_any("1995-08-30T03:53:25.1Z"), Some(whole + 100_000_000));
        assert_eq!(parse_any("1995-08-30T03:53:25.1234567891Z"), Some(whole + 123_456_789));
        assert_eq!(parse_any("809754805.25"), Some(whole + 250_000_000));
        assert_eq!(parse_any("809754805000.5"), Some(whole + 500_000));
        assert_eq!(epoch_number_ns(809_754_805.25), Some(whole + 250_000_000));
        assert_eq!(epoch_number_ns(809_754_805_250.0), Some(whole + 250_000_000));
        assert_eq!(epoch_number_ns(1e300), Some(i64::MAX));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "-",
            "yesterday",
            "1995-13-30T03:53:25Z",
            "1995-00-30T03:53:25Z",
            "1995-08-32T03:53:25Z",
            "1995-08-30T03:53",
            "1995-08-30T03:53:25X",
            "1995-08-30T03:53:25+4",
            "1995-08-30T24:53:25Z",
            "809754805.x",
            ".5",
            "99999999999999999999",
        ] {
            assert_eq!(parse_any(text), None, "{text}");
        }
        assert_eq!((epoch_number_ns(f64::NAN), epoch_number_ns(-1.0)), (None, None));
    }

    #[test]
    fn a_cached_minute_gives_the_same_time() {
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
            assert_eq!(clock.read(text), parse_common(text), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn written_text_is_parsed_unchanged() {
        // Steps of about 11 hours from 1902 to 2130 cover each kind of leap year and month end.
        for seconds in (-2_145_000_000..5_050_000_000_i64).step_by(40_009) {
            let text = write_common(seconds);
            assert_eq!(parse_common(&text), Some(seconds * SECOND), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn years_out_of_range_saturate() {
        assert_eq!(parse_common(b"01/Jan/9999:00:00:00 +0000"), Some(i64::MAX));
    }
}
