//! Imports between the files of a crate.
//!
//! A file imports another one if its code names an item of that file, by `use` or by a path. A name is
//! followed through `pub use` to the file that defines it; a `pub use` alone is no import. Test code is
//! excluded. Names from macros are not seen: a path to such a name counts as one to its apparent module.

use std::collections::{BTreeMap, BTreeSet};

use crate::rust::{Token, tokens};

/// Cause of an import: the first path from one file to the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reason {
    pub(crate) line: usize,
    pub(crate) path: String,
}

/// Imports by the two files, from and to.
pub(crate) type Imports = BTreeMap<(String, String), Reason>;

/// A path as written. The last part of a glob is `*`.
#[derive(Clone, Debug)]
struct Path<'a> {
    parts: Vec<&'a str>,
    line: usize,
}

/// A name that a `use` imports.
#[derive(Debug)]
struct Use<'a> {
    path: Path<'a>,
    name: &'a str,
    is_public: bool,
}

#[derive(Debug, Default)]
struct Module<'a> {
    file: String,
    uses: Vec<Use<'a>>,
    defined: BTreeSet<&'a str>,
    /// Paths in code, and single words, with their lines.
    paths: Vec<Path<'a>>,
    words: BTreeMap<&'a str, usize>,
}

/// Path of a module from the crate's root.
type ModulePath<'a> = Vec<&'a str>;

/// Maximum number of steps from a name to its definition.
const STEPS_MAX: usize = 16;

/// Returns the imports between the files of a crate. `files` has the text of each file by path, and `root` is
/// the path of the root.
pub(crate) fn imports(files: &BTreeMap<String, String>, root: &str) -> Imports {
    let mut tree = Tree { files, modules: BTreeMap::new() };
    tree.load(&Vec::new(), root, root.rsplit_once('/').map_or("", |(folder, _)| folder));
    tree.imports()
}

struct Tree<'a> {
    files: &'a BTreeMap<String, String>,
    modules: BTreeMap<ModulePath<'a>, Module<'a>>,
}

impl<'a> Tree<'a> {
    /// Reads the file of a module and those of its children, which are in `folder`.
    fn load(&mut self, place: &ModulePath<'a>, file: &str, folder: &str) {
        let Some(text) = self.files.get(file) else { return };
        let tokens = tokens(text);
        let mut reader =
            Reader { tokens: &tokens, at: 0, file, modules: &mut self.modules, children: Vec::new() };
        reader.module(place);
        for child in reader.children {
            let path = child[place.len()..].join("/");
            let candidates = [format!("{folder}/{path}.rs"), format!("{folder}/{path}/mod.rs")];
            for candidate in candidates.iter().filter(|candidate| self.files.contains_key(*candidate)) {
                self.load(&child, candidate, &format!("{folder}/{path}"));
            }
        }
    }

    fn imports(&self) -> Imports {
        let mut found = Imports::new();
        for (place, module) in &self.modules {
            let used = module.uses.iter().filter(|one| !one.is_public || module.words.contains_key(one.name));
            let used = used
                .map(|one| (&one.path, if one.is_public { module.words[one.name] } else { one.path.line }));
            for (path, line) in used.chain(module.paths.iter().map(|path| (path, path.line))) {
                let Some(parts) = self.absolute(place, &path.parts, 0) else { continue };
                let to = &self.modules[&self.defining_module(&parts, 0)].file;
                if *to != module.file {
                    let reason = Reason { line, path: path.parts.join("::") };
                    let known =
                        found.entry((module.file.clone(), to.clone())).or_insert_with(|| reason.clone());
                    if reason.line < known.line {
                        *known = reason;
                    }
                }
            }
        }
        found
    }

