//! `[node.origin.sign]`.

use std::env;
use std::path::Path;

use http::Method;
use larder_edge::read_secret;
use larder_node::SigningKeys;

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::suggest::suggest;
use crate::config::text::Texts;

keys! {
    /// `[node.origin.sign]`.
    #[derive(PartialEq)]
    table OriginSignSection;

    /// Region of the store. Many stores other than Amazon's accept "us-east-1". Required.
    region: String, example "eu-central-1";
    /// Service name in the signatures.
    service: String = "s3".to_owned();
    /// Id of the access key. Unset: the environment variable AWS_ACCESS_KEY_ID.
    access_key: Option<String>, example "AKIAIOSFODNN7EXAMPLE";
    /// File with the secret key, readable by its owner only. It is read at the start and at each reload. Unset: the
    /// environment variable AWS_SECRET_ACCESS_KEY.
    secret_key_file: Option<String>, example "/etc/larder/store-secret-key";
    /// File with the session token of temporary keys. Unset: AWS_SESSION_TOKEN if both keys come from the
    /// environment, else no token.
    session_token_file: Option<String>, example "/etc/larder/store-session-token";
    /// Methods that are signed; requests with other methods get 405. Everyone who reaches the node has the rights of
    /// the keys, and PUT, POST or DELETE here lets everyone write.
    methods: Texts = Texts(["GET", "HEAD", "OPTIONS"].map(str::to_owned).to_vec());
}

const AT: &str = "node.origin.sign";

/// Returns the keys that sign requests to the origin.
pub(crate) fn signing(raw: &OriginSignSection) -> Result<SigningKeys, Fault> {
    signing_with(raw, |name| env::var(name).ok())
}

