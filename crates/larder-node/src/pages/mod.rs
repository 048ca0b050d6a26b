//! Stored replies of an origin: a page for each target, with one variant for each selection of request headers.
//!
//! A page is stored and evicted as a whole: one target, one entry, one size. It is charged the bytes of all
//! bodies and headers of its variants. It is also charged 64 bytes for each piece of a body, and 512 bytes for
//! itself and for each variant.

mod incoming_body;
mod tags;

pub(crate) use incoming_body::{BodyAbort, BodyReader, IncomingBody};

use crate::http::cache_control::Directives;
use crate::http::condition::Validators;
use crate::http::fields;
use crate::http::freshness::{Freshness, ReceiptTime};
use bytes::Bytes;
use http::header::{self, HeaderName};
use http::{HeaderMap, StatusCode};
use larder_core::TargetId;
use std::sync::Arc;

/// Bytes that a page or a variant is charged besides its contents.
const CHARGE: u64 = 512;
/// Bytes that a piece is charged besides its contents.
const PIECE_CHARGE: u64 = 64;

/// The stored replies of one target.
#[derive(Debug)]
pub(crate) struct Page {
    /// Host and target.
    pub(crate) name: Box<[u8]>,
    /// The id by which the switch knows the target.
    pub(crate) target_id: Option<TargetId>,
    /// The variants, newest first.
    variants: Vec<Arc<Variant>>,
}

/// A reply that is stored, or that is being received to be stored.
#[derive(Debug)]
pub(crate) struct Variant {
    pub(crate) status: StatusCode,
    /// The header without hop-by-hop fields, `Age` and `Content-Length`.
    pub(crate) headers: HeaderMap,
    /// The request's values of the fields that the reply depends on (`Vary`).
    vary_fields: Box<[VaryField]>,
    /// Whether a request with `Authorization` fetched or validated the reply.
    pub(crate) by_authorization: bool,
    /// Whether a request with credentials of any kind fetched or validated the reply.
    pub(crate) by_credentials: bool,
    pub(crate) freshness: Freshness,
    pub(crate) body: PageBody,
}

/// A field that a reply depends on, and its value in the request.
type VaryField = (HeaderName, Option<Box<[u8]>>);

/// The body of a reply.
#[derive(Clone, Debug)]
pub(crate) enum PageBody {
    /// The complete body.
    Whole { pieces: Arc<[Bytes]>, len: u64 },
    /// A body that is being received.
    Incoming(Arc<IncomingBody>),
}

impl Page {
    /// Returns a page with another variant. The variant replaces one for the same requests, and the oldest one
    /// beyond `variants_max`. If the origin has changed the fields in `Vary`, the older variants are dropped.
    pub(crate) fn with_variant(
        earlier: Option<&Self>,
        (name, target_id): (&[u8], Option<TargetId>),
        variant: &Arc<Variant>,
        variants_max: usize,
    ) -> Self {
        let same_fields = |other: &&Arc<Variant>| {
            other.vary_fields.len() == variant.vary_fields.len()
                && other.vary_fields.iter().zip(&variant.vary_fields).all(|(a, b)| a.0 == b.0)
                && other.vary_fields != variant.vary_fields
        };
        let others = earlier.iter().flat_map(|page| &page.variants).filter(same_fields).cloned();
        let mut variants = vec![Arc::clone(variant)];
        variants.extend(others.take(variants_max - 1));
        Self { name: name.into(), target_id: target_id.or(earlier.and_then(|page| page.target_id)), variants }
    }

    /// Returns the variant for a request (RFC 9111 section 4.1).
    pub(crate) fn select(&self, request: &HeaderMap) -> Option<&Arc<Variant>> {
        self.variants.iter().find(|variant| variant.matches(request))
    }

    /// Returns the fields that the newest variant depends on.
    pub(crate) fn vary_fields(&self) -> impl Iterator<Item = &HeaderName> {
        self.variants.iter().take(1).flat_map(|variant| variant.vary_fields.iter().map(|(name, _)| name))
    }

    /// Returns the host and the path with query from the page's name, which [`crate::origin`] creates.
    pub(crate) fn host_and_target(&self) -> Option<(&str, &str)> {
        let name = std::str::from_utf8(&self.name).ok()?;
        let (_, rest) = name.split_once('\0')?;
        Some((rest.split('\0').next()?, rest.rsplit('\0').next()?))
    }

