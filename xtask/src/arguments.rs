//! Arguments of the command line, taken one by one.

use std::env;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};

/// The arguments that no one has taken yet.
#[derive(Debug, Default)]
pub(crate) struct Arguments(Vec<String>);

impl Arguments {
    /// The arguments of this process.
    pub(crate) fn from_environment() -> Result<Arguments> {
        let texts = env::args_os().skip(1).map(|argument| {
            argument
                .into_string()
                .map_err(|it| Failure::Usage(format!("argument is not UTF-8: {}", it.display())))
        });
        Ok(Arguments(texts.collect::<Result<_>>()?))
    }

    /// Whether no argument is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the first argument if it is the flag `name`, and returns whether it was.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let found = self.0.first().is_some_and(|argument| argument == name);
        if found {
            self.0.remove(0);
        }
        found
    }

    /// Takes the first arguments if they are `name VALUE` or `name=VALUE`.
    pub(crate) fn option(&mut self, name: &str) -> Result<Option<String>> {
        let Some(first) = self.0.first() else { return Ok(None) };
        if let Some(value) = first.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
            let value = value.to_owned();
            self.0.remove(0);
            return Ok(Some(value));
        }
        if first != name {
            return Ok(None);
        }
        if self.0.len() < 2 {
            return Err(Failure::Usage(format!("{name} needs a value")));
        }
        self.0.remove(0);
        Ok(Some(self.0.remove(0)))
    }

    /// Takes the next argument, which must be there and must not be an option. Errors call it `name`.
    pub(crate) fn positional(&mut self, name: &str) -> Result<String> {
        match self.0.first() {
            None => Err(Failure::Usage(format!("{name} is missing"))),
            Some(option) if option.starts_with('-') => Err(unexpected(option)),
            Some(_) => Ok(self.0.remove(0)),
        }
    }

    /// Takes the next argument as a path from this process's working directory.
    pub(crate) fn path(&mut self, name: &str) -> Result<PathBuf> {
        absolute(self.positional(name)?)
    }

    /// Takes all arguments that are left, to be handed to another program.
    pub(crate) fn rest(self) -> Vec<String> {
        self.0
    }

    /// Takes all arguments that are left, none of which may be an option.
    pub(crate) fn positionals(self) -> Result<Vec<String>> {
        match self.0.iter().find(|argument| argument.starts_with('-')) {
            Some(option) => Err(unexpected(option)),
            None => Ok(self.0),
        }
    }

    /// Fails if an argument is left.
    pub(crate) fn finish(self) -> Result<()> {
        self.0.first().map_or(Ok(()), |argument| Err(unexpected(argument)))
    }
}

/// Resolves a path against this process's working directory; commands run in the root of the repository.
pub(crate) fn absolute(path: impl AsRef<Path>) -> Result<PathBuf> {
    std::path::absolute(&path).map_err(Failure::file(path))
}

fn unexpected(argument: &str) -> Failure {
    Failure::Usage(format!("unexpected argument '{argument}'"))
}

/// Arguments for a program: each default `(OPTION, VALUE)` that `given` does not have, then `given`.
pub(crate) fn with_defaults(defaults: &[(&str, &str)], given: Vec<String>) -> Vec<String> {
    let has = |option: &str| {
        given
            .iter()
            .any(|it| it.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')))
    };
    let absent = defaults.iter().filter(|(option, _)| !has(option));
    let mut all: Vec<String> =
        absent.flat_map(|(option, value)| [(*option).to_owned(), (*value).to_owned()]).collect();
    all.extend(given);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Arguments {
        Arguments(line.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn options_have_their_value_beside_them_or_joined() {
        let mut given = arguments("--seconds 5 --seconds=6 --keep http1");
        assert_eq!(given.option("--seconds").unwrap().as_deref(), Some("5"));
        assert_eq!(given.option("--seconds").unwrap().as_deref(), Some("6"));
        assert_eq!(given.option("--seconds").unwrap(), None);
        assert!(given.flag("--keep") && !given.flag("--keep"));
        assert_eq!(given.positional("TARGET").unwrap(), "http1");
        given.finish().unwrap();
    }

    #[test]
    fn wrong_arguments_are_named() {
        let message = |result: Result<()>| result.unwrap_err().to_string();
        assert_eq!(message(arguments("-p").option("-p").map(drop)), "-p needs a value");
        assert_eq!(message(arguments("").positional("FILE").map(drop)), "FILE is missing");
        assert_eq!(message(arguments("--x").positional("FILE").map(drop)), "unexpected argument '--x'");
        assert_eq!(message(arguments("a --x").positionals().map(drop)), "unexpected argument '--x'");
        assert_eq!(message(arguments("a").finish()), "unexpected argument 'a'");
    }

    #[test]
    fn a_default_gives_way_to_what_is_given() {
        let defaults = [("--cases", "1000000"), ("--seed", "1")];
        let all = |given: &str| with_defaults(&defaults, arguments(given).rest()).join(" ");
        assert_eq!(all(""), "--cases 1000000 --seed 1");
        assert_eq!(all("--seed 7"), "--cases 1000000 --seed 7");
        assert_eq!(all("--cases=5 --seeds 3"), "--seed 1 --cases=5 --seeds 3");
    }
}
