//! Marks of claims in documents, `<!-- claim:ID -->`, and the key `where` of records, which lists the marked documents.

use std::collections::{BTreeMap, BTreeSet};

/// Documents in which each claim is marked.
pub(crate) type Marks = BTreeMap<String, BTreeSet<String>>;

/// Adds the marks of a document, except those in code.
pub(crate) fn collect(path: &str, document: &str, marks: &mut Marks) {
    let mut is_code = false;
    for line in document.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            let prose = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
            let ids = prose.split("<!-- claim:").skip(1).filter_map(|rest| rest.split(" -->").next());
            for id in ids {
                marks.entry(id.to_owned()).or_default().insert(path.to_owned());
            }
        }
    }
}

/// Returns the text of a file in `claims/` with the documents of the marks.
pub(crate) fn with_documents(record: &str, marks: &Marks) -> String {
    let (mut text, mut id, mut is_replaced) = (String::new(), "", false);
    for line in record.lines() {
        if is_replaced {
            is_replaced = line != "]";
            continue;
        }
        if let Some(value) = line.strip_prefix("id = ") {
            id = value.trim_matches('"');
        }
        if line.starts_with("where = ") {
            let documents = marks.get(id).into_iter().flatten();
            let documents: Vec<String> = documents.map(|path| format!("\"{path}\"")).collect();
            text += &format!("where = [{}]\n", documents.join(", "));
            is_replaced = !line.ends_with(']');
        } else {
            text += line;
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_of_marks_replace_those_of_the_record() {
        let mut marks = Marks::new();
        collect("b.md", "3 us <!-- claim:a --> `<!-- claim:x -->`\n```\n<!-- claim:x -->\n```\n", &mut marks);
        collect("a.md", "<!-- claim:b --> and <!-- claim:a -->\n", &mut marks);
        let record = "id = \"a\"\nwhere = [\n  \"old.md\",\n]\nrest = 1\nid = \"b\"\nwhere = []\n";
        let expected = "id = \"a\"\nwhere = [\"a.md\", \"b.md\"]\nrest = 1\nid = \"b\"\nwhere = [\"a.md\"]\n";
        assert_eq!(with_documents(record, &marks), expected);
        assert!(!marks.contains_key("x"));
    }
}
