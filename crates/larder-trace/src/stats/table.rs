//! The statistics as a table for people. Sizes are decimal: 1 MB = 10^6 bytes.

use std::fmt;

use super::{Coverage, Stats};
use crate::trace::SizeUnit;

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file_rows(f)?;
        self.request_rows(f)?;
        self.shape_rows(f)?;
        self.core_rows(f)?;
        self.coverage_table(f)
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, value: &str) -> fmt::Result {
    writeln!(f, "{name:<24}{value}")
}

impl Stats {
    fn file_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(read) = &self.read else { return Ok(()) };
        let size = self.unpacked(read.bytes_unpacked);
        row(f, "format", &format!("{}, {}, {size} unpacked", read.format, read.compression))?;
        row(f, "lines", &thousands(read.lines))?;
        let mut malformed = thousands(read.malformed);
        for (i, line) in read.first_malformed.iter().enumerate() {
            malformed.push_str(if i == 0 { " (" } else { "; " });
            malformed.push_str(&line.to_string());
        }
        if !read.first_malformed.is_empty() {
            let more = read.malformed > read.first_malformed.len() as u64;
            malformed.push_str(if more { "; ...)" } else { ")" });
        }
        row(f, "malformed", &malformed)?;
        if read.over_targets_max > 0 {
            row(
                f,
                "beyond target limit",
                &format!("{} requests not counted", thousands(read.over_targets_max)),
            )?;
        }
        Ok(())
    }

    fn unpacked(&self, bytes: u64) -> String {
        larder_core::Bytes(bytes).to_string()
    }

    fn request_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        row(f, "GET 200 with a body", &thousands(self.requests))?;
        row(f, "distinct targets", &thousands(self.targets))?;
        if let (Some(working_set), Some(reply), Some(target)) =
            (self.working_set, self.reply_mean, self.target_mean)
        {
            row(f, "working set", &self.size(working_set))?;
            row(f, "mean reply", &self.mean(reply))?;
            row(f, "mean target", &self.mean(target))?;
        }
        row(f, "hottest target", &format!("{:.1} % of requests", self.hottest_share * 100.0))?;
        let endless = format!("{:.1} % of requests hit", self.endless_hit_ratio * 100.0);
        row(f, "with endless memory", &endless)?;
        if let Some(tokens) = self.tokens_mean {
            row(f, "mean tokens", &format!("{:.0} in, {:.0} out", tokens.input, tokens.output))?;
        }
        if let Some(span) = self.span {
            row(f, "time span", &duration(span.seconds))?;
        }
        Ok(())
    }

    fn shape_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(zipf) = self.zipf else { return row(f, "Zipf exponent", "too few popular targets to fit") };
        let fit = format!("{:.3} (R2 {:.3}, {} ranks)", zipf.exponent, zipf.r_squared, thousands(zipf.ranks));
        row(f, "Zipf exponent", &fit)?;
        row(f, "  method", zipf.method)
    }

    fn core_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(core) = &self.core90 else { return Ok(()) };
        let mut value = format!("{} targets, {:.1} %", thousands(core.targets), core.targets_share * 100.0);
        if let (Some(bytes), Some(share)) = (core.bytes, core.working_set_share) {
            value.push_str(&format!("; {}, {:.1} % of the working set", self.size(bytes), share * 100.0));
        }
        row(f, "core-90 %", &value)?;
        if let (Some(mean), Some(max)) = (core.new_share_mean, core.new_share_max) {
            let text = format!(
                "mean {:.1} %, at most {:.1} % of a day's requests to targets new in the core ({} days)",
                mean * 100.0,
                max * 100.0,
                core.days.len() + 1
            );
            row(f, "  day over day", &text)?;
        }
        Ok(())
    }

    fn coverage_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.coverage.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nmost requested targets that take a share of the requests:")?;
        writeln!(f, "{:>9} {:>12} {:>10}{}", "requests", "targets", "targets", self.size_header())?;
        for point in &self.coverage {
            let requests = format!("{} %", f64::from(point.requests_permille) / 10.0);
            let (targets, share) = (thousands(point.targets), percent(point.targets_share));
            writeln!(f, "{requests:>9} {targets:>12} {share:>10}{}", self.size_cells(point))?;
        }
        Ok(())
    }

    fn size_header(&self) -> String {
        match self.size_unit {
            SizeUnit::Unknown => String::new(),
            SizeUnit::Bytes | SizeUnit::Tokens => {
                format!(" {:>13} {:>12} {:>12}", "memory", "working set", "transferred")
            }
        }
    }

    fn size_cells(&self, point: &Coverage) -> String {
        let (Some(bytes), Some(set), Some(transferred)) =
            (point.bytes, point.working_set_share, point.transferred_share)
        else {
            return String::new();
        };
        format!(" {:>13} {:>12} {:>12}", self.size(bytes), percent(set), percent(transferred))
    }

    fn size(&self, size: u64) -> String {
        match self.size_unit {
            SizeUnit::Tokens => format!("{:.1} Mtok", size as f64 / 1e6),
            SizeUnit::Bytes | SizeUnit::Unknown => format!("{:.1} MB", size as f64 / 1e6),
        }
    }

    fn mean(&self, size: f64) -> String {
        let whole = thousands(size.round() as u64);
        match self.size_unit {
            SizeUnit::Tokens => format!("{whole} tokens"),
            SizeUnit::Bytes | SizeUnit::Unknown => format!("{whole} B"),
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

fn duration(seconds: f64) -> String {
    let whole = seconds as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60);
    let rest = seconds - (whole / 60 * 60) as f64;
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest:.1} s"),
        (0, _, _) => format!("{hours} h {minutes:02} min {rest:02.0} s"),
        _ => format!("{days} d {hours} h {minutes:02} min"),
    }
}

/// `1234567` as `1,234,567`.
pub(crate) fn thousands(number: u64) -> String {
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
    fn numbers_for_people() {
        let cases = [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")];
        for (number, text) in cases {
            assert_eq!(thousands(number), text);
        }
        assert_eq!(duration(61.0), "0 h 01 min 01 s");
        assert_eq!(duration(2.25), "2.2 s");
        assert_eq!(duration(90_061.0), "1 d 1 h 01 min");
    }
}
