//! Commands that moved to `larder-lab`.
//!
//! They are recognized before the command line is parsed, so that help, manual and completions do not show
//! them.

use crate::outcome::usage;

/// Old commands with their replacements.
const RENAMED: [(&[&str], &str); 5] = [
    (&["lab"], "larder-lab live"),
    (&["sim", "paper"], "larder-lab paper"),
    (&["sim", "run"], "larder-lab run"),
    (&["sim", "calibrate"], "larder-lab calibrate"),
    (&["sim", "validate"], "larder-lab validate"),
];

/// Returns an error that names the new command, if the arguments are an old command.
pub(crate) fn check_old_command(arguments: &[String]) -> Option<anyhow::Error> {
    let is_old = |old: &[&str]| old.len() <= arguments.len() && old.iter().eq(&arguments[..old.len()]);
    let (old, new) = RENAMED.into_iter().find(|(old, _)| is_old(old))?;
    let words: Vec<&str> =
        [new].into_iter().chain(arguments[old.len()..].iter().map(String::as_str)).collect();
    Some(usage(format!(
        "`larder {}` has moved to the separate program larder-lab, which is not part of the packages: run `{}` (in a checkout of larder, `cargo build --release -p larder-lab` builds it)",
        old.join(" "),
        words.join(" ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_commands_are_recognized_and_others_are_not() {
        let of = |text: &str| check_old_command(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let error = of("sim paper lard-fig07").expect("an old command").to_string();
        assert!(error.starts_with("`larder sim paper` has moved"), "{error}");
        assert!(error.contains("`larder-lab paper lard-fig07`"), "{error}");
        for other in ["sim", "sim faults --seeds 1", "labels", "demo lab"] {
            assert!(of(other).is_none(), "{other}");
        }
    }
}
