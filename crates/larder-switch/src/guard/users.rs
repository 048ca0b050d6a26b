//! Accounts for HTTP basic authentication (RFC 7617), read from a file of `name:hash` lines as `htpasswd` writes it.
//!
//! Password hashes are slow by design: bcrypt with cost 10 takes about 50 ms of CPU time. An account therefore
//! remembers a keyed digest of its verified password, and later requests with this password need no other hash. All
//! other passwords are hashed by a few threads with at most [`WAITING_MAX`] queued requests; further ones are refused
//! with 429. Wrong passwords therefore do not slow down verified clients.

use crate::failure::Failure;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha_crypt::{PasswordVerifier as _, ShaCrypt};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, OnceLock};
use tokio::sync::Semaphore;

/// Maximum number of accounts in a file.
const ACCOUNTS_MAX: usize = 65_536;
/// Maximum size of name and password with the colon. Bytes.
const CREDENTIALS_BYTES_MAX: usize = 1_024;
/// Maximum number of queued password checks in the process.
const WAITING_MAX: usize = 256;
/// Accepted bcrypt costs. A cost of 15 takes more than a second.
const COSTS: std::ops::RangeInclusive<u32> = 4..=15;
/// Accepted SHA-crypt rounds, and the default. A million rounds take about a second.
const ROUNDS: std::ops::RangeInclusive<u64> = 1_000..=1_000_000;
const ROUNDS_UNNAMED: u64 = 5_000;

/// Threads that check passwords: half of the processors, so that requests are served meanwhile.
static CHECKING: LazyLock<Semaphore> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    Semaphore::new((processors / 2).max(1))
});
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Error in a line of an accounts file. Fault of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct UsersError {
    /// Line number, from 1.
    pub line: usize,
    /// The fault and its remedy.
    pub what: String,
}

/// Password hash in the format of crypt(3).
#[derive(Clone, PartialEq, Eq)]
enum PasswordHash {
    /// `$2a$`, `$2b$`, `$2y$`.
    Bcrypt(String),
    /// `$5$` and `$6$`.
    ShaCrypt(String),
}

impl PasswordHash {
    fn parse(text: &str) -> Result<Self, String> {
        let advice = "write the account with htpasswd -B, or its hash with openssl passwd -6";
        if ["$2a$", "$2b$", "$2y$"].iter().any(|prefix| text.starts_with(prefix)) {
            let parts: bcrypt::HashParts =
                text.parse().map_err(|_| format!("no hash of bcrypt: {advice}"))?;
            return match COSTS.contains(&parts.get_cost()) {
                true => Ok(Self::Bcrypt(text.to_owned())),
                false => Err(format!("a cost of {} is out of range: 4 to 15", parts.get_cost())),
            };
        }
        if text.starts_with("$5$") || text.starts_with("$6$") {
            // Format: $id$[rounds=N$]salt$hash; the hash uses the 64 characters of crypt(3).
            let mut parts = text.rsplit('$');
            let hash = parts.next().unwrap_or("").as_bytes();
            let length = if text.starts_with("$5$") { 43 } else { 86 };
            let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"./".contains(byte);
            let whole = hash.len() == length && hash.iter().all(fits) && (3..=4).contains(&parts.count());
            return match (whole, rounds(text)) {
                (true, Some(rounds)) if ROUNDS.contains(&rounds) => Ok(Self::ShaCrypt(text.to_owned())),
                (true, Some(rounds)) => {
                    Err(format!("{rounds} rounds are out of range: {} to {}", ROUNDS.start(), ROUNDS.end()))
                }
                _ => Err(format!("no hash of SHA-crypt: {advice}")),
            };
        }
        let kind = match text {
            "" => "there is no hash",
            text if text.starts_with("$apr1$") || text.starts_with("$1$") => "a hash of MD5 is too weak",
            text if text.starts_with("{SHA}") => "a hash of SHA-1 without salt is too weak",
            _ => "unknown kind of hash",
        };
        Err(format!("{kind}: {advice}"))
    }

    /// Returns the approximate time to compute it. Microseconds.
    fn cost_us(&self) -> u64 {
        match self {
            Self::Bcrypt(text) => {
                let cost = text.parse::<bcrypt::HashParts>().map_or(0, |parts| parts.get_cost());
                50 << cost.min(32)
            }
            Self::ShaCrypt(text) => rounds(text).unwrap_or(0),
        }
    }

    fn verifies(&self, password: &[u8]) -> bool {
        match self {
            Self::Bcrypt(text) => bcrypt::verify(password, text).unwrap_or(false),
            Self::ShaCrypt(text) => ShaCrypt::default().verify_password(password, text.as_str()).is_ok(),
        }
    }
}

