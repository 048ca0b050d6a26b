//! The statistics as a table for people. Sizes are decimal: 1 MB = 10^6 bytes.

use std::fmt;

use super::{Coverage, Stats};
use crate::size_unit::SizeUnit;

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_file_rows(f)?;
        self.write_request_rows(f)?;
        self.write_zipf_rows(f)?;
        self.write_core_rows(f)?;
        self.write_coverage_table(f)
    }
}

/// Writes a row with a name and a value.
fn write_row(f: &mut fmt::Formatter<'_>, name: &str, value: &str) -> fmt::Result {
    writeln!(f, "{name:<24}{value}")
}

impl Stats {
    fn write_file_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(read) = &self.read else { return Ok(()) };
        let size = self.format_file_size(read.bytes_unpacked);
        write_row(f, "format", &format!("{}, {}, {size} unpacked", read.format, read.compression))?;
        write_row(f, "lines", &format_thousands(read.lines))?;
        let mut malformed = format_thousands(read.malformed);
        for (i, line) in read.first_malformed.iter().enumerate() {
            malformed.push_str(if i == 0 { " (" } else { "; " });
            malformed.push_str(&line.to_string());
        }
        if !read.first_malformed.is_empty() {
            let more = read.malformed > read.first_malformed.len() as u64;
            malformed.push_str(if more { "; ...)" } else { ")" });
        }
        write_row(f, "malformed", &malformed)?;
        if read.over_targets_max > 0 {
            write_row(
                f,
                "beyond target limit",
                &format!("{} requests not counted", format_thousands(read.over_targets_max)),
            )?;
        }
        Ok(())
    }

    fn format_file_size(&self, bytes: u64) -> String {
        larder_core::Bytes(bytes).to_string()
    }

    fn write_request_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_row(f, "GET 200 with a body", &format_thousands(self.requests))?;
        write_row(f, "distinct targets", &format_thousands(self.targets))?;
        if let (Some(working_set), Some(reply), Some(target)) =
            (self.working_set, self.reply_mean, self.target_mean)
        {
            write_row(f, "working set", &self.format_size(working_set))?;
            write_row(f, "mean reply", &self.format_mean(reply))?;
            write_row(f, "mean target", &self.format_mean(target))?;
        }
        write_row(f, "hottest target", &format!("{:.1} % of requests", self.hottest_share * 100.0))?;
        let endless = format!("{:.1} % of requests hit", self.endless_hit_ratio * 100.0);
        write_row(f, "with unlimited memory", &endless)?;
        if let Some(tokens) = self.tokens_mean {
            write_row(f, "mean tokens", &format!("{:.0} in, {:.0} out", tokens.input, tokens.output))?;
        }
        if let Some(span) = self.span {
            write_row(f, "time span", &format_duration(span.seconds))?;
        }
        Ok(())
    }

    fn write_zipf_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(zipf) = self.zipf else {
            return write_row(f, "Zipf exponent", "too few popular targets to fit");
        };
        let fit = format!(
            "{:.3} (R2 {:.3}, {} ranks)",
            zipf.exponent,
            zipf.r_squared,
            format_thousands(zipf.ranks)
        );
        write_row(f, "Zipf exponent", &fit)?;
        write_row(f, "  method", zipf.method)
    }

    fn write_core_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(core) = &self.core90 else { return Ok(()) };
        let mut value =
            format!("{} targets, {:.1} %", format_thousands(core.targets), core.targets_share * 100.0);
        if let (Some(bytes), Some(share)) = (core.bytes, core.working_set_share) {
            value.push_str(&format!(
                "; {}, {:.1} % of the working set",
                self.format_size(bytes),
                share * 100.0
            ));
        }
        write_row(f, "core-90 %", &value)?;
        if let (Some(mean), Some(max)) = (core.new_share_mean, core.new_share_max) {
            let text = format!(
                "mean {:.1} %, at most {:.1} % of a day's requests to targets new in the core ({} days)",
                mean * 100.0,
                max * 100.0,
                core.days.len() + 1
            );
            write_row(f, "  day over day", &text)?;
        }
        Ok(())
    }

    fn write_coverage_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.coverage.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nmost requested targets that take a share of the requests:")?;
        writeln!(f, "{:>9} {:>12} {:>10}{}", "requests", "targets", "targets", self.format_size_header())?;
        for point in &self.coverage {
            let requests = format!("{} %", f64::from(point.requests_permille) / 10.0);
            let (targets, share) = (format_thousands(point.targets), format_percent(point.targets_share));
            writeln!(f, "{requests:>9} {targets:>12} {share:>10}{}", self.format_size_cells(point))?;
        }
        Ok(())
    }

    fn format_size_header(&self) -> String {
        match self.size_unit {
            SizeUnit::Unknown => String::new(),
            SizeUnit::Bytes | SizeUnit::Tokens => {
                format!(" {:>13} {:>12} {:>12}", "memory", "working set", "transferred")
            }
        }
    }

    fn format_size_cells(&self, point: &Coverage) -> String {
        let (Some(bytes), Some(set), Some(transferred)) =
            (point.bytes, point.working_set_share, point.transferred_share)
        else {
            return String::new();
        };
        format!(
            " {:>13} {:>12} {:>12}",
            self.format_size(bytes),
            format_percent(set),
            format_percent(transferred)
        )
    }

    fn format_size(&self, size: u64) -> String {
        match self.size_unit {
            SizeUnit::Tokens => format!("{:.1} Mtok", size as f64 / 1e6),
            SizeUnit::Bytes | SizeUnit::Unknown => format!("{:.1} MB", size as f64 / 1e6),
        }
    }

    fn format_mean(&self, size: f64) -> String {
        let whole = format_thousands(size.round() as u64);
        match self.size_unit {
            SizeUnit::Tokens => format!("{whole} tokens"),
            SizeUnit::Bytes | SizeUnit::Unknown => format!("{whole} B"),
        }
    }
}

fn format_percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

fn format_duration(seconds: f64) -> String {
    let whole = seconds as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60);
    let rest = seconds - (whole / 60 * 60) as f64;
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest:.1} s"),
        (0, _, _) => format!("{hours} h {minutes:02} min {rest:02.0} s"),
        _ => format!("{days} d {hours} h {minutes:02} min"),
    }
}

/// Writes `1234567` as `1,234,567`.
pub(crate) fn format_thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_durations_are_formatted() {
        let cases = [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")];
        for (number, text) in cases {
            assert_eq!(format_thousands(number), text);
        }
        assert_eq!(format_duration(61.0), "0 h 01 min 01 s");
        assert_eq!(format_duration(2.25), "2.2 s");
        assert_eq!(format_duration(90_061.0), "1 d 1 h 01 min");
    }
}
