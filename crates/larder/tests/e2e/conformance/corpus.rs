//! The HTTP/1 cases of bench/conformance.

use std::fs;
use std::path::Path;

use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    case: Vec<Case>,
}

/// A case. The files explain its keys.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Case {
    pub id: String,
    group: String,
    what: String,
    rule: String,
    pub send: String,
    pub then: String,
    pub ends: bool,
    pub right: Vec<String>,
    pub status: Vec<u16>,
    pub sees: Vec<String>,
    pub any: bool,
    part: bool,
    pub has: Vec<String>,
    pub lacks: Vec<String>,
    order: Vec<String>,
    pub reply: Option<String>,
    pub closes: bool,
    pub gets: Vec<String>,
    pub misses: Vec<String>,
    pub closed: bool,
    whole: bool,
    kind: String,
}

impl Default for Case {
    fn default() -> Self {
        let (text, none) = (String::new, Vec::new);
        Self {
            id: text(),
            group: text(),
            what: text(),
            rule: text(),
            send: text(),
            then: text(),
            ends: false,
            right: vec!["refused".to_owned()],
            status: Vec::new(),
            sees: none(),
            any: false,
            part: false,
            has: none(),
            lacks: none(),
            order: none(),
            reply: None,
            closes: false,
            gets: none(),
            misses: none(),
            closed: false,
            whole: true,
            kind: text(),
        }
    }
}

/// Reads all cases.
pub fn read() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/conformance");
    let read = |name| {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        toml::from_str::<File>(&text).unwrap_or_else(|error| panic!("{name}: {error}")).case
    };
    let cases = read("requests.toml").into_iter().chain(read("relaying.toml"));
    let cases: Vec<Case> = cases.map(Case::filled).collect();
    assert!(cases.len() > 200, "{} cases", cases.len());
    cases
}

impl Case {
    fn filled(mut self) -> Self {
        let id = self.id.clone();
        if self.sees.is_empty() {
            self.sees = vec![format!("GET /c/{id}")];
        }
        let lists = [&mut self.sees, &mut self.has, &mut self.lacks, &mut self.gets, &mut self.misses];
        let texts = [&mut self.send, &mut self.then].into_iter().chain(&mut self.reply);
        for text in lists.into_iter().flatten().chain(texts) {
            *text = fill(text, &id);
        }
        self
    }

    /// Whether a text belongs to this case.
    pub fn is_named_in(&self, text: &str) -> bool {
        let inside = |c: char| c.is_ascii_alphanumeric() || c == '-';
        text.match_indices(&self.id).any(|(at, name)| {
            let before = text[..at].chars().next_back();
            let after = text[at + name.len()..].chars().next();
            matches!(before, Some('/' | ' ')) && !after.is_some_and(inside)
        })
    }
}

fn fill(text: &str, id: &str) -> String {
    const HOST: &str = "Host: a.example\r\n";
    let hidden = format!("GET /s/{id} HTTP/1.1\r\n{HOST}\r\n");
    let mut text = text.replace("{ID}", id).replace("{H}", HOST).replace("{S}", &hidden);
    text = text.replace("{L:S}", &hidden.len().to_string()).replace("{X:S}", &format!("{:x}", hidden.len()));
    while let Some(at) = text.find("{F:").or_else(|| text.find("{R:")) {
        let end = at + text[at..].find('}').unwrap();
        let (count, what) = text[at + 3..end].split_once(':').unwrap_or((&text[at + 3..end], "a"));
        let much = what.repeat(count.parse().unwrap());
        text.replace_range(at..=end, &much);
    }
    text
}

/// Converts a text to bytes, one byte for each character.
pub fn bytes(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect()
}

/// Converts bytes to a text, one character for each byte.
pub fn text(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}