/// Returns the rounds of a SHA-crypt hash; `None` if they are not a number.
fn rounds(text: &str) -> Option<u64> {
    match text.split('$').nth(2).and_then(|part| part.strip_prefix("rounds=")) {
        Some(number) => number.parse().ok(),
        None => Some(ROUNDS_UNNAMED),
    }
}

struct Account {
    hash: PasswordHash,
    /// Digest of the password, once it was verified.
    verified_digest: OnceLock<[u64; 2]>,
}

/// Accounts with password hashes.
pub struct Users {
    accounts: BTreeMap<Box<[u8]>, Arc<Account>>,
    /// Account with the slowest hash.
    slowest: Arc<Account>,
    /// Random keys of the digests, which never leave the process.
    keys: [RandomState; 2],
}

impl Users {
    /// Parses `name:hash` lines. Empty lines and lines that begin with `#` are skipped.
    ///
    /// # Errors
    /// A line has no colon, an empty or repeated name, or a hash that is not bcrypt or SHA-crypt; or there are no
    /// accounts, or more than 65,536.
    pub fn parse(text: &str) -> Result<Self, UsersError> {
        let mut accounts = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            let fault = |what: String| UsersError { line: at + 1, what };
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, hash) =
                line.split_once(':').ok_or_else(|| fault("no colon: write NAME:HASH".to_owned()))?;
            if name.is_empty() {
                return Err(fault("the name is empty: write NAME:HASH".to_owned()));
            }
            let account =
                Account { hash: PasswordHash::parse(hash).map_err(fault)?, verified_digest: OnceLock::new() };
            if accounts.insert(Box::from(name.as_bytes()), Arc::new(account)).is_some() {
                return Err(fault(format!(
                    "the name '{}' is repeated: remove one of the lines",
                    name.escape_debug()
                )));
            }
            if accounts.len() > ACCOUNTS_MAX {
                return Err(fault(format!("more than {ACCOUNTS_MAX} accounts")));
            }
        }
        let slowest = accounts.values().max_by_key(|account: &&Arc<Account>| account.hash.cost_us());
        let Some(slowest) = slowest.cloned() else {
            return Err(UsersError { line: 1, what: "no accounts: write one with htpasswd -B".to_owned() });
        };
        Ok(Self { accounts, slowest, keys: [RandomState::new(), RandomState::new()] })
    }

    /// Checks the value of `Authorization`.
    ///
    /// # Errors
    /// [`Failure::Unauthorized`] if it is not an account's name and password, [`Failure::RateLimited`] if too many
    /// checks are queued.
    pub(crate) async fn check(&self, value: &[u8]) -> Result<(), Failure> {
        let credentials = credentials(value).ok_or(Failure::Unauthorized)?;
        let colon = credentials.iter().position(|byte| *byte == b':').ok_or(Failure::Unauthorized)?;
        let (name, password) = (&credentials[..colon], &credentials[colon + 1..]);
        let digest = [self.keys[0].hash_one(password), self.keys[1].hash_one(password)];
        let account = self.accounts.get(name);
        if account.is_some_and(|account| account.verified_digest.get() == Some(&digest)) {
            return Ok(());
        }
        // An unknown name takes as long as a wrong password, so that names cannot be guessed.
        let hashed = account.unwrap_or(&self.slowest).clone();
        let right = verify_in_turn(hashed, password.to_vec()).await?;
        match account {
            Some(account) if right => {
                let _ = account.verified_digest.set(digest);
                Ok(())
            }
            _ => Err(Failure::Unauthorized),
        }
    }
}

/// Verifies a password when a thread is free.
async fn verify_in_turn(account: Arc<Account>, password: Vec<u8>) -> Result<bool, Failure> {
    /// A place in the queue, freed also if the client leaves.
    struct WaitingPlace;
    impl Drop for WaitingPlace {
        fn drop(&mut self) {
            WAITING.fetch_sub(1, Relaxed);
        }
    }
    let before = WAITING.fetch_add(1, Relaxed);
    let place = WaitingPlace;
    if before >= WAITING_MAX {
        return Err(Failure::RateLimited);
    }
    let permit = CHECKING.acquire().await.map_err(|_| Failure::Internal)?;
    drop(place);
    // The task keeps the permit, because the thread keeps working if the client leaves.
    let work = move || {
        let right = account.hash.verifies(&password);
        drop(permit);
        right
    };
    tokio::task::spawn_blocking(work).await.map_err(|_| Failure::Internal)
}

