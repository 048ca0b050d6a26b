//! The parameters of the directive `larder`.
//!
//! | parameter | content | default |
//! |---|---|---|
//! | `policy` | the policy | `lard-r` |
//! | `key` | the target of a request, with nginx's variables | `$host$request_uri` |
//! | `memory` | size of the shared memory | `64m` |
//! | `config` | file with more of the policy part of `larder.toml` | none |
//! | `state_file` | file that keeps the learned state while nginx does not run | none |
//! | `record_file` | file in which decisions are recorded, for `larder sim replay` | none |

use crate::plan::{Plan, PlanError};
use larder_core::dispatch::Admission;
use larder_core::{PolicyKind, Settings};
use larder_embed::{ConfigError, EmbeddedConfig, extra_input};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The default of `key`.
const KEY: &str = "$host$request_uri";
/// The default of `memory`. Bytes.
const MEMORY: usize = 64 << 20;
/// The largest `memory`. Bytes.
const MEMORY_MAX: usize = 64 << 30;
/// The largest file of `config`. Bytes.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// The policy of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicyConfig {
    pub(crate) settings: Settings,
    /// The target of a request, in nginx's language.
    pub(crate) key: String,
    pub(crate) plan: Plan,
    pub(crate) state_file: Option<PathBuf>,
    pub(crate) record_file: Option<PathBuf>,
}

/// The reason why a directive cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PolicyConfigError {
    #[error("invalid parameter \"{0}\": write NAME=VALUE, such as policy=lard-r")]
    NoValue(String),
    #[error(
        "unknown parameter \"{0}\": there are policy, key, memory, config, state_file and record_file; other keys of the policy \
        belong in the file of config="
    )]
    Unknown(String),
    #[error("duplicate parameter \"{0}\"")]
    Duplicate(String),
    #[error("key: it is empty: write key={KEY}, for example")]
    EmptyKey,
    #[error("memory: \"{0}\" is no size from 1m to 64g: write memory=64m, for example")]
    Memory(String),
    #[error("policy: {0}")]
    PolicyName(String),
    #[error("policy: {policy} cannot run inside nginx: {reason}; use lard-r or lard-cost, for example")]
    Policy { policy: PolicyKind, reason: &'static str },
    #[error("config: cannot read {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("config: {path}: {source}")]
    Embedded { path: PathBuf, source: ConfigError },
    #[error("config: {0}: nodes: the upstream lists the servers; remove this key")]
    Nodes(PathBuf),
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// The values of the parameters, as written.
#[derive(Debug, Default)]
struct Written<'a> {
    policy: Option<&'a str>,
    key: Option<&'a str>,
    memory: Option<&'a str>,
    config: Option<&'a str>,
    state_file: Option<&'a str>,
    record_file: Option<&'a str>,
}