    /// Returns whether one of the variants has a tag.
    pub(crate) fn has_tag(&self, tag: &str) -> bool {
        self.variants.iter().any(|variant| tags::has(&variant.headers, tag))
    }

    /// Returns the length in bytes of the newest variant.
    pub(crate) fn len(&self) -> u64 {
        self.variants.first().and_then(|variant| variant.len()).unwrap_or(0)
    }

    /// Returns the bytes that the page is charged.
    pub(crate) fn charge(&self) -> u64 {
        CHARGE + self.name.len() as u64 + self.variants.iter().map(|variant| variant.charge()).sum::<u64>()
    }
}

impl Variant {
    /// Creates the reply to a request with the headers `request`; `None` if it depends on more fields than are
    /// compared.
    pub(crate) fn new(
        status: StatusCode,
        mut headers: HeaderMap,
        request: &HeaderMap,
        freshness: Freshness,
        body: PageBody,
    ) -> Option<Self> {
        let names = fields::vary_fields(&headers)?;
        let vary_fields = names.into_iter().map(|name| {
            let value = fields::comparable_value(request, &name);
            (name, value)
        });
        let vary_fields = vary_fields.collect();
        headers.remove(header::AGE);
        headers.remove(header::CONTENT_LENGTH);
        let by_authorization = request.contains_key(header::AUTHORIZATION);
        let by_credentials = fields::has_credentials(request);
        Some(Self { status, headers, vary_fields, by_authorization, by_credentials, freshness, body })
    }

    /// Returns the same reply with its complete body.
    pub(crate) fn with_body(&self, body: PageBody) -> Self {
        let (headers, vary_fields) = (self.headers.clone(), self.vary_fields.clone());
        let Self { status, by_authorization, by_credentials, freshness, .. } = *self;
        Self { status, headers, vary_fields, by_authorization, by_credentials, freshness, body }
    }

    /// Returns the same reply after a validation that counts for one client only, with other headers.
    pub(crate) fn with_private_validation(&self, mut headers: HeaderMap, received: ReceiptTime) -> Self {
        let freshness = self.freshness.with_age(&headers, received);
        headers.remove(header::AGE);
        let (vary_fields, body) = (self.vary_fields.clone(), self.body.clone());
        let Self { status, by_authorization, by_credentials, .. } = *self;
        Self { status, headers, vary_fields, by_authorization, by_credentials, freshness, body }
    }

    /// Returns the same reply after a validation by a matching request with the headers `request`. `headers`
    /// replace the stored ones; their `Vary` may name more fields. `None` if they name more than are compared.
    pub(crate) fn with_validation(
        &self,
        headers: HeaderMap,
        request: &HeaderMap,
        freshness: Freshness,
    ) -> Option<Self> {
        let mut validated = Self::new(self.status, headers, request, freshness, self.body.clone())?;
        validated.by_authorization |= self.by_authorization;
        validated.by_credentials |= self.by_credentials;
        Some(validated)
    }

    /// Returns whether the reply matches a request with these headers, by `Vary`.
    pub(crate) fn matches(&self, request: &HeaderMap) -> bool {
        self.vary_fields.iter().all(|(name, value)| fields::comparable_value(request, name) == *value)
    }

    /// Returns whether a request that waited for another request's reply may use this reply. It may if a stored
    /// reply could be reused without validation (RFC 9111 section 4). A reply to a request with `Authorization`
    /// gets here only if section 3.5 allows it to be stored.
    pub(crate) fn is_shareable_with(&self, request: &HeaderMap, requested: &Directives, now_ms: u64) -> bool {
        self.matches(request) && self.freshness.may_serve_waiters(now_ms, requested)
    }

    /// Returns whether the reply has a validator, so that the origin can validate it.
    pub(crate) fn has_validator(&self) -> bool {
        self.headers.contains_key(header::ETAG) || self.headers.contains_key(header::LAST_MODIFIED)
    }

    /// Returns a reader of a body that is being received; `None` for a complete body. Fails if the beginning of
    /// the body has been dropped.
    pub(crate) fn open_reader(&self) -> Result<Option<BodyReader>, ()> {
        match &self.body {
            PageBody::Whole { .. } => Ok(None),
            PageBody::Incoming(incoming) => incoming.open_reader().map(Some).ok_or(()),
        }
    }

