//! Formatting of reports: the table for a terminal and the Markdown page.

use std::fmt::Write as _;

use super::claim::Verdict;
use super::experiment::Paper;
use super::report::{Count, ExperimentReport, Judgement, Report, Totals};
use larder_sim::text::counted;

/// Formats the table for a terminal, with a row per claim.
pub fn table(report: &Report) -> String {
    let mut rows =
        vec![["experiment", "claim", "published", "ours", "verdict", "evidence"].map(str::to_owned)];
    for experiment in &report.experiments {
        for claim in &experiment.claims {
            rows.push([
                experiment.id.clone(),
                claim.id.clone(),
                claim.published.clone(),
                claim.ours_text.clone(),
                claim.verdict.name().to_owned(),
                claim.evidence.to_string(),
            ]);
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..6).map(width).collect();
    let mut out = String::new();
    for (at, row) in rows.iter().enumerate() {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(out, "{}", cells.join("  ").trim_end());
        if at == 0 {
            let _ = writeln!(out, "{}", "-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1)));
        }
    }
    for experiment in &report.experiments {
        if let Some(left_out) = &experiment.left_out {
            let _ = writeln!(out, "left out: {}: {}", experiment.id, left_out.reason);
        }
    }
    let _ = writeln!(out, "\n{}", totals(report.totals));
    out
}

/// Formats the totals as a sentence: the tested claims, and the claims that are counted separately.
pub fn totals(totals: Totals) -> String {
    let Count { claims, held, not_held, not_judged } = totals.reproduced;
    let claims = counted(claims as u64, "claim");
    let mut text = format!("{claims} put to the test: {held} hold, {not_held} do not");
    if not_judged > 0 {
        let _ = write!(text, ", {not_judged} could not be judged");
    }
    let apart = totals.apart().into_iter().filter(|(_, count)| count.claims > 0);
    let apart: Vec<String> =
        apart.map(|(name, count)| format!("{} {name} ({} hold)", count.claims, count.held)).collect();
    if !apart.is_empty() {
        let _ = write!(text, "; counted apart: {}", apart.join(", "));
    }
    text
}

/// Formats the page `docs/reference/validation.md`.
pub fn markdown(report: &Report) -> String {
    let mut out = format!(
        concat!(
            "# Validation against the papers\n\n",
            "Written by `larder-lab paper {} --markdown docs/reference/validation.md` (`make paper`); do not edit. The \n",
            "experiments are the files under [experiments](../../experiments): recipe, runs, claims and the bounds within \n",
            "which a claim holds, set from the papers' own words. How to read and change them: \n",
            "[laboratory](../understand/laboratory.md).\n\n",
            "**{}.** A claim that does not hold is shown as such, with the reason.\n\n"
        ),
        report.set,
        totals(report.totals)
    )
    .replace(" \n", "\n");
    out += "| paper | put to the test | hold | do not hold | not judged |";
    out += " fitted | by construction | following from others | our own controls |\n";
    out += "|---|---|---|---|---|---|---|---|---|\n";
    for name in report.papers() {
        let totals = report.totals_of(name);
        let Count { claims, held, not_held, not_judged } = totals.reproduced;
        let apart = totals.apart().map(|(_, count)| match count.claims {
            0 => "-".to_owned(),
            all => format!("{} of {all} hold", count.held),
        });
        let _ = writeln!(
            out,
            "| {name} | {claims} | {held} | {not_held} | {not_judged} | {} |",
            apart.join(" | ")
        );
    }
    out += concat!(
        "\nOnly claims that a run could have refuted are put to the test. Counted apart: claims that a parameter or a ",
        "reading was\nfitted to, claims that hold by construction, claims that hold or not with another one, and ",
        "controls that the paper does\nnot make. Each claim names its kind.\n"
    );
    out += concat!(
        "\nA value marked *recovered* is illegible in the copies at hand and was restored from memory, arithmetic or ",
        "the pattern of the\ndamage; *printed* values can be read.\n"
    );
    for name in report.papers() {
        let _ = writeln!(out, "\n## {name}\n");
        if let Some(paper) = Paper::by_name(name) {
            let _ = writeln!(out, "{}.", paper.citation());
        }
        for experiment in report.experiments.iter().filter(|experiment| experiment.paper == name) {
            section(&mut out, experiment);
        }
    }
    out
}

fn section(out: &mut String, experiment: &ExperimentReport) {
    let ExperimentReport { id, place, title, about, recipe, left_out, claims, .. } = experiment;
    let _ = writeln!(out, "\n### {title}\n\n*{place}; `{id}`; {recipe}.*\n\n{about}\n");
    if let Some(left_out) = left_out {
        let _ = writeln!(out, "**Left out:** {}.\n", left_out.reason);
    }
    if claims.is_empty() {
        return;
    }
    out.push_str("| claim | published | ours | verdict | evidence |\n|---|---|---|---|---|\n");
    for claim in claims {
        let Judgement { says, place, known, published, evidence, ours_text, verdict, .. } = claim;
        let verdict = match verdict {
            Verdict::HoldsNot => format!("**{}**", verdict.name()),
            _ => verdict.name().to_owned(),
        };
        let says = cell(says);
        let _ = writeln!(
            out,
            "| {says} ({}) | {} ({}) | {} | {verdict} | {evidence} |",
            cell(place),
            cell(published),
            cell(known),
            cell(ours_text)
        );
    }
    let open: Vec<&Judgement> = claims.iter().filter(|claim| claim.verdict == Verdict::HoldsNot).collect();
    for claim in open {
        let why = if claim.why.is_empty() { "not found out yet" } else { claim.why.trim() };
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = writeln!(
            out,
            "\n- *{}* does not hold ({}; bound: {}): {why}",
            claim.says, claim.rule, claim.tolerance
        );
    }
}

/// Formats a text for a table cell, on one line and with escaped bars.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