impl<'a> Written<'a> {
    fn read(parameters: &[&'a str]) -> Result<Self, PolicyConfigError> {
        let mut written = Self::default();
        for parameter in parameters {
            let Some((name, value)) = parameter.split_once('=') else {
                return Err(PolicyConfigError::NoValue((*parameter).to_owned()));
            };
            let place = match name {
                "policy" => &mut written.policy,
                "key" => &mut written.key,
                "memory" => &mut written.memory,
                "config" => &mut written.config,
                "state_file" => &mut written.state_file,
                "record_file" => &mut written.record_file,
                _ => return Err(PolicyConfigError::Unknown(name.to_owned())),
            };
            if place.replace(value).is_some() {
                return Err(PolicyConfigError::Duplicate(name.to_owned()));
            }
        }
        Ok(written)
    }
}

impl PolicyConfig {
    /// Reads the parameters of a directive. `absolute` returns the absolute path for the name of a parameter and its value.
    pub(crate) fn parse(
        parameters: &[&str],
        absolute: impl Fn(&str, &str) -> PathBuf,
    ) -> Result<Self, PolicyConfigError> {
        let Written { policy, key, memory, config, state_file, record_file } = Written::read(parameters)?;
        let mut settings = match config.map(|path| absolute("config", path)) {
            Some(path) => settings(&path)?,
            None => Settings { queue_max: 0, ..defaults() },
        };
        if let Some(name) = policy {
            settings.policy = name.parse().map_err(|error: <PolicyKind as std::str::FromStr>::Err| {
                PolicyConfigError::PolicyName(error.to_string())
            })?;
        }
        if let Some(reason) = extra_input(settings.policy) {
            return Err(PolicyConfigError::Policy { policy: settings.policy, reason });
        }
        // The servers' max_conns limit the requests, unless the config sets a limit here too.
        if settings.admission == Admission::Auto {
            settings.admission = Admission::Unlimited;
        }
        let key = key.unwrap_or(KEY);
        if key.is_empty() {
            return Err(PolicyConfigError::EmptyKey);
        }
        let plan = Plan::new(size(memory)?, &settings)?;
        let state_file = state_file.map(|path| absolute("state_file", path));
        let record_file = record_file.map(|path| absolute("record_file", path));
        Ok(Self { settings, key: key.to_owned(), plan, state_file, record_file })
    }
}

fn defaults() -> Settings {
    "".parse::<EmbeddedConfig>().map(|config| config.settings).unwrap_or_default()
}

/// Reads the settings of a file.
fn settings(path: &Path) -> Result<Settings, PolicyConfigError> {
    let read = || {
        let bytes = fs::metadata(path)?.len();
        if bytes > CONFIG_BYTES_MAX {
            return Err(io::Error::other(format!("it has {bytes} bytes: at most {CONFIG_BYTES_MAX}")));
        }
        fs::read_to_string(path)
    };
    let text = read().map_err(|source| PolicyConfigError::File { path: path.to_owned(), source })?;
    let EmbeddedConfig { settings, nodes } =
        text.parse().map_err(|source| PolicyConfigError::Embedded { path: path.to_owned(), source })?;
    if nodes.is_empty() { Ok(settings) } else { Err(PolicyConfigError::Nodes(path.to_owned())) }
}

/// Reads a size as nginx writes it.
fn size(text: Option<&str>) -> Result<usize, PolicyConfigError> {
    let Some(text) = text else { return Ok(MEMORY) };
    let error = || PolicyConfigError::Memory(text.to_owned());
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: usize = digits.parse().map_err(|_| error())?;
    let bytes = number.checked_mul(1 << shift).ok_or_else(error)?;
    if (1 << 20..=MEMORY_MAX).contains(&bytes) { Ok(bytes) } else { Err(error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(parameters: &[&str]) -> Result<PolicyConfig, PolicyConfigError> {
        PolicyConfig::parse(parameters, |_, path| Path::new("/etc/nginx").join(path))
    }

    fn refusal(parameters: &[&str]) -> String {
        parse(parameters).expect_err("it cannot be used").to_string()
    }

    #[test]
    fn parameters_have_defaults_and_paths_are_absolute() {
        let config = parse(&[]).expect("it can be used");
        assert_eq!(
            (config.settings.policy, config.settings.admission),
            (PolicyKind::LardR, Admission::Unlimited)
        );
        assert_eq!((config.key.as_str(), config.plan.memory), (KEY, MEMORY));
        let config =
            parse(&["policy=lard-cost", "key=$uri?a=b", "memory=2g", "state_file=s", "record_file=/r"]);
        let config = config.expect("it can be used");
        assert_eq!((config.settings.policy, config.key.as_str()), (PolicyKind::LardCost, "$uri?a=b"));
        assert_eq!(config.plan.memory, 2 << 30);
        assert_eq!(config.state_file, Some(PathBuf::from("/etc/nginx/s")));
        assert_eq!(config.record_file, Some(PathBuf::from("/r")));
    }

    #[test]
    fn a_file_has_the_other_keys_of_the_policy() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("policy.toml");
        let with = |text: &str| {
            fs::write(&path, text).expect("written");
            parse(&[&format!("config={}", path.display())])
        };
        let config = with("policy = \"lard\"\n[policies.lard]\nt_high = 80\n[admission]\nlimit = 50\n")
            .expect("it can be used");
        assert_eq!((config.settings.policy, config.settings.t_high), (PolicyKind::Lard, 80));
        assert_eq!(config.settings.admission, Admission::Fixed(50));
        let wrong = with("[policies.lard]\nt_hgh = 80\n").expect_err("there is no such key").to_string();
        assert!(wrong.contains("t_hgh") && wrong.contains("policy.toml"), "{wrong}");
        let wrong = with("nodes = [\"a\"]\n").expect_err("nginx lists them").to_string();
        assert!(wrong.contains("nodes: the upstream lists the servers"), "{wrong}");
    }

    #[test]
    fn a_wrong_directive_names_the_parameter_and_the_remedy() {
        for (parameters, text) in [
            (&["lard-r"][..], "invalid parameter \"lard-r\": write NAME=VALUE"),
            (&["plicy=lard"], "unknown parameter \"plicy\""),
            (&["key=a", "key=b"], "duplicate parameter \"key\""),
            (&["key="], "key: it is empty"),
            (&["policy=lard-x"], "policy: "),
            (&["memory=64q"], "memory: \"64q\" is no size"),
            (&["memory=99999999999999999999g"], "is no size"),
            (&["memory=1m"], "is too little for this upstream: write memory="),
            (&["config=none.toml"], "config: cannot read /etc/nginx/none.toml"),
        ] {
            let refusal = refusal(parameters);
            assert!(refusal.starts_with(text) || refusal.contains(text), "{refusal}");
        }
    }

    proptest::proptest! {
        /// Any directive is accepted, or refused with a reason.
        #[test]
        fn any_directive_has_an_answer(
            values in proptest::collection::vec(("(policy|key|memory|state_file|record_file|\\PC{0,8})", "\\PC{0,12}|[0-9]{1,24}[kmgKMG]?"), 0..5),
        ) {
            let texts: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            if let Err(error) = parse(&texts) {
                proptest::prop_assert!(!error.to_string().is_empty());
            }
        }
    }

    #[test]
    fn a_policy_that_nginx_cannot_serve_is_refused_with_the_reason() {
        for policy in PolicyKind::ALL {
            let parameter = format!("policy={policy}");
            match extra_input(policy) {
                None => assert!(parse(&[&parameter]).is_ok(), "{policy}"),
                Some(reason) => assert!(refusal(&[&parameter]).contains(reason), "{policy}"),
            }
        }
    }
}