/// Returns the credentials of a Basic `Authorization` value.
fn credentials(value: &[u8]) -> Option<Vec<u8>> {
    let (scheme, rest) = value.split_at_checked(6)?;
    let text = rest.trim_ascii();
    if !scheme.eq_ignore_ascii_case(b"basic ") || text.len() > CREDENTIALS_BYTES_MAX.div_ceil(3) * 4 {
        return None;
    }
    STANDARD.decode(text).ok()
}

impl PartialEq for Users {
    fn eq(&self, other: &Self) -> bool {
        let own = self.accounts.iter().map(|(name, account)| (name, &account.hash));
        own.eq(other.accounts.iter().map(|(name, account)| (name, &account.hash)))
    }
}

impl Eq for Users {}

impl fmt::Debug for Users {
    /// Omits names and hashes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Users({})", self.accounts.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // All of the password "secret"; bcrypt at the lowest cost.
    const BCRYPT: &str = "$2b$04$LTVb4mz/W8m1LohxOb.JXufIEZwn1x1Iqx35gVqS4.4TVgsSK35nW";
    const SHA256: &str = "$5$saltsalt$0IyaXrmV7.sGNS6tirgqHLqX/G.FBvgkYA.lpPdS5sA";
    const SHA512: &str =
        "$6$saltsalt$TVLlQcbpFVof5W3Yz4DTP6gRstiNuHwwTt6GLc1E5n0U0aDehy0S5knV8wiOQSpT0Y77vwPZN.Pq.H91p5hVO1";

    fn basic(credentials: &str) -> Vec<u8> {
        [b"Basic ", STANDARD.encode(credentials).as_bytes()].concat()
    }

    #[test]
    fn invalid_lines_are_named() {
        for (text, line, what) in [
            ("", 1, "no accounts"),
            ("# only words\n\n", 1, "no accounts"),
            ("a\n", 1, "no colon"),
            (&format!("a:{BCRYPT}\n:x\n"), 2, "the name is empty"),
            ("a:\n", 1, "there is no hash"),
            ("a:secret\n", 1, "unknown kind of hash"),
            ("a:$apr1$abcdefgh$0123456789012345678901\n", 1, "a hash of MD5 is too weak"),
            ("a:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n", 1, "a hash of SHA-1 without salt"),
            ("a:$2y$04$short\n", 1, "no hash of bcrypt"),
            (
                &format!("a:{}\n", SHA512.replace("$6$", "$6$rounds=999999999$")),
                1,
                "999999999 rounds are out",
            ),
            ("a:$6$\n", 1, "no hash of SHA-crypt"),
            (&format!("a:{}\n", BCRYPT.replace("$04$", "$20$")), 1, "a cost of 20 is out of range"),
            (&format!("a:{BCRYPT}\n\na:{BCRYPT}\n"), 3, "the name 'a' is repeated"),
        ] {
            let error = Users::parse(text).expect_err(text);
            assert!(error.line == line && error.what.starts_with(what), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn only_the_right_password_is_accepted() {
        let text = format!("a:{BCRYPT}\nb:{SHA256}\n# words\n\nc:{SHA512}\n");
        let users = Users::parse(&text).expect("accounts");
        for (credentials, right) in [
            ("a:secret", true),
            ("b:secret", true),
            ("c:secret", true),
            // Again, by the digest.
            ("a:secret", true),
            ("a:Secret", false),
            ("a:", false),
            ("a", false),
            ("d:secret", false),
            (":secret", false),
            ("b:secret:", false),
            ("c:secret", true),
        ] {
            let checked = users.check(&basic(credentials)).await;
            assert_eq!(checked.is_ok(), right, "{credentials}: {checked:?}");
        }
        assert_eq!(format!("{users:?}"), "Users(3)");
        assert_eq!(users, Users::parse(&text).expect("accounts"));
        assert_ne!(users, Users::parse(&text.replace("c:", "d:")).expect("accounts"));
    }

    #[test]
    fn a_value_of_another_scheme_or_form_holds_no_credentials() {
        assert_eq!(credentials(b"basic YTpi").as_deref(), Some(&b"a:b"[..]));
        assert_eq!(credentials(b"Basic   YTpi ").as_deref(), Some(&b"a:b"[..]));
        for value in ["", "Basic", "Bearer YTpi", "Basic YTp", "Basic \u{e9}", "BasicYTpi"] {
            assert_eq!(credentials(value.as_bytes()), None, "{value}");
        }
        assert_eq!(credentials(&basic(&"x".repeat(2_000))), None);
    }
}