    /// Returns a path from the crate's root. `None` if it leaves the crate.
    fn absolute(&self, place: &ModulePath<'a>, parts: &[&'a str], steps: usize) -> Option<ModulePath<'a>> {
        let (first, rest) = parts.split_first()?;
        let join = |place: &[&'a str], rest: &[&'a str]| Some([place, rest].concat());
        match *first {
            "crate" => join(&[], rest),
            "self" => join(place, rest),
            "super" => {
                let mut above = place.clone();
                above.pop()?;
                match rest.first() {
                    Some(&"super") => self.absolute(&above, rest, steps),
                    _ => join(&above, rest),
                }
            }
            _ if self.modules.contains_key(&[&place[..], &[first]].concat()) => join(place, parts),
            _ => {
                let uses = &self.modules.get(place)?.uses;
                let one = uses.iter().find(|one| one.name == *first && one.path.parts[0] != *first)?;
                if steps > STEPS_MAX {
                    return None;
                }
                join(&self.absolute(place, &one.path.parts, steps + 1)?, rest)
            }
        }
    }

    /// Returns the module that defines the item of a path from the root.
    fn defining_module(&self, parts: &[&'a str], steps: usize) -> ModulePath<'a> {
        let is_module = |length: &usize| self.modules.contains_key(&parts[..*length]);
        let length = (0..=parts.len()).take_while(is_module).last().unwrap_or(0);
        let (place, rest) = (parts[..length].to_vec(), &parts[length..]);
        let Some((name, rest)) = rest.split_first() else { return place };
        let module = &self.modules[&place];
        if module.defined.contains(name) || *name == "*" || steps > STEPS_MAX {
            return place;
        }
        if let Some(one) = module.uses.iter().find(|one| one.name == *name) {
            return match self.absolute(&place, &one.path.parts, 0) {
                Some(target) => self.defining_module(&[&target[..], rest].concat(), steps + 1),
                None => place,
            };
        }
        for glob in module.uses.iter().filter(|one| one.name == "*") {
            let (_, above) = glob.path.parts.split_last().unwrap_or((&"*", &[]));
            let Some(target) = self.absolute(&place, above, 0) else { continue };
            let home = self.defining_module(&[&target[..], &[name]].concat(), steps + 1);
            if self.modules[&home].defined.contains(name) {
                return home;
            }
        }
        place
    }
}

/// Reader of a file's modules.
struct Reader<'a, 't, 'm> {
    tokens: &'t [Token<'a>],
    at: usize,
    file: &'t str,
    modules: &'m mut BTreeMap<ModulePath<'a>, Module<'a>>,
    /// Modules in separate files.
    children: Vec<ModulePath<'a>>,
}

