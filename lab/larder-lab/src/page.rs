//! The HTML report of `larder-lab paper` and `larder-lab run`.

use std::fmt::Write as _;

use larder::report::{PAGE_STYLE, STYLE, escape, plot};
use larder_papers::{Count, ExperimentReport, Judgement, Paper, Report, Verdict, text};
use larder_sim::figure::Figure;

/// Builds the HTML page.
///
/// # Errors
/// If the report cannot be serialised as JSON.
pub(crate) fn page(report: &Report) -> serde_json::Result<String> {
    let mut body = head(report);
    for name in report.papers() {
        let citation = Paper::by_name(name).map_or("", Paper::citation);
        let _ = writeln!(
            body,
            "<h2 class=\"paper\" id=\"{0}\">{0}</h2>\n<p class=\"note\">{1}</p>",
            escape(name),
            escape(citation)
        );
        for experiment in report.experiments.iter().filter(|experiment| experiment.paper == name) {
            body += &section(experiment)?;
        }
    }
    Ok(format!(
        concat!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
            "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n",
            "<title>larder-lab: {set}</title>\n<style>\n{style}{page}</style>\n</head>\n<body>\n<main>\n{body}",
            "</main>\n</body>\n</html>\n"
        ),
        set = escape(&report.set),
        style = STYLE,
        page = PAGE_STYLE,
        body = body,
    ))
}

fn head(report: &Report) -> String {
    let totals = report.totals;
    let mut rows = String::new();
    for name in report.papers() {
        let of = report.totals_of(name);
        let _ = writeln!(
            rows,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td>{}</tr>",
            escape(name),
            of.reproduced.claims,
            of.reproduced.held,
            of.reproduced.not_held,
            of.reproduced.not_judged,
            of.apart().map(|(_, count)| separate_count(count)).concat()
        );
    }
    format!(
        concat!(
            "<p class=\"eyebrow\">larder-lab</p>\n<h1>{}</h1>\n",
            "<p class=\"lead\">The papers' experiments, run again on the simulated cluster around the live dispatcher. ",
            "Figures have the papers' axes and lines, so that one can lay them side by side; dashed lines are ",
            "upper bounds that no policy exceeds, and tables give each line's share of its bound. A claim holds within bounds that its experiment file states. Only ",
            "claims that a run could have refuted are put to the test; the others are counted apart.</p>\n",
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Claims by paper\"><table>\n",
            "<thead><tr><th scope=\"col\">paper</th><th scope=\"col\">put to the test</th><th scope=\"col\">hold</th>",
            "<th scope=\"col\">do not hold</th><th scope=\"col\">not judged</th><th scope=\"col\">fitted</th>",
            "<th scope=\"col\">by construction</th><th scope=\"col\">following from others</th>",
            "<th scope=\"col\">our own controls</th></tr></thead>\n",
            "<tbody>\n{}</tbody></table></div>\n"
        ),
        escape(&text::totals(totals)),
        rows
    )
}

/// Formats a cell for claims that are counted separately.
fn separate_count(count: Count) -> String {
    match count.claims {
        0 => "<td>-</td>".to_owned(),
        all => format!("<td>{} of {all} hold</td>", count.held),
    }
}

fn section(experiment: &ExperimentReport) -> serde_json::Result<String> {
    let ExperimentReport { id, place, title, about, recipe, left_out, figures, claims, .. } = experiment;
    let mut out = format!(
        "<section id=\"{}\"><h2>{}</h2>\n<p class=\"note\">{}; {}; workload: {}</p>\n<p>{}</p>\n",
        escape(id),
        escape(title),
        escape(place),
        escape(id),
        escape(recipe),
        escape(about)
    );
    if let Some(left_out) = left_out {
        let _ = writeln!(
            out,
            "<div class=\"warning\" role=\"note\"><b>Left out</b>: {}</div>",
            escape(&left_out.reason)
        );
    }
    if !claims.is_empty() {
        out += &table(claims);
    }
    out += "<div class=\"figures\">\n";
    for figure in figures.iter().filter(|figure| !figure.lines.is_empty()) {
        let _ = writeln!(
            out,
            "<figure><h2>{}</h2><figcaption>{}</figcaption>{}{}</figure>",
            escape(&figure.name),
            escape(&figure.title),
            plot(figure).inline(),
            bound_shares(figure)
        );
    }
    let json = serde_json::to_string_pretty(&(figures, claims))?;
    let _ = writeln!(
        out,
        "</div>\n<details><summary>Figures and claims as JSON</summary>\n<pre tabindex=\"0\">{}</pre></details></section>",
        escape(&json)
    );
    Ok(out)
}

