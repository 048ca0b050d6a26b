//! The page of the claims, `docs/reference/claims.md`, made of their records.

use std::fmt::Write as _;

use super::record::{Area, Claim, Figures, Measurement};

/// Path of the page from the root of the repository.
pub(crate) const PATH: &str = "docs/reference/claims.md";

const INTRODUCTION: &str = "# Claims

This page has the measured numbers of the documentation, and the commands that reproduce them. To run the commands of a
claim, use `cargo xtask claims run ID`. In documents, `<!-- claim:ID -->` marks a number. The page is generated from the
files in `claims/` by `cargo xtask claims page`.

Your machine will give other times, but similar ratios. A number in parentheses after *at most* or *at least* is the bound
that was set before the run; compare it when you run the claim again. Words in capitals in commands are parameters: give them as options, such as
`cargo xtask claims run relay-full --haproxy /usr/sbin/haproxy`.
";

/// Maximum number of values of a claim in the table of an area.
const VALUES_SHOWN: usize = 2;

/// Returns the page.
pub(crate) fn page(areas: &[Area]) -> String {
    let mut page = INTRODUCTION.to_owned();
    for area in areas {
        let _ = write!(page, "\n## {}\n\n| id | claim | values | command |\n|---|---|---|---|\n", area.title);
        for claim in &area.claims {
            page += &row(claim);
        }
        for claim in &area.claims {
            page += &details(claim);
        }
    }
    page
}

/// Returns the row of a claim in the table of its area.
fn row(claim: &Claim) -> String {
    let (bounded, free): (Vec<_>, Vec<_>) = claim.values.iter().partition(|value| value.is_bounded());
    let values = bounded.into_iter().chain(free).take(VALUES_SHOWN).map(|value| {
        let bound = if value.is_bounded() { format!(" ({})", bound(value)) } else { String::new() };
        format!("{}: {}{bound}", value.name, result(value))
    });
    let values = values.collect::<Vec<_>>().join("<br>");
    let Claim { id, statement, commands, .. } = claim;
    let command = commands.first().map_or("", String::as_str);
    format!("| [{id}](#{id}) | {statement} | {values} | `{command}` |\n")
}

/// Returns the section of a claim.
fn details(claim: &Claim) -> String {
    let mut text = format!("\n### {}\n\n{}\n\n", claim.id, claim.statement);
    let mut columns: Vec<(&str, Vec<String>)> = vec![
        ("value", claim.values.iter().map(|value| value.name.clone()).collect()),
        ("result", claim.values.iter().map(result).collect()),
        ("bound", claim.values.iter().map(bound).collect()),
        ("note", claim.values.iter().map(|value| value.note.clone().unwrap_or_default()).collect()),
    ];
    columns.retain(|(_, cells)| cells.iter().any(|cell| !cell.is_empty()));
    let titles: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
    let _ = write!(text, "| {} |\n{}|\n", titles.join(" | "), "|---".repeat(titles.len()));
    for at in 0..claim.values.len() {
        let cells: Vec<&str> = columns.iter().map(|(_, cells)| &*cells[at]).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    let _ = write!(text, "\n```sh\n{}\n```\n\n- Measured: {}", claim.commands.join("\n"), claim.date);
    if let Some(machine) = &claim.machine {
        let _ = write!(text, "; {machine}");
    }
    let documents: Vec<String> =
        claim.documents.iter().map(|path| format!("[{path}]({})", relative(path))).collect();
    let _ = write!(text, "\n- Claimed in: {}\n", documents.join(", "));
    for remark in &claim.remarks {
        let _ = writeln!(text, "- {remark}");
    }
    text
}

/// Returns the result with its unit and range, such as `16.2 us (15.3 to 17.2)`.
pub(crate) fn result(value: &Measurement) -> String {
    let range = value.range.map(|[lowest, highest]| format!("{} to {}", number(lowest), number(highest)));
    let figures = value.value.as_ref().map(|figures| {
        let separator = if matches!(figures, Figures::Several(_)) { "; " } else { "" };
        figures.all().iter().map(|figure| number(*figure)).collect::<Vec<_>>().join(separator)
    });
    let (shown, range) = match (figures, range) {
        (Some(figures), Some(range)) => (figures, format!(" ({range})")),
        (Some(only), None) | (None, Some(only)) => (only, String::new()),
        (None, None) => (String::new(), String::new()),
    };
    let unit = if value.unit.is_empty() { String::new() } else { format!(" {}", value.unit) };
    format!("{shown}{unit}{range}")
}

/// Returns the bound of a value, such as `at most 500`. Empty if it has none.
fn bound(value: &Measurement) -> String {
    let at_least = value.at_least.map(|bound| format!("at least {}", number(bound)));
    let at_most = value.at_most.map(|bound| format!("at most {}", number(bound)));
    at_least.into_iter().chain(at_most).collect::<Vec<_>>().join(", ")
}

/// Returns a number with commas between groups of three digits.
fn number(value: f64) -> String {
    let plain = value.to_string();
    let (sign, digits) = plain.strip_prefix('-').map_or(("", &*plain), |digits| ("-", digits));
    let (whole, fraction) =
        digits.split_once('.').map_or((digits, ""), |(whole, _)| (whole, &digits[whole.len()..]));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{fraction}")
}

/// Returns the path of a document from the folder of the page.
fn relative(path: &str) -> String {
    match (path.strip_prefix("docs/reference/"), path.strip_prefix("docs/")) {
        (Some(name), _) => name.to_owned(),
        (None, Some(rest)) => format!("../{rest}"),
        (None, None) => format!("../../{path}"),
    }
}
