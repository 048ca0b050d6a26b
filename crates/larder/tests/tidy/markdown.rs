//! Parts of Markdown that the checks need: headings, links, prose without code, and code blocks.

/// Returns a document without its fenced code blocks. Their lines stay as empty lines, so line numbers stay
/// correct.
pub(crate) fn without_code(text: &str) -> String {
    let mut fenced = false;
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        if !fence && !fenced {
            out.push_str(line);
        }
        fenced ^= fence;
        out.push('\n');
    }
    out
}

/// Returns a document without code: no fenced blocks, and no text between single backticks on a line.
pub(crate) fn prose(text: &str) -> String {
    let plain = without_code(text);
    let lines = plain.lines().map(|line| line.split('`').step_by(2).collect::<Vec<_>>().join("\u{2026}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the headings with their level, 1 to 6.
pub(crate) fn headings(text: &str) -> Vec<(usize, String)> {
    let plain = without_code(text);
    let mut found = Vec::new();
    for line in plain.lines() {
        let level = line.chars().take_while(|c| *c == '#').count();
        if (1..=6).contains(&level)
            && let Some(title) = line[level..].strip_prefix(' ')
        {
            found.push((level, title.trim().to_owned()));
        }
    }
    found
}

/// Returns the anchor of a heading: lower case, blanks as hyphens, other marks removed.
pub(crate) fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase()
}

/// Returns the targets of links and images with their lines.
pub(crate) fn links(text: &str) -> Vec<(usize, String)> {
    let plain = without_code(text);
    let mut found = Vec::new();
    for (at, line) in plain.lines().enumerate() {
        for (opening, closing) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"')] {
            let starts = line.match_indices(opening).map(|(start, _)| start + opening.len());
            let targets = starts.filter_map(|start| line[start..].split(closing).next());
            found.extend(targets.map(|target| (at + 1, target.trim().to_owned())));
        }
    }
    found
}

/// Returns the first fenced block of the language.
pub(crate) fn code_block(text: &str, language: &str) -> Option<String> {
    let opening = format!("```{language}\n");
    let start = text.find(&opening)? + opening.len();
    let end = text[start..].find("\n```")?;
    Some(format!("{}\n", &text[start..start + end]))
}

#[test]
fn markdown_is_read() {
    let text = "# A `b` c!\n```toml\n# no heading\nx = 1\n```\n## D\n[e](f.md#g) ![h](i.png)\n";
    assert_eq!(headings(text), [(1, "A `b` c!".to_owned()), (2, "D".to_owned())]);
    assert_eq!(anchor("A `b` c!"), "a-b-c");
    assert_eq!(links(text), [(7, "f.md#g".to_owned()), (7, "i.png".to_owned())]);
    assert_eq!(prose("a `b` c\n```\nd\n```\ne").replace('\n', "|"), "a \u{2026} c||||e");
    assert_eq!(code_block(text, "toml").as_deref(), Some("# no heading\nx = 1\n"));
}