/// Formats the shares of the upper bound as a table of lines by x; empty if there are none.
fn bound_shares(figure: &Figure) -> String {
    let mut across: Vec<f64> =
        figure.bound_shares.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
    across.sort_by(f64::total_cmp);
    across.dedup();
    if across.is_empty() {
        return String::new();
    }
    let head: String = across.iter().map(|x| format!("<th scope=\"col\">{x}</th>")).collect();
    let mut rows = String::new();
    for line in &figure.bound_shares {
        let value = |x: &f64| {
            let point = line.points.iter().find(|point| point.0 == *x);
            point.map_or_else(|| "-".to_owned(), |point| format!("{:.1} %", point.1 * 100.0))
        };
        let cells: String = across.iter().map(|x| format!("<td>{}</td>", value(x))).collect();
        let _ = writeln!(rows, "<tr><th scope=\"row\">{}</th>{cells}</tr>", escape(&line.name));
    }
    format!(
        concat!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Share of the upper bound\"><table>\n",
            "<thead><tr><th scope=\"col\">share of the bound, by {}</th>{}</tr></thead>\n<tbody>\n{}</tbody></table></div>\n"
        ),
        escape(&figure.x_label),
        head,
        rows
    )
}

fn table(claims: &[Judgement]) -> String {
    let mut rows = String::new();
    for claim in claims {
        let Judgement {
            says,
            place,
            known,
            published,
            evidence,
            ours_text,
            rule,
            tolerance,
            verdict,
            why,
            ..
        } = claim;
        let why = match (verdict, why.is_empty()) {
            (Verdict::HoldsNot, true) => "<br><b>Why not:</b> not found out yet".to_owned(),
            (Verdict::HoldsNot, false) => format!("<br><b>Why not:</b> {}", escape(why)),
            _ => String::new(),
        };
        let class = match verdict {
            Verdict::Holds => "holds",
            Verdict::HoldsNot => "fails",
            Verdict::NotJudged => "open",
        };
        let _ = writeln!(
            rows,
            concat!(
                "<tr><td class=\"wide\">{}<br><small>{}. Measured: {}. {}.</small>{}</td><td>{}<br><small>{}</small></td>",
                "<td>{}</td><td class=\"{}\">{}</td><td>{}</td></tr>"
            ),
            escape(says),
            escape(place),
            escape(rule),
            escape(tolerance),
            why,
            escape(published),
            escape(known),
            escape(ours_text),
            class,
            verdict.name(),
            escape(&evidence.to_string())
        );
    }
    format!(
        concat!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Claims\"><table>\n<thead><tr>",
            "<th scope=\"col\">claim</th><th scope=\"col\">published</th><th scope=\"col\">ours</th>",
            "<th scope=\"col\">verdict</th><th scope=\"col\">evidence</th></tr></thead>\n<tbody>\n{}</tbody></table></div>\n"
        ),
        rows
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_papers::{Evidence, Sample, Totals};
    use larder_sim::figure::{Figure, Line};

    fn figure() -> Figure {
        let line = |name: &str, ceiling, points: &[(f64, f64)]| Line {
            name: name.to_owned(),
            ceiling,
            points: points.to_vec(),
        };
        Figure {
            name: "Figure 7".to_owned(),
            title: "Throughput".to_owned(),
            x_label: "nodes".to_owned(),
            y_label: "requests/s".to_owned(),
            y_max: Some(100.0),
            y_percent: false,
            x_log: false,
            bound_shares: Vec::new(),
            lines: vec![
                line("LARD/R", false, &[(1.0, 10.0), (8.0, 80.0)]),
                line("unbounded", true, &[(8.0, 100.0)]),
            ],
        }
    }

    fn report() -> Report {
        let claim = Judgement {
            id: "four".into(),
            says: "<b>four</b> times".into(),
            place: "4.1".into(),
            known: "printed".into(),
            published: "4".into(),
            evidence: Evidence::Reproduced,
            ours: Some(2.0),
            ours_text: "2.00x".into(),
            rule: "throughput of a over b".into(),
            tolerance: "about".into(),
            verdict: Verdict::HoldsNot,
            why: "the <model> differs".into(),
        };
        let experiment = ExperimentReport {
            id: "small".into(),
            paper: "lard".into(),
            place: "figure 7".into(),
            title: "<script>alert(1)</script>".into(),
            about: "About.".into(),
            recipe: "rice-like".into(),
            left_out: None,
            figures: vec![figure()],
            claims: vec![claim],
            samples: vec![Sample::default()],
        };
        let count = Count { claims: 1, held: 0, not_held: 1, not_judged: 0 };
        let totals = Totals { all: count, reproduced: count, ..Totals::default() };
        Report { set: "lard".into(), totals, experiments: vec![experiment] }
    }

    #[test]
    fn the_page_is_self_contained_and_escapes_foreign_text() {
        let page = page(&report()).unwrap();
        assert!(!page.contains("<script") && !page.contains("<b>four") && !page.contains("<model>"));
        for outside in ["src=", "href=", "url(", "@import", "https://"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("role=\"img\"").count(), 1);
        assert!(page.contains("1 claim put to the test: 0 hold, 1 do not") && page.contains("does not hold"));
    }
}
