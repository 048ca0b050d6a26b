//! Request ids, which identify a request in the logs of all parties.

use super::error::EditError;
use super::fields::{field_name, is_framing_field, is_host};
use http::header::HeaderName;
use larder_edge::Fields;
use std::cell::RefCell;
use std::fs::File;
use std::io::Read as _;

/// Maximum length of an id from a client. Bytes.
const ID_BYTES_MAX: usize = 128;

/// Random bytes that a thread reads at a time.
const POOL_BYTES: usize = 1024;

/// Configuration of request ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId {
    pub(crate) header: HeaderName,
    /// Whether an id in the request is kept if it consists of 1 to 128 letters, digits and `-_.:/+=@~`. Otherwise
    /// every request gets a new id. Default true.
    pub accept: bool,
    /// Whether the reply carries the id. Default true.
    pub reply: bool,
}

impl RequestId {
    /// Returns a configuration with ids in this field.
    ///
    /// # Errors
    /// The name is invalid or has another meaning.
    pub fn new(header: &str) -> Result<Self, EditError> {
        let name = field_name(header)?;
        let reserved = [
            "cookie",
            "set-cookie",
            "authorization",
            "via",
            "x-forwarded-for",
            "x-forwarded-proto",
            "larder-target",
        ];
        if is_framing_field(&name) || is_host(&name) || reserved.contains(&name.as_str()) {
            let what = format!("'{name}' has another meaning");
            return Err(EditError::new(what, "write \"x-request-id\", or a name of your own"));
        }
        Ok(Self { header: name, accept: true, reply: true })
    }
}

/// Whether a text is a valid id: 1 to 128 letters, digits and `-_.:/+=@~`, which no log needs to escape.
fn is_request_id(text: &[u8]) -> bool {
    (1..=ID_BYTES_MAX).contains(&text.len())
        && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/+=@~".contains(byte))
}

/// Generator of request ids.
#[derive(Debug)]
pub(crate) struct RequestIds {
    pub(crate) config: RequestId,
    /// Random source, opened once.
    source: File,
}

struct RandomPool {
    bytes: [u8; POOL_BYTES],
    used: usize,
}

impl RequestIds {
    /// Opens the system's random source.
    pub(crate) fn new(config: RequestId) -> std::io::Result<Self> {
        Ok(Self { config, source: File::open("/dev/urandom")? })
    }

    /// Returns the id of a request: its own, or a new one.
    pub(crate) fn id_for(&self, fields: &impl Fields) -> Box<[u8]> {
        let mut from_request = fields.each(self.config.header.as_str());
        match (from_request.next(), from_request.next()) {
            (Some(id), None) if self.config.accept && is_request_id(id) => id.into(),
            _ => Box::new(self.random_id()),
        }
    }

    /// Returns 128 random bits as 32 hexadecimal digits, the form of a trace id in W3C Trace Context.
    fn random_id(&self) -> [u8; 32] {
        thread_local!(static POOL: RefCell<RandomPool> =
            const { RefCell::new(RandomPool { bytes: [0; POOL_BYTES], used: POOL_BYTES }) });
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        POOL.with_borrow_mut(|pool| {
            if pool.used + 16 > POOL_BYTES {
                // This does not fail on a running system. If it does, ids of this thread repeat.
                let _ = (&self.source).read_exact(&mut pool.bytes);
                pool.used = 0;
            }
            let bytes = &pool.bytes[pool.used..pool.used + 16];
            let digits: [u8; 32] =
                std::array::from_fn(|at| DIGITS[usize::from(bytes[at / 2] >> (4 * (1 - at % 2)) & 15)]);
            pool.used += 16;
            digits
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;
    use std::collections::HashSet;

    fn ids(accept: bool) -> RequestIds {
        let config = RequestId { accept, ..RequestId::new("X-Request-Id").expect("a name") };
        RequestIds::new(config).expect("chance")
    }

    fn request(ids: &[&str]) -> HeaderMap {
        let mut request = HeaderMap::new();
        for id in ids {
            request.add("X-Request-ID", id.as_bytes());
        }
        request
    }

    #[test]
    fn one_valid_id_from_the_request_is_kept() {
        assert_eq!(&*ids(true).id_for(&request(&["abc-1"])), b"abc-1");
        let long = "x".repeat(ID_BYTES_MAX + 1);
        for from_request in [&[][..], &["a b"], &["a\"b"], &[&*long], &["a", "b"]] {
            let id = ids(true).id_for(&request(from_request));
            assert_eq!(id.len(), 32, "{from_request:?}");
            assert!(is_request_id(&id));
        }
        assert_eq!(ids(false).id_for(&request(&["abc-1"])).len(), 32);
    }

    #[test]
    fn ids_differ_on_all_threads() {
        let source = ids(true);
        let mut all = HashSet::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..1000).map(|_| source.random_id()).collect::<Vec<_>>()))
                .collect();
            threads.into_iter().for_each(|thread| all.extend(thread.join().expect("no panic")));
        });
        assert_eq!(all.len(), 4000);
    }

    #[test]
    fn fields_with_another_meaning_are_refused() {
        for name in ["host", "Connection", "cookie", "x y", ""] {
            assert!(RequestId::new(name).is_err(), "{name}");
        }
    }
}