    /// Returns the length of the body in bytes, if it is known.
    pub(crate) fn len(&self) -> Option<u64> {
        match &self.body {
            PageBody::Whole { len, .. } => Some(*len),
            PageBody::Incoming(incoming) => incoming.expected(),
        }
    }

    /// Returns the validators for preconditions; `None` if the reply has none.
    pub(crate) fn validators(&self) -> Option<Validators<'_>> {
        let tag = self.headers.get(header::ETAG).map_or(&b""[..], |value| value.as_bytes());
        let weak = tag.starts_with(b"W/");
        let quoted = tag.strip_prefix(b"W/").unwrap_or(tag);
        let opaque = quoted.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).unwrap_or_default();
        let modified = self.headers.get(header::LAST_MODIFIED).and_then(|value| value.to_str().ok());
        let modified = modified.and_then(|text| httpdate::parse_http_date(text).ok());
        let modified = modified.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        if opaque.is_empty() && modified.is_none() {
            return None;
        }
        let modified = modified.and_then(|since| i64::try_from(since.as_secs()).ok());
        Some(Validators { opaque, strong: !weak && !opaque.is_empty(), modified })
    }

    /// Returns the bytes that the reply is charged without its body.
    pub(crate) fn head_charge(&self) -> u64 {
        let vary_fields = self.vary_fields.iter().map(|(name, value)| {
            (name.as_str().len() + value.as_ref().map_or(0, |value| value.len()) + 48) as u64
        });
        CHARGE + fields::header_bytes(&self.headers) + vary_fields.sum::<u64>()
    }

    fn charge(&self) -> u64 {
        let body = match &self.body {
            PageBody::Whole { pieces, len } => len + pieces.len() as u64 * PIECE_CHARGE,
            PageBody::Incoming(_) => 0,
        };
        self.head_charge() + body
    }
}

impl PageBody {
    pub(crate) fn whole(pieces: Vec<Bytes>) -> Self {
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self::Whole { pieces: pieces.into(), len }
    }
}

#[cfg(test)]
mod sharing_table;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::freshness::FreshnessDefaults;
    use http::HeaderValue;
    use std::time::SystemTime;

    fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    fn variant(vary: &'static str, request: &HeaderMap, body: &'static [u8]) -> Arc<Variant> {
        let headers = map(&[("vary", vary), ("cache-control", "max-age=60"), ("etag", "\"a\"")]);
        let reply = (StatusCode::OK, &headers);
        let received = ReceiptTime { time: SystemTime::now(), now_ms: 0, delay: 0 };
        let freshness = Freshness::of_reply(request, reply, received, FreshnessDefaults::default()).unwrap();
        let body = PageBody::whole(vec![Bytes::from_static(body)]);
        Arc::new(Variant::new(StatusCode::OK, headers, request, freshness, body).unwrap())
    }

    #[test]
    fn variants_are_selected_by_the_fields_of_vary() {
        let (de, en, none) = (map(&[("accept-language", "de")]), map(&[("accept-language", "en")]), map(&[]));
        let page = Page::with_variant(None, (b"/", None), &variant("accept-language", &de, b"ja"), 2);
        assert!(page.select(&de).is_some() && page.select(&en).is_none() && page.select(&none).is_none());
        let page = Page::with_variant(Some(&page), (b"/", None), &variant("accept-language", &en, b"yes"), 2);
        assert_eq!((page.select(&de).unwrap().len(), page.select(&en).unwrap().len()), (Some(2), Some(3)));
        let page = Page::with_variant(Some(&page), (b"/", None), &variant("accept-language", &none, b"?"), 2);
        assert!(page.select(&de).is_none(), "the oldest goes beyond the limit");
        let page =
            Page::with_variant(Some(&page), (b"/", None), &variant("accept-language", &en, b"newer"), 2);
        assert_eq!((page.variants.len(), page.select(&en).unwrap().len()), (2, Some(5)));
        let page = Page::with_variant(Some(&page), (b"/", None), &variant("accept", &en, b"other"), 2);
        assert_eq!(page.variants.len(), 1, "the origin chooses by something else now");
    }

    #[test]
    fn the_size_of_a_page_counts_all_its_contents() {
        let request = map(&[]);
        let (small, large) = (variant("", &request, b""), variant("", &request, b"0123456789"));
        let page = |variant| Page::with_variant(None, (b"/x", None), &variant, 1).charge();
        assert_eq!(page(large) - page(small), 10);
    }
}