/// Does the work of [`signing`]. `variable` returns the values of environment variables.
fn signing_with(
    raw: &OriginSignSection,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<SigningKeys, Fault> {
    let key = |name: &str| format!("{AT}.{name}");
    for (name, value) in [("region", &raw.region), ("service", &raw.service)] {
        if value.is_empty()
            || !value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        {
            let what = format!("'{}' cannot be the {name} of a signature", value.escape_debug());
            return Err(Fault::new(key(name), what).hint("write region = \"eu-central-1\", service = \"s3\""));
        }
    }
    let from = |name: &str, given: Option<String>, env: &str| {
        given.or_else(|| variable(env)).filter(|value| !value.is_empty()).ok_or_else(|| {
            Fault::new(key(name), format!("missing, and the environment has no {env}"))
                .hint(format!("write {name}, or set {env}"))
                .of_machine()
        })
    };
    let in_file = |name: &str, file: &Option<String>| {
        let read = file.as_deref().map(Path::new).map(read_secret).transpose();
        let hint = "a file with one line, which only its owner may read";
        read.map_err(|fault| Fault::new(key(name), fault.to_string()).hint(hint).of_machine())
    };
    let access_key = from("access_key", raw.access_key.clone(), "AWS_ACCESS_KEY_ID")?;
    let secret_key = in_file("secret_key_file", &raw.secret_key_file)?;
    let secret_key = from("secret_key_file", secret_key, "AWS_SECRET_ACCESS_KEY")?;
    let of_environment = raw.access_key.is_none() && raw.secret_key_file.is_none();
    let token = in_file("session_token_file", &raw.session_token_file)?;
    let token =
        token.or_else(|| variable("AWS_SESSION_TOKEN").filter(|token| of_environment && !token.is_empty()));
    let fields = [
        ("access_key", Some(&access_key)),
        ("secret_key_file", Some(&secret_key)),
        ("session_token_file", token.as_ref()),
    ];
    for (name, value) in fields {
        if value.is_some_and(|value| !value.bytes().all(|byte| byte.is_ascii_graphic())) {
            let what = "has a space, a line end or another character that no key has";
            return Err(Fault::new(key(name), what).hint("one line, as the store has given it"));
        }
    }
    let signing = SigningKeys::new((&access_key, &secret_key), token, &raw.region, &raw.service);
    Ok(signing.with_methods(methods(raw)?))
}

/// Returns the methods that are signed.
fn methods(raw: &OriginSignSection) -> Result<Vec<Method>, Fault> {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"];
    if raw.methods.0.is_empty() {
        let fault = Fault::new(format!("{AT}.methods"), "empty: the node would refuse every request");
        return Err(fault.hint("write methods = [\"GET\", \"HEAD\"], or leave it out"));
    }
    let method = |(nth, name): (usize, &String)| {
        let known = KNOWN.contains(&name.as_str()).then(|| name.parse().ok()).flatten();
        known.ok_or_else(|| {
            let what = format!("'{}' is no method that can be signed", name.escape_debug());
            Fault::new(format!("{AT}.methods[{nth}]"), what).hint(suggest(name, &KNOWN))
        })
    };
    raw.methods.0.iter().enumerate().map(method).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    fn file(folder: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn keys_are_from_files_or_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let text = |path: PathBuf| Some(path.display().to_string());
        let secret = text(file(folder.path(), "secret", "in-file\n", 0o600));
        let token = text(file(folder.path(), "token", "token-in-file\n", 0o600));
        let environment = |name: &str| Some(format!("of-{name}"));
        let raw = OriginSignSection { region: "eu-1".to_owned(), ..OriginSignSection::default() };
        let all = signing_with(&raw, environment).unwrap();
        let keys = ("of-AWS_ACCESS_KEY_ID", "of-AWS_SECRET_ACCESS_KEY");
        assert_eq!(all, SigningKeys::new(keys, Some("of-AWS_SESSION_TOKEN".to_owned()), "eu-1", "s3"));
        let access_key = Some("own".to_owned());
        let raw = OriginSignSection { access_key, secret_key_file: secret, ..raw };
        // A token of the environment is for the keys of the environment.
        let files = signing_with(&raw, environment).unwrap();
        assert_eq!(files, SigningKeys::new(("own", "in-file"), None, "eu-1", "s3"));
        let raw = OriginSignSection { session_token_file: token, ..raw };
        let files = signing_with(&raw, |_| None).unwrap();
        assert_eq!(
            files,
            SigningKeys::new(("own", "in-file"), Some("token-in-file".to_owned()), "eu-1", "s3")
        );
        assert!(!format!("{files:?}").contains("in-file"));
    }

    #[test]
    fn each_mistake_is_named_and_no_secret_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let exposed = file(folder.path(), "exposed", "s3cret", 0o644).display().to_string();
        let lines = file(folder.path(), "lines", "s3cret\nmore", 0o600).display().to_string();
        let good = OriginSignSection {
            region: "eu-1".to_owned(),
            access_key: Some("a".to_owned()),
            secret_key_file: Some(file(folder.path(), "good", "s3cret", 0o600).display().to_string()),
            ..OriginSignSection::default()
        };
        type Spoil<'a> = Box<dyn Fn(&mut OriginSignSection) + 'a>;
        let cases: [(&str, &str, Spoil<'_>); 10] = [
            ("methods", "empty", Box::new(|raw| raw.methods.0.clear())),
            ("methods[0]", "did you mean 'GET'", Box::new(|raw| raw.methods.0[0] = "GETS".to_owned())),
            ("methods[1]", "no method", Box::new(|raw| raw.methods.0[1] = "TRACE".to_owned())),
            ("region", "region", Box::new(|raw| raw.region.clear())),
            ("service", "service", Box::new(|raw| raw.service = "a b".to_owned())),
            ("access_key", "AWS_ACCESS_KEY_ID", Box::new(|raw| raw.access_key = None)),
            ("access_key", "no key has", Box::new(|raw| raw.access_key = Some("a b".to_owned()))),
            ("secret_key_file", "AWS_SECRET_ACCESS_KEY", Box::new(|raw| raw.secret_key_file = None)),
            ("secret_key_file", "chmod 600", Box::new(|raw| raw.secret_key_file = Some(exposed.clone()))),
            (
                "session_token_file",
                "no key has",
                Box::new(|raw| raw.session_token_file = Some(lines.clone())),
            ),
        ];
        for (name, word, spoil) in cases {
            let mut raw = good.clone();
            spoil(&mut raw);
            let fault = signing_with(&raw, |_| None).unwrap_err();
            let text = format!("{fault:?}");
            assert!(text.contains(&format!("\"{AT}.{name}\"")), "{name}: {text}");
            assert!(text.contains(word) && !text.contains("s3cret"), "{text}");
        }
    }
}
