//! The preflight: checks that this machine has what a config requires, such as names, addresses, files,
//! secrets and rights.
//!
//! `larder check`, `larder doctor` and the start of each role do the same checks. An error prevents the start
//! of a role. After a warning the role starts, and a part of it does not work. A note gives information only.

mod files;
mod names;
mod ports;
mod requirements;

use larder_kernel::probe::{Facts, FindingState, Mechanism, Subject, evaluate};
use rustix::thread::{CapabilitySet, capabilities};

pub(crate) use self::names::ResolvedNames;
pub(crate) use self::requirements::{origin_authority, origin_urls};
use crate::config::{Config, ConfigError, Fault, Written};

/// The purpose of a preflight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A user checks whether the config can start.
    Check,
    /// A role starts.
    Start,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// A role cannot start.
    Error,
    /// A role starts, and part of it does not work.
    Warning,
    /// The finding is information only.
    Note,
}

impl Severity {
    /// Returns the word that precedes a finding.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// A result of the preflight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    pub(crate) fault: Fault,
}

impl Finding {
    pub(crate) const fn error(fault: Fault) -> Self {
        Self { severity: Severity::Error, fault }
    }

    pub(crate) const fn warning(fault: Fault) -> Self {
        Self { severity: Severity::Warning, fault }
    }

    pub(crate) const fn note(fault: Fault) -> Self {
        Self { severity: Severity::Note, fault }
    }
}

/// Errors of a preflight. The config is valid, but this machine does not meet its requirements.
#[derive(Debug, thiserror::Error)]
#[error("{}", lines(.0))]
pub(crate) struct PreflightError(Vec<ConfigError>);

fn lines(errors: &[ConfigError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Returns the findings for all roles of a config, in the order of its lines.
pub(crate) fn findings(written: &Written, config: &Config, purpose: Purpose) -> Vec<(Severity, ConfigError)> {
    examine(written, config, purpose).0
}

/// Does the work of [`findings`], and also returns the addresses of the host names.
pub(crate) fn examine(
    written: &Written,
    config: &Config,
    purpose: Purpose,
) -> (Vec<(Severity, ConfigError)>, ResolvedNames) {
    let requirements = requirements::collect(config);
    let mut found: Vec<Finding> = config.absent().cloned().map(Finding::error).collect();
    found.extend(ports::check(&requirements.addresses, written.path(), purpose));
    let absent: Vec<&str> = config.absent().map(Fault::key).collect();
    let files = requirements.files.iter().filter(|file| !absent.contains(&file.key.as_str()));
    found.extend(files.filter_map(files::check));
    let (unresolved, names) = names::check(&requirements.names, purpose);
    found.extend(unresolved);
    found.extend(check_user(config));
    if purpose == Purpose::Check {
        // A starting role logs these findings itself.
        found.extend(check_certificates(config));
        found.extend(check_rights(config));
    }
    let placed = found.into_iter().map(|Finding { severity, fault }| (severity, written.place(fault)));
    let mut placed: Vec<(Severity, ConfigError)> = placed.collect();
    placed.sort_by_key(|(_, error)| (error.line, error.column));
    (placed, names)
}

/// Refuses to start a role if a finding is an error.
///
/// # Errors
/// Returns the findings that are errors.
pub(crate) fn refuse(found: Vec<(Severity, ConfigError)>) -> Result<(), PreflightError> {
    let errors: Vec<ConfigError> = found
        .into_iter()
        .filter(|(severity, _)| *severity == Severity::Error)
        .map(|(_, error)| error)
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(PreflightError(errors)) }
}

/// Does the preflight for a role that starts, and logs warnings. `config` contains only this role.
///
/// # Errors
/// Returns the findings that are errors.
pub(crate) fn start(written: &Written, config: &Config) -> Result<(), PreflightError> {
    let found = findings(written, config, Purpose::Start);
    for (severity, finding) in &found {
        if *severity == Severity::Warning {
            tracing::warn!(%finding, "preflight: problem found");
        }
    }
    refuse(found)
}

/// Checks `switch.process.user`: only a privileged process can start a process of another user.
fn check_user(config: &Config) -> Option<Finding> {
    let run_as = config.switch.as_ref()?.run_as?;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    let may = capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
    if may || (run_as.user, run_as.group) == (user, group) {
        return None;
    }
    let what = format!("user {user} may not start a process as user {}, group {}", run_as.user, run_as.group);
    let hint = "start larder as root (or with CAP_SETUID and CAP_SETGID), or leave user out";
    Some(Finding::error(Fault::new("switch.process.user", what).hint(hint)))
}

/// Checks for certificates that have expired or expire soon.
fn check_certificates(config: &Config) -> Vec<Finding> {
    const SOON_S: i64 = 7 * 24 * 3600;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
    let of_switch = config.switch.as_ref().and_then(|role| role.switch.tls.as_ref());
    let of_node = config.node.as_ref().and_then(|role| role.node.tls.as_ref());
    let mut found = Vec::new();
    for (key, tls) in [("switch.tls.certificates", of_switch), ("node.tls.certificates", of_node)] {
        // Invalid files are errors of the config and are reported there.
        for certificate in tls.and_then(|tls| tls.check().ok()).unwrap_or_default() {
            let (file, left_s) = (&certificate.file, certificate.not_after.saturating_sub(now));
            let what = match left_s {
                ..0 => format!("the certificate in {file} has expired: clients refuse it"),
                0..SOON_S => format!("the certificate in {file} expires in {} days", left_s / 86_400),
                _ => continue,
            };
            let hint = "replace the file by a renewed certificate; a running larder reads it after at most tls.reload";
            found.push(Finding::warning(Fault::new(key, what).hint(hint)));
        }
    }
    found
}

/// Checks the rights and kernel features that handoff requires.
fn check_rights(config: &Config) -> Vec<Finding> {
    requirements::required_mechanisms(config)
        .into_iter()
        .filter_map(|requirement| find_missing(&requirement))
        .collect()
}

/// A handoff mechanism that a key of the config requires.
#[derive(Debug)]
pub(crate) struct RequiredMechanism {
    key: &'static str,
    mechanism: Mechanism,
    subject: Subject,
    /// Whether the role refuses to start without the mechanism.
    required: bool,
}

fn find_missing(requirement: &RequiredMechanism) -> Option<Finding> {
    let report = evaluate(&Facts::of_this_host(&requirement.subject), &requirement.subject);
    let lacks: Vec<&str> = report
        .missing_for(requirement.mechanism)
        .filter(|finding| finding.state == FindingState::Missing)
        .map(|finding| finding.what.as_str())
        .collect();
    if lacks.is_empty() {
        return None;
    }
    let what = format!(
        "handoff by {} is not possible here: this machine or user lacks {}",
        requirement.mechanism,
        lacks.join(", ")
    );
    let hint = "`larder doctor --config FILE` lists the remedies; without these requirements connections are relayed";
    let fault = Fault::new(requirement.key, what).hint(hint);
    Some(if requirement.required { Finding::error(fault) } else { Finding::warning(fault) })
}
