//! A request's id: by which one finds it again in the logs of all who had a part in it.

use super::error::EditError;
use super::fields::{field_name, frames, is_host};
use http::header::HeaderName;
use larder_edge::Fields;
use std::cell::RefCell;
use std::fs::File;
use std::io::Read as _;

/// The longest id that is taken from a client. Bytes.
const ID_BYTES_MAX: usize = 128;

/// Bytes of chance that a thread gets at a time.
const POOL_BYTES: usize = 1024;

/// Which field carries ids, and whose are believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId {
    pub(crate) header: HeaderName,
    /// An id that a request brings is kept, if it is one of 1 to 128 letters, digits and `-_.:/+=@~`; else every request gets a new one. Default true.
    pub accept: bool,
    /// The client is told the id. Default true.
    pub reply: bool,
}

impl RequestId {
    /// Ids in this field.
    ///
    /// # Errors
    /// It is no name of a field, or one that has another meaning.
    pub fn new(header: &str) -> Result<Self, EditError> {
        let name = field_name(header)?;
        let taken = [
            "cookie",
            "set-cookie",
            "authorization",
            "via",
            "x-forwarded-for",
            "x-forwarded-proto",
            "larder-target",
        ];
        if frames(&name) || is_host(&name) || taken.contains(&name.as_str()) {
            let what = format!("'{name}' has another meaning");
            return Err(EditError::new(what, "write \"x-request-id\", or a name of your own"));
        }
        Ok(Self { header: name, accept: true, reply: true })
    }
}

/// Whether a text can be an id: 1 to 128 letters, digits and `-_.:/+=@~`. So no log needs to escape it.
fn is_request_id(text: &[u8]) -> bool {
    (1..=ID_BYTES_MAX).contains(&text.len())
        && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/+=@~".contains(byte))
}

/// Gives ids.
#[derive(Debug)]
pub(crate) struct RequestIds {
    pub(crate) config: RequestId,
    /// Where chance comes from, opened once.
    source: File,
}

struct Pool {
    bytes: [u8; POOL_BYTES],
    used: usize,
}

impl RequestIds {
    /// Needs the system's source of chance.
    pub(crate) fn new(config: RequestId) -> std::io::Result<Self> {
        Ok(Self { config, source: File::open("/dev/urandom")? })
    }

    /// The id of a request: the one it brings, or a new one.
    pub(crate) fn of(&self, fields: &impl Fields) -> Box<[u8]> {
        let mut brought = fields.each(self.config.header.as_str());
        match (brought.next(), brought.next()) {
            (Some(id), None) if self.config.accept && is_request_id(id) => id.into(),
            _ => Box::new(self.fresh()),
        }
    }

    /// 128 bits of chance in 32 hexadecimal digits, which is also what a trace's id is in W3C Trace Context.
    fn fresh(&self) -> [u8; 32] {
        thread_local!(static POOL: RefCell<Pool> =
            const { RefCell::new(Pool { bytes: [0; POOL_BYTES], used: POOL_BYTES }) });
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        POOL.with_borrow_mut(|pool| {
            if pool.used + 16 > POOL_BYTES {
                // Does not fail on a system that runs; if it does, ids are those of this thread's last pool again.
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
    fn what_a_request_brings_is_kept_if_it_is_one_id() {
        assert_eq!(&*ids(true).of(&request(&["abc-1"])), b"abc-1");
        let long = "x".repeat(ID_BYTES_MAX + 1);
        for brought in [&[][..], &["a b"], &["a\"b"], &[&*long], &["a", "b"]] {
            let id = ids(true).of(&request(brought));
            assert_eq!(id.len(), 32, "{brought:?}");
            assert!(is_request_id(&id));
        }
        assert_eq!(ids(false).of(&request(&["abc-1"])).len(), 32);
    }

    #[test]
    fn ids_differ_on_all_threads() {
        let source = ids(true);
        let mut all = HashSet::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..1000).map(|_| source.fresh()).collect::<Vec<_>>()))
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
