//! Formatting of numbers for reports and tables.

use larder_core::Bytes;

/// Formats a number with three significant digits below 1,000, and as a whole number with grouped thousands
/// above.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 1_000.0 {
        return group_digits(value.round());
    }
    let digits = if value == value.trunc() || size >= 100.0 {
        0
    } else if size >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$}")
}

/// Formats a count with its noun, whose plural has an `s`: `1 node`, `16 nodes`.
pub fn counted(count: impl TryInto<u64>, noun: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", number(count as f64))
}

/// Formats a number of events per second with its significant digits: `0.41`, `4.6`, `186`.
pub fn per_s(value: f64) -> String {
    let digits = match value {
        small if small < 1.0 && small > 0.0 => 2,
        middle if middle < 100.0 && middle != middle.trunc() => 1,
        _ => return group_digits(value.round()),
    };
    format!("{value:.digits$}")
}

/// Formats a request rate with its unit: `4.6 requests/s`.
pub fn rate(requests_per_s: f64) -> String {
    format!("{} requests/s", per_s(requests_per_s))
}

/// Returns a text for one line of a terminal: each control character becomes `?`.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Formats a cluster by its size: `4 nodes with 256 MiB each`.
pub fn cluster(nodes: impl TryInto<u64>, memory: Bytes) -> String {
    let nodes = counted(nodes, "node");
    let each = if nodes.ends_with('s') { " each" } else { "" };
    format!("{nodes} with {}{each}", memory.exact())
}

fn group_digits(whole: f64) -> String {
    let digits = format!("{:.0}", whole.abs());
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if whole < 0.0 { format!("-{out}") } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted() {
        for (value, text) in
            [(0.0, "0"), (1.239, "1.24"), (12.34, "12.3"), (742.4, "742"), (1_234_567.0, "1,234,567")]
        {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn nouns_agree_with_their_numbers() {
        let texts = [0_u16, 1, 2, 1_000].map(|count| counted(count, "node"));
        assert_eq!(texts, ["0 nodes", "1 node", "2 nodes", "1,000 nodes"]);
        assert_eq!(cluster(1_u16, Bytes(18_000_000)), "1 node with 18 MB");
        assert_eq!(cluster(4_usize, Bytes::mib(256)), "4 nodes with 256 MiB each");
    }

    #[test]
    fn rates_have_their_unit_and_the_digits_that_count() {
        for (value, text) in [
            (0.0, "0 requests/s"),
            (0.4137, "0.41 requests/s"),
            (4.616_67, "4.6 requests/s"),
            (5.0, "5 requests/s"),
            (46.25, "46.2 requests/s"),
            (186.4, "186 requests/s"),
            (1_566.9, "1,567 requests/s"),
        ] {
            assert_eq!(rate(value), text);
        }
    }
}
