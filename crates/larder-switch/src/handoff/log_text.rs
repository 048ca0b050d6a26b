//! Log texts of handed-off requests: kept as long as their connections, with a common budget.

use super::opening::RequestHeader;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Maximum sizes of the target, and of the method and host. Bytes; the rest is cut off.
const TARGET_BYTES_MAX: usize = 1_024;
const NAME_BYTES_MAX: usize = 255;
/// Maximum size of all texts. Bytes; further connections are logged without a text.
const ALL_BYTES_MAX: usize = 128 << 20;
/// Approximate overhead of a text. Bytes.
const TEXT_BYTES: usize = 96;

/// Log text of a request.
#[derive(Debug)]
pub(crate) struct LogText {
    pub(crate) method: Box<str>,
    pub(crate) target: Box<str>,
    pub(crate) host: Box<[u8]>,
    pub(crate) http10: bool,
    _charge: Charge,
}

impl PartialEq for LogText {
    fn eq(&self, other: &Self) -> bool {
        let of = |text: &Self| (text.http10, text.method.len(), text.target.len());
        of(self) == of(other)
            && (&self.method, &self.target, &self.host) == (&other.method, &other.target, &other.host)
    }
}

/// Bytes charged to the budget, returned on drop.
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

/// Budget of all texts.
#[derive(Debug, Default)]
pub(crate) struct LogTexts {
    used: Arc<AtomicUsize>,
}

fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=text.len().min(bytes_max)).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

impl LogTexts {
    /// Creates the log text of a request; `None` if the budget is used up.
    pub(crate) fn create(&self, header: &RequestHeader<'_>) -> Option<LogText> {
        let (method, target) = (cut(header.method, NAME_BYTES_MAX), cut(header.target, TARGET_BYTES_MAX));
        let host = &header.host[..header.host.len().min(NAME_BYTES_MAX)];
        let bytes = TEXT_BYTES + method.len() + target.len() + host.len();
        let charge = Charge { used: self.used.clone(), bytes };
        // The bytes are charged before the check, so that threads cannot exceed the limit together. Dropping the
        // charge returns them.
        let room = self.used.fetch_add(bytes, Relaxed) + bytes <= ALL_BYTES_MAX;
        room.then(|| LogText {
            method: method.into(),
            target: target.into(),
            host: host.into(),
            http10: header.minor == 0,
            _charge: charge,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_and_bounded_together() {
        let texts = LogTexts::default();
        let long = format!("/{}", "ä".repeat(20_000));
        let header = RequestHeader {
            method: "GET",
            target: &long,
            minor: 1,
            host: &[b'h'; 9_000],
            fields: Vec::new(),
        };
        let one = texts.create(&header).expect("room");
        assert_eq!((one.target.len(), one.host.len()), (1_023, 255), "no character is cut in two");
        let bytes = texts.used.load(Relaxed);
        let mut kept = vec![one];
        while let Some(text) = texts.create(&header) {
            kept.push(text);
            assert!(texts.used.load(Relaxed) <= ALL_BYTES_MAX);
        }
        assert_eq!(kept.len(), ALL_BYTES_MAX / bytes);
        kept.truncate(1);
        assert_eq!(texts.used.load(Relaxed), bytes);
        assert!(
            texts.create(&header).as_ref() == kept.first(),
            "the texts are equal, and there is room again"
        );
    }
}
