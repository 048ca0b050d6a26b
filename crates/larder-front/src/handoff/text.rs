//! What a log line says of requests that were handed off: kept for as long as their connections, and bounded together.

use super::first::Asked;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Of a request's target so much is kept, and of its method and host. Bytes; the rest is cut off.
const TARGET_BYTES_MAX: usize = 1_024;
const NAME_BYTES_MAX: usize = 255;
/// All texts together. Bytes; a connection that comes while so many are kept is logged without.
const ALL_BYTES_MAX: usize = 128 << 20;
/// What a text takes beside its bytes, about.
const TEXT_BYTES: usize = 96;

/// What a log line says of a request.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) method: Box<str>,
    pub(crate) target: Box<str>,
    pub(crate) host: Box<[u8]>,
    pub(crate) http10: bool,
    _charge: Charge,
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        let of = |text: &Self| (text.http10, text.method.len(), text.target.len());
        of(self) == of(other)
            && (&self.method, &self.target, &self.host) == (&other.method, &other.target, &other.host)
    }
}

/// Bytes of the budget; given back when dropped.
#[derive(Debug)]
struct Charge {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Relaxed);
    }
}

/// The budget of all texts.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    used: Arc<AtomicUsize>,
}

fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=text.len().min(bytes_max)).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

impl Texts {
    /// What will be said of a request; `None` if as much as may be kept is.
    pub(crate) fn of(&self, asked: &Asked<'_>) -> Option<Text> {
        let (method, target) = (cut(asked.method, NAME_BYTES_MAX), cut(asked.target, TARGET_BYTES_MAX));
        let host = &asked.host[..asked.host.len().min(NAME_BYTES_MAX)];
        let bytes = TEXT_BYTES + method.len() + target.len() + host.len();
        let charge = Charge { used: self.used.clone(), bytes };
        // Charged before it is looked at, so that threads do not pass the limit together; dropped, it is given back.
        let room = self.used.fetch_add(bytes, Relaxed) + bytes <= ALL_BYTES_MAX;
        room.then(|| Text {
            method: method.into(),
            target: target.into(),
            host: host.into(),
            http10: asked.minor == 0,
            _charge: charge,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_and_bounded_together() {
        let texts = Texts::default();
        let long = format!("/{}", "ä".repeat(20_000));
        let asked =
            Asked { method: "GET", target: &long, minor: 1, host: &[b'h'; 9_000], fields: Vec::new() };
        let one = texts.of(&asked).expect("room");
        assert_eq!((one.target.len(), one.host.len()), (1_023, 255), "no character is cut in two");
        let bytes = texts.used.load(Relaxed);
        let mut kept = vec![one];
        while let Some(text) = texts.of(&asked) {
            kept.push(text);
            assert!(texts.used.load(Relaxed) <= ALL_BYTES_MAX);
        }
        assert_eq!(kept.len(), ALL_BYTES_MAX / bytes);
        kept.truncate(1);
        assert_eq!(texts.used.load(Relaxed), bytes);
        assert!(texts.of(&asked).as_ref() == kept.first(), "the same is said, and there is room again");
    }
}