impl<'a> Reader<'a, '_, '_> {
    fn text(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.text)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |token| token.line)
    }

    /// Reads up to the end of a module.
    fn module(&mut self, place: &ModulePath<'a>) {
        let mut module = Module { file: self.file.to_owned(), ..Module::default() };
        let (mut depth, mut is_public) = (0, false);
        while self.at < self.tokens.len() {
            let was_public = std::mem::take(&mut is_public);
            let (text, next) = (self.text(0), self.text(1));
            match text {
                "#" if next == "[" || next == "!" => {
                    if self.attribute() {
                        self.skip_item();
                    }
                    continue;
                }
                "{" => depth += 1,
                "}" if depth == 0 => {
                    self.at += 1;
                    break;
                }
                "}" => depth -= 1,
                "pub" => {
                    is_public = true;
                    if next == "(" {
                        self.at += 1;
                        self.skip_group();
                        continue;
                    }
                }
                "use" if next != "<" => {
                    self.at += 1;
                    self.use_tree(&mut Vec::new(), was_public, &mut module.uses);
                    continue;
                }
                "mod" if is_word(next) => {
                    let child = [&place[..], &[next]].concat();
                    let is_inline = self.text(2) == "{";
                    self.at += 3;
                    if is_inline {
                        self.module(&child);
                    } else {
                        self.children.push(child);
                    }
                    continue;
                }
                "macro_rules" => {
                    module.defined.insert(self.text(2));
                }
                "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union" if depth == 0 => {
                    module.defined.insert(if next == "mut" { self.text(2) } else { next });
                }
                "::" if is_word(next) => {
                    // A path of another crate or of a type.
                    self.path();
                    continue;
                }
                word if is_word(word) && (self.at == 0 || self.tokens[self.at - 1].text != ".") => {
                    let line = self.line();
                    let parts = self.path();
                    module.words.entry(word).or_insert(line);
                    if parts.len() > 1 {
                        module.paths.push(Path { parts, line });
                    }
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
        self.modules.insert(place.clone(), module);
    }

    /// Reads a path, with or without a leading `::`.
    fn path(&mut self) -> Vec<&'a str> {
        let mut parts = Vec::new();
        self.at += usize::from(self.text(0) == "::");
        loop {
            parts.push(self.text(0));
            self.at += 1;
            if self.text(0) != "::" || !is_word(self.text(1)) {
                return parts;
            }
            self.at += 1;
        }
    }

    /// Reads a tree of `use` up to the following `;`, `,` or `}`.
    fn use_tree(&mut self, prefix: &mut Vec<&'a str>, is_public: bool, uses: &mut Vec<Use<'a>>) {
        let length = prefix.len();
        let line = self.line();
        loop {
            match self.text(0) {
                "" => return,
                "{" => {
                    while !matches!(self.text(0), "}" | "") {
                        self.at += 1;
                        self.use_tree(prefix, is_public, uses);
                    }
                    self.at += 1;
                    prefix.truncate(length);
                    self.at += usize::from(self.text(0) == ";" && length == 0);
                    return;
                }
                end @ ("," | ";" | "}" | "as") => {
                    let mut parts = prefix.split_off(length);
                    if !parts.is_empty() {
                        parts.splice(0..0, prefix.iter().copied());
                        if parts.last() == Some(&"self") {
                            parts.pop();
                        }
                        let name =
                            if end == "as" { self.text(1) } else { parts.last().copied().unwrap_or("") };
                        self.at += if end == "as" { 2 } else { 0 };
                        if !matches!(parts.first(), None | Some(&"::")) {
                            uses.push(Use { path: Path { parts, line }, name, is_public });
                        }
                    }
                    self.at += usize::from(self.text(0) == ";");
                    return;
                }
                "::" if prefix.is_empty() => prefix.push("::"),
                "::" => {}
                part => prefix.push(part),
            }
            self.at += 1;
        }
    }

    /// Skips an attribute. Reports whether it restricts the next item to tests or fuzzing.
    fn attribute(&mut self) -> bool {
        self.at += 1 + usize::from(self.text(1) == "!");
        let begin = self.at;
        self.skip_group();
        let words: Vec<&str> = self.tokens[begin..self.at].iter().map(|token| token.text).collect();
        let is_for_more = words.iter().any(|word| matches!(*word, "not" | "feature"));
        let is_for_tests = words.iter().any(|word| matches!(*word, "test" | "fuzzing"));
        words.get(1) == Some(&"cfg") && is_for_tests && !is_for_more
    }

    /// Skips a group in brackets of any kind, from its opening bracket.
    fn skip_group(&mut self) {
        let mut depth = 0;
        loop {
            match self.text(0) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                "" => return,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    /// Skips an item, a field, a statement or an arm.
    fn skip_item(&mut self) {
        while self.text(0) == "#" {
            self.attribute();
        }
        let is_item = matches!(
            self.text(0),
            "pub"
                | "use"
                | "mod"
                | "fn"
                | "struct"
                | "enum"
                | "trait"
                | "type"
                | "const"
                | "static"
                | "impl"
                | "unsafe"
                | "async"
                | "extern"
                | "macro_rules"
        );
        loop {
            match self.text(0) {
                "" | "}" => return,
                "{" => {
                    self.skip_group();
                    return;
                }
                "(" | "[" => {
                    self.skip_group();
                    continue;
                }
                end @ (";" | ",") if end == ";" || !is_item => {
                    self.at += 1;
                    return;
                }
                _ => self.at += 1,
            }
        }
    }
}

fn is_word(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
}
