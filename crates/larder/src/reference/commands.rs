//! The page of commands.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory as _};

use super::{cell, check};
use crate::cli::Cli;
use crate::cmd::command_docs::visit_commands;

const PATH: &str = "docs/reference/commands.md";

const INTRODUCTION: &str = "\
# Commands

<!-- Generated: LARDER_WRITE=1 cargo test -p larder --lib reference -->

`larder COMMAND --help` shows the same texts, and `larder manual FOLDER` writes them as manual pages. `larder completions SHELL` prints
completions for a shell.
";

/// Begin of a paragraph with an example.
const EXAMPLE: &str = "For example: ";

/// Returns the page.
fn page() -> String {
    let mut text = INTRODUCTION.to_owned();
    visit_commands(Cli::command(), &mut |name, command| section(name, command, &mut text));
    text
}

/// Writes the section of a command.
fn section(name: &str, command: &Command, text: &mut String) {
    // Writing to a `String` cannot fail.
    let _ = write!(text, "\n## {name}\n");
    let about = command.get_long_about().or_else(|| command.get_about()).map(ToString::to_string);
    for paragraph in about.unwrap_or_default().split("\n\n") {
        let _ = match paragraph.trim().strip_prefix(EXAMPLE) {
            Some(example) => write!(text, "\n```sh\n{}\n```\n", example.trim()),
            None => write!(text, "\n{}\n", wrap(paragraph)),
        };
    }
    let _ = write!(text, "\n```text\n{}\n```\n", command.clone().render_usage());
    if let Some(notes) = command.get_after_help() {
        let _ = write!(text, "\n```text\n{}\n```\n", notes.to_string().trim());
    }
    let shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let args: Vec<&Arg> = command.get_arguments().filter(shown).collect();
    if args.is_empty() {
        return;
    }
    *text += "\n| argument | default | meaning |\n|---|---|---|\n";
    for arg in args {
        let _ = writeln!(text, "| {} | {} | {} |", code(&notation(arg)), default(arg), meaning(arg));
    }
}

/// Breaks a paragraph into lines.
fn wrap(paragraph: &str) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for word in paragraph.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > 120 {
            text.push('\n');
            column = 0;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += length;
    }
    text
}

fn code(text: &str) -> String {
    format!("`{}`", cell(text))
}

/// Returns an argument as it is written on the command line.
fn notation(arg: &Arg) -> String {
    let values: Vec<String> = if arg.get_action().takes_values() {
        let names = arg.get_value_names().unwrap_or_default();
        names.iter().map(ToString::to_string).collect()
    } else {
        Vec::new()
    };
    let values = values.join(" ");
    if arg.is_positional() {
        return values;
    }
    let short = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let long = arg.get_long().map(|long| format!("--{long}")).unwrap_or_default();
    let optional = arg.get_num_args().is_some_and(|number| number.min_values() == 0);
    match (values.is_empty(), optional) {
        (true, _) => format!("{short}{long}"),
        (false, true) => format!("{short}{long}[={values}]"),
        (false, false) => format!("{short}{long} {values}"),
    }
}

fn default(arg: &Arg) -> String {
    let values = arg.get_default_values();
    if !arg.get_action().takes_values() || values.is_empty() {
        return String::new();
    }
    let values: Vec<String> = values.iter().map(|value| value.to_string_lossy().into_owned()).collect();
    code(&values.join(","))
}

/// Returns the help of an argument, with its possible values.
fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let possible = if arg.get_action().takes_values() { arg.get_possible_values() } else { Vec::new() };
    let values: Vec<String> = possible
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}` ({})", value.get_name(), help.to_string().trim_end_matches('.')),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    let values = if values.is_empty() { String::new() } else { format!(" Values: {}.", values.join(", ")) };
    cell(&format!("{help}{values}"))
}

#[test]
fn the_page_has_every_command() {
    check(PATH, &page());
}
