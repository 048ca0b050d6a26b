//! `[switch.guard]` and `guard` of `[[switch.routes]]`.

use std::sync::Arc;

use larder_switch::{RouteGuard, Users};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::text::{Size, Texts};
use crate::config::values::ranges;

keys! {
    /// `guard`.
    table GuardSection;

    /// Networks whose clients are allowed; others get 403. []: all networks. The client is the sender of the
    /// connection. Behind a relay of switch.trust.relays, it is the last address in X-Forwarded-For that is not a
    /// trusted relay's.
    allow: Texts, example ["10.0.0.0/8", "2001:db8::/32"];
    /// Networks whose clients get 403, even if `allow` contains them.
    deny: Texts, example ["10.66.0.0/16"];
    /// File of accounts, one NAME:HASH per line. `htpasswd -B` writes such lines (bcrypt); hashes of `openssl passwd
    /// -6` are accepted too. Requests without a name and its password (HTTP basic authentication) get 401. The file
    /// is read again at a reload. Unset: no password.
    users: Option<String>, example "/etc/larder/users";
    /// Name of the protected space, which browsers show when they ask for the password: printable ASCII without
    /// quotes and backslashes.
    realm: String = "larder".to_owned();
    /// Whether nodes get Authorization. With false it is removed after the check, so that nodes may reply from their
    /// caches.
    pass_authorization: bool = false;
    /// Size of a request's body. Beyond it: 413. Unset: no limit.
    body_max: Option<Size>, example "10MiB";
}

/// Size limit of a file of accounts. Bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Reads the accounts of a file.
fn users(key: &str, path: &str) -> Result<Arc<Users>, Fault> {
    use std::io::Read as _;
    let hint = "make it: htpasswd -Bc FILE NAME";
    let read = || {
        let mut text = String::new();
        let file = std::fs::File::open(path)?;
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|error: std::io::Error| {
        let what = format!("cannot read '{}': {error}", path.escape_debug());
        Fault::new(key, what).hint(hint).of_machine()
    })?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(Fault::new(key, format!("'{}' is larger than 16 MiB", path.escape_debug())).of_machine());
    }
    let parsed = Users::parse(&text)
        .map_err(|error| Fault::new(key, format!("'{}', {error}", path.escape_debug())).of_machine())?;
    Ok(Arc::new(parsed))
}

/// Validates the guard at `at`; `None` if it has no conditions.
pub(crate) fn guard(at: &str, raw: &GuardSection) -> Result<Option<RouteGuard>, Fault> {
    let of = |key: &str| format!("{at}.{key}");
    let fits = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    if raw.realm.len() > 256 || !raw.realm.bytes().all(fits) {
        let what = format!("'{}' cannot stand in a header field", raw.realm.escape_debug());
        let hint = "at most 256 bytes of printable ASCII, without quotes and backslashes";
        return Err(Fault::new(of("realm"), what).hint(hint));
    }
    let guard = RouteGuard {
        allow: ranges(&of("allow"), &raw.allow)?,
        deny: ranges(&of("deny"), &raw.deny)?,
        users: raw.users.as_ref().map(|path| users(&of("users"), path)).transpose()?,
        realm: raw.realm.clone(),
        pass_authorization: raw.pass_authorization,
        body_bytes_max: raw.body_max.map(|max| max.0.get()),
    };
    if guard.users.is_none() && raw.pass_authorization {
        let what = "has no effect: no password is required";
        return Err(Fault::new(of("pass_authorization"), what).hint("give users, or leave it out"));
    }
    let demands = !guard.allow.is_empty()
        || !guard.deny.is_empty()
        || guard.users.is_some()
        || guard.body_bytes_max.is_some();
    Ok(demands.then_some(guard))
}

#[cfg(test)]
mod tests {
    use crate::config::Written;

    fn check(text: &str) -> Result<Vec<String>, String> {
        let head = "[switch]\nlisten = \"127.0.0.1:80\"\nnodes = [\"127.0.0.1:1\"]\n";
        let written = Written::parse("f", &format!("{head}{text}")).map_err(|error| error.to_string())?;
        let config = written.validate().map_err(|error| error.to_string())?;
        Ok(written.warnings(&config).iter().map(ToString::to_string).collect())
    }

    #[test]
    fn each_fault_names_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("users");
        std::fs::write(&file, "a:plain\n").unwrap();
        for (text, says) in [
            ("guard = { allow = [\"10.0.0.0/40\"] }\n", "switch.guard.allow"),
            ("guard = { deny = \"x\" }\n", "switch.guard.deny"),
            ("guard = { users = \"/nowhere/at/all\" }\n", "cannot read '/nowhere/at/all'"),
            (&format!("guard = {{ users = {file:?} }}\n"), "line 1: unknown kind of hash"),
            ("guard = { realm = 'a\"b' }\n", "switch.guard.realm"),
            ("guard = { pass_authorization = true }\n", "switch.guard.pass_authorization"),
            ("guard = { body_max = \"x\" }\n", "body_max"),
        ] {
            let error = check(text).expect_err(text);
            assert!(error.contains(says), "{error}\n{says}");
        }
    }

    #[test]
    fn a_guard_by_path_alone_is_warned_of() {
        let route =
            "[[switch.routes]]\nname = \"admin\"\npath = \"/admin*\"\nguard = { allow = \"10.0.0.0/8\" }\n";
        let warned = |text: &str| check(text).unwrap().iter().any(|warning| warning.contains("'/%61dmin'"));
        assert!(warned(route));
        assert!(!warned(&format!("guard = {{ allow = \"10.0.0.0/8\" }}\n{route}")));
        assert!(!warned(&route.replace("allow = \"10.0.0.0/8\"", "body_max = \"1MiB\"")));
        assert!(warned(&route.replace("path = \"/admin*\"", "host = \"admin.example\"")));
    }

    #[test]
    fn a_share_of_a_guarded_route_is_guarded() {
        let head = "[switch]\nlisten = \"127.0.0.1:80\"\nnodes = [\"127.0.0.1:1\"]\n";
        let routes = "[[switch.routes]]\nname = \"a\"\nhost = \"a.example\"\nguard = { deny = \"10.0.0.0/8\" }\n\
                      [[switch.routes]]\nname = \"b\"\nof = \"a\"\nshare = 5\n";
        let guards = |more: &str| {
            let written = Written::parse("f", &format!("{head}{routes}{more}")).unwrap();
            let switch = written.validate().unwrap().switch.unwrap().switch;
            switch.routes.iter().map(|route| route.edits.guard.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(guards(""), [true, true]);
        assert_eq!(guards("guard = {}\n"), [true, false]);
    }
}
