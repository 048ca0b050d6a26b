//! The syntax of nginx's config: directives with parameters, some of them with a block.

use crate::proxy::field::{KeyError, shown};

/// The deepest nesting of blocks.
const NESTING_MAX: usize = 64;

/// The end of the names of directives whose block is a program in Lua.
const LUA: &str = "_by_lua_block";

/// A directive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Directive {
    pub(super) name: String,
    pub(super) parameters: Vec<String>,
    /// The line of its name, from 1.
    pub(super) line: u32,
    /// The directives of its block.
    pub(super) block: Vec<Self>,
}

impl Directive {
    /// Returns the first parameter.
    pub(super) fn first(&self) -> Option<&str> {
        self.parameters.first().map(String::as_str)
    }

    /// Returns the value of a parameter such as `weight=5`.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find_map(|parameter| parameter.split_once('=').filter(|(key, _)| *key == name))
            .map(|(_, value)| value)
    }

    /// Returns whether a parameter without a value is there.
    pub(super) fn has(&self, name: &str) -> bool {
        self.parameters.iter().any(|parameter| parameter == name)
    }

    /// Returns the directive as the config has it, for messages.
    pub(super) fn written(&self) -> String {
        let mut text = self.name.clone();
        for parameter in &self.parameters {
            text.push(' ');
            text.push_str(parameter);
        }
        shown(&text)
    }

    /// Returns an error for this directive.
    pub(super) fn error(&self, problem: impl Into<String>, remedy: impl Into<String>) -> KeyError {
        error_at(self.line, format!("{}: {}", shown(&self.name), problem.into()), remedy)
    }
}

/// Returns an error for a line.
pub(super) fn error_at(line: u32, problem: impl Into<String>, remedy: impl Into<String>) -> KeyError {
    KeyError::new(format!("line {line}"), problem, remedy)
}

/// A token.
#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// `;`
    End,
    /// `{`
    Open,
    /// `}`
    Close,
}

/// Reads the directives of a config.
pub(super) fn parse(text: &str) -> Result<Vec<Directive>, KeyError> {
    let mut lexer = Lexer { rest: text.trim_start_matches('\u{feff}'), line: 1 };
    // The open blocks, from the outermost; the first is the file.
    let mut open = vec![Directive::default()];
    let mut current: Option<Directive> = None;
    while let Some((line, token)) = lexer.next_token()? {
        match (token, current.take()) {
            (Token::Word(name), None) => {
                current = Some(Directive { name, line, ..Directive::default() });
            }
            (Token::Word(word), Some(mut directive)) => {
                directive.parameters.push(word);
                current = Some(directive);
            }
            (Token::End, Some(directive)) => add(&mut open, directive),
            (Token::Open, Some(directive)) if directive.name.ends_with(LUA) => {
                lexer.skip_program(&directive)?;
                add(&mut open, directive);
            }
            (Token::Open, Some(directive)) if open.len() > NESTING_MAX => {
                return Err(
                    directive.error("blocks are nested too deep", format!("nest at most {NESTING_MAX}"))
                );
            }
            (Token::Open, Some(directive)) => open.push(directive),
            (Token::Close, None) => match open.pop() {
                Some(directive) if !open.is_empty() => add(&mut open, directive),
                _ => return Err(error_at(line, "unexpected '}'", "remove it, or add the '{' of its block")),
            },
            (Token::End, None) => return Err(error_at(line, "unexpected ';'", "remove it")),
            (Token::Open, None) => {
                return Err(error_at(line, "unexpected '{'", "write the name of the block before it"));
            }
            (Token::Close, Some(directive)) => return Err(directive.error("no ';' ends it", "add it")),
        }
    }
    if let Some(directive) = current {
        return Err(directive.error("no ';' ends it", "add it, or give the whole file"));
    }
    match <[Directive; 1]>::try_from(open) {
        Ok([file]) => Ok(file.block),
        Err(open) => {
            let innermost = open.last().cloned().unwrap_or_default();
            Err(innermost.error("no '}' ends its block", "add it, or give the whole file"))
        }
    }
}

/// Adds a directive to the innermost open block.
fn add(open: &mut [Directive], directive: Directive) {
    if let Some(block) = open.last_mut() {
        block.block.push(directive);
    }
}

struct Lexer<'t> {
    rest: &'t str,
    line: u32,
}

impl Lexer<'_> {
    /// Returns the next token with its line.
    fn next_token(&mut self) -> Result<Option<(u32, Token)>, KeyError> {
        self.skip_blank();
        let line = self.line;
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        let token = match first {
            ';' => Token::End,
            '{' => Token::Open,
            '}' => Token::Close,
            '"' | '\'' => return self.quoted(first).map(|word| Some((line, Token::Word(word)))),
            _ => return Ok(Some((line, Token::Word(self.bare())))),
        };
        self.take();
        Ok(Some((line, token)))
    }

    fn take(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let taken = chars.next()?;
        self.rest = chars.as_str();
        self.line += u32::from(taken == '\n');
        Some(taken)
    }

    /// Skips spaces and comments.
    fn skip_blank(&mut self) {
        let mut in_comment = false;
        while let Some(c) = self.rest.chars().next() {
            in_comment = if in_comment { c != '\n' } else { c == '#' };
            if !in_comment && !c.is_ascii_whitespace() {
                return;
            }
            self.take();
        }
    }

    /// Reads a word without quotes. `${name}` is a part of it.
    fn bare(&mut self) -> String {
        let mut word = String::new();
        let mut in_variable = false;
        while let Some(c) = self.rest.chars().next() {
            match c {
                '{' if word.ends_with('$') => in_variable = true,
                '}' if in_variable => in_variable = false,
                ';' | '{' | '}' => break,
                _ if c.is_ascii_whitespace() => break,
                _ => {}
            }
            self.take();
            word.push(c);
            if c == '\\'
                && let Some(escaped) = self.take()
            {
                word.push(escaped);
            }
        }
        word
    }

    /// Reads a word in quotes.
    fn quoted(&mut self, quote: char) -> Result<String, KeyError> {
        let line = self.line;
        self.take();
        let mut word = String::new();
        while let Some(c) = self.take() {
            match c {
                _ if c == quote => return Ok(word),
                '\\' => match self.take() {
                    Some(escaped @ ('"' | '\'' | '\\')) => word.push(escaped),
                    Some(escaped) => word.extend(['\\', escaped]),
                    None => break,
                },
                _ => word.push(c),
            }
        }
        Err(error_at(line, format!("no {quote} ends the text"), "add it"))
    }

    /// Skips a program in Lua up to the brace that ends its block. Braces in texts and comments of Lua do not count.
    fn skip_program(&mut self, directive: &Directive) -> Result<(), KeyError> {
        let mut depth = 1_u32;
        while let Some(c) = self.take() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                '"' | '\'' => self.skip_lua_text(c),
                '-' if self.rest.starts_with('-') => while self.take().is_some_and(|c| c != '\n') {},
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
        Err(directive.error("no '}' ends its block", "add it, or give the whole file"))
    }

    fn skip_lua_text(&mut self, quote: char) {
        while let Some(c) = self.take() {
            if c == '\\' {
                self.take();
            } else if c == quote || c == '\n' {
                return;
            }
        }
    }
}
