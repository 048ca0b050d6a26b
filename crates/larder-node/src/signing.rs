//! Signatures of requests to a store that requires AWS Signature Version 4, such as Amazon S3, MinIO or Ceph.
//!
//! The node signs each attempt when it is sent. It signs `Host`, `Content-Type`, `Content-MD5` and all
//! `x-amz-*` fields, as S3 demands. It does not sign conditions, `Range` and the fields that proxies add,
//! because a relay between node and store may change them.
//!
//! | body | signed payload hash |
//! |---|---|
//! | none | the digest of the empty body |
//! | the client sends its digest, `UNSIGNED-PAYLOAD` or `STREAMING-UNSIGNED-PAYLOAD-TRAILER` | the same value |
//! | the client signs each chunk (`STREAMING-AWS4-...`) | cannot be signed again: the request is refused |
//! | any other | `UNSIGNED-PAYLOAD`, since the body is sent as it arrives |

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings,
    UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4;
use http::header::{self, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method};
use std::borrow::Cow;
use std::time::SystemTime;

const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");

/// Fields of a client's own signature.
pub(crate) static SIGNATURE: [HeaderName; 3] = [
    header::AUTHORIZATION,
    HeaderName::from_static("x-amz-date"),
    HeaderName::from_static("x-amz-security-token"),
];

/// The keys that sign requests to the origin.
#[derive(Clone, Debug, PartialEq)]
pub struct SigningKeys {
    /// The keys. Debug output hides the secret ones.
    credentials: Credentials,
    region: String,
    service: String,
    /// Methods of requests that are signed. Requests with other methods are refused.
    methods: Vec<Method>,
}

/// A request that cannot be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SigningError;

impl SigningKeys {
    /// Creates the keys for a service in a region; S3 is "s3". Signs GET, HEAD and OPTIONS, because every
    /// client of the node gets the rights of the keys.
    pub fn new(
        (access_key, secret_key): (&str, &str),
        session_token: Option<String>,
        region: &str,
        service: &str,
    ) -> Self {
        let credentials = Credentials::new(access_key, secret_key, session_token, None, "larder");
        let methods = vec![Method::GET, Method::HEAD, Method::OPTIONS];
        Self { credentials, region: region.to_owned(), service: service.to_owned(), methods }
    }

    /// Restricts signing to these methods.
    #[must_use]
    pub fn with_methods(self, methods: Vec<Method>) -> Self {
        Self { methods, ..self }
    }

    pub(crate) fn permits(&self, method: &Method) -> bool {
        self.methods.contains(method)
    }

    /// Returns the permitted methods as a list, for example for `Allow`.
    pub(crate) fn allowed_methods(&self) -> String {
        self.methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Signs a request whose header is complete. A request with a presigned URL (`X-Amz-Signature`) is not
    /// changed, because stores refuse two signatures.
    ///
    /// # Errors
    /// Fails if a signed field is not UTF-8 or the client signs each chunk of the body.
    pub(crate) fn sign(
        &self,
        (method, target): (&Method, &PathAndQuery),
        headers: &mut HeaderMap,
        has_body: bool,
        now: SystemTime,
    ) -> Result<(), SigningError> {
        if target.query().is_some_and(is_presigned) {
            return Ok(());
        }
        for name in &SIGNATURE {
            headers.remove(name);
        }
        let body = payload_hash(headers.remove(CONTENT_SHA256).as_ref(), has_body)?;
        let identity = self.credentials.clone().into();
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(&self.service)
            .time(now)
            .settings(self.settings())
            .build()
            .map_err(|_| SigningError)?
            .into();
        let mut signed = Vec::new();
        for (name, value) in headers.iter().filter(|(name, _)| is_signed(name)) {
            signed.push((name.as_str(), std::str::from_utf8(value.as_bytes()).map_err(|_| SigningError)?));
        }
        let uri = format!("https://larder{}", self.canonical_target(target));
        let request = SignableRequest::new(method.as_str(), uri, signed.into_iter(), body);
        let output = sign(request.map_err(|_| SigningError)?, &params).map_err(|_| SigningError)?;
        let (made, _) = output.into_parts().0.into_parts();
        for field in made {
            let mut value = HeaderValue::from_str(field.value()).map_err(|_| SigningError)?;
            value.set_sensitive(true);
            headers.insert(HeaderName::from_static(field.name()), value);
        }
        Ok(())
    }

    pub(crate) fn is_s3(&self) -> bool {
        self.service.starts_with("s3")
    }

    fn settings(&self) -> SigningSettings {
        let mut settings = SigningSettings::default();
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        if self.is_s3() {
            settings.percent_encoding_mode = PercentEncodingMode::Single;
            settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        }
        settings
    }

    /// Returns the target in the form that is signed. S3 decodes the path and encodes all but unreserved
    /// characters, so `/a+b` and `/a%2Bb` have the same signature.
    fn canonical_target<'t>(&self, target: &'t PathAndQuery) -> Cow<'t, str> {
        if !self.is_s3() {
            return target.as_str().into();
        }
        let path = percent_encode(&percent_decode(target.path().as_bytes()));
        match target.query() {
            None => path.into(),
            Some(query) => format!("{path}?{query}").into(),
        }
    }
}

fn is_signed(name: &HeaderName) -> bool {
    const SIGNED_FIELDS: [&str; 3] = ["host", "content-type", "content-md5"];
    SIGNED_FIELDS.contains(&name.as_str()) || name.as_str().starts_with("x-amz-")
}

/// Returns whether a URL carries a signature of version 4 or 2.
pub(crate) fn is_presigned(query: &str) -> bool {
    query.split('&').any(|pair| {
        let name = pair.split('=').next().unwrap_or_default();
        name.eq_ignore_ascii_case("X-Amz-Signature") || name == "Signature"
    })
}

/// Returns whether a query sets header fields of the reply, such as `response-content-type`. S3 allows this for
/// signed requests only.
pub(crate) fn sets_fields_of_reply(query: &str) -> bool {
    query.split('&').any(|pair| {
        let name = percent_decode(pair.split('=').next().unwrap_or_default().as_bytes());
        name.to_ascii_lowercase().starts_with(b"response-")
    })
}

/// Returns the payload hash to sign. `stated` is the hash that the client sent.
fn payload_hash(stated: Option<&HeaderValue>, has_body: bool) -> Result<SignableBody<'static>, SigningError> {
    let stated = stated.map(|value| value.to_str().unwrap_or("?"));
    match stated {
        None if has_body => Ok(SignableBody::UnsignedPayload),
        None => Ok(SignableBody::Bytes(&[])),
        Some("UNSIGNED-PAYLOAD") => Ok(SignableBody::UnsignedPayload),
        Some("STREAMING-UNSIGNED-PAYLOAD-TRAILER") => Ok(SignableBody::StreamingUnsignedPayloadTrailer),
        Some(hex) if hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            Ok(SignableBody::Precomputed(hex.to_owned()))
        }
        Some(_) => Err(SigningError),
    }
}

/// Decodes percent-encoding. Invalid sequences stay unchanged.
fn percent_decode(text: &[u8]) -> Vec<u8> {
    let digit = |at: usize| text.get(at).and_then(|byte| (*byte as char).to_digit(16));
    let (mut bytes, mut at) = (Vec::with_capacity(text.len()), 0);
    while let Some(byte) = text.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                bytes.push(*byte);
                at += 1;
            }
        }
    }
    bytes
}

/// Encodes all bytes of a path except slashes and unreserved characters (RFC 3986 section 2.3).
fn percent_encode(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
            text.push(*byte as char);
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    /// Keys, time and bucket of the examples in Amazon's "Authenticating Requests: Using the Authorization
    /// Header".
    fn example(token: Option<&str>) -> (SigningKeys, SystemTime) {
        let keys = ("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
        let signing = SigningKeys::new(keys, token.map(str::to_owned), "us-east-1", "s3");
        (signing, UNIX_EPOCH + Duration::from_secs(1_369_353_600))
    }

    fn sign_request(
        (method, target): (Method, &'static str),
        fields: &[(&'static str, &'static str)],
        has_body: bool,
    ) -> Result<HeaderMap, SigningError> {
        let mut headers = HeaderMap::new();
        headers.insert("host", HeaderValue::from_static("examplebucket.s3.amazonaws.com"));
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let (signing, now) = example(None);
        signing.sign((&method, &PathAndQuery::from_static(target)), &mut headers, has_body, now)?;
        Ok(headers)
    }

    fn authorization(headers: &HeaderMap) -> String {
        headers["authorization"].to_str().unwrap().to_owned()
    }

    #[test]
    fn the_examples_of_amazon_have_their_documented_signatures() {
        let head = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
                    SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature=";
        for (target, signature) in [
            ("/?lifecycle", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
            ("/?max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
            ("/?prefix=J&max-keys=2", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
        ] {
            // Conditions, ranges and the fields of proxies are not signed.
            let fields =
                [("range", "bytes=0-9"), ("if-match", "\"x\""), ("via", "1.1 n"), ("x-forwarded-for", "::1")];
            let headers = sign_request((Method::GET, target), &fields, false).unwrap();
            assert_eq!(authorization(&headers), format!("{head}{signature}"));
            assert_eq!(headers["x-amz-date"], "20130524T000000Z");
            assert_eq!(headers["range"], "bytes=0-9");
            assert!(headers["authorization"].is_sensitive());
        }
    }

    #[test]
    fn one_object_has_one_signature_in_every_encoding_of_its_path() {
        let of = |target| authorization(&sign_request((Method::GET, target), &[], false).unwrap());
        assert_eq!(of("/test$file.text"), of("/test%24file.text"));
        assert_eq!(of("/a+b%c3%a9"), of("/a%2Bb%C3%A9"));
        assert_ne!(of("/a//b/../c"), of("/a/c"), "a key may have any segments");
        assert_eq!(percent_encode(&percent_decode(b"/100%/%zz%4")), "/100%25/%25zz%254");
    }

    #[test]
    fn a_clients_signature_is_replaced_and_a_signed_url_is_unchanged() {
        let own = [
            ("authorization", "AWS4-HMAC-SHA256 Credential=other"),
            ("x-amz-date", "20000101T000000Z"),
            ("x-amz-security-token", "other"),
            ("x-amz-checksum-mode", "ENABLED"),
        ];
        let headers = sign_request((Method::GET, "/x"), &own, false).unwrap();
        assert!(
            authorization(&headers)
                .contains("SignedHeaders=host;x-amz-checksum-mode;x-amz-content-sha256;x-amz-date")
        );
        assert!(!headers.contains_key("x-amz-security-token"));
        assert_eq!(headers.get_all("x-amz-date").iter().count(), 1);
        for query in ["/x?X-Amz-Signature=1", "/x?a=b&Signature=1"] {
            let headers = sign_request((Method::GET, query), &own, false).unwrap();
            assert_eq!(headers["authorization"], own[0].1);
        }
        let (signing, now) = example(Some("session"));
        let mut headers = HeaderMap::new();
        signing.sign((&Method::GET, &PathAndQuery::from_static("/x")), &mut headers, false, now).unwrap();
        assert_eq!(headers["x-amz-security-token"], "session");
        assert!(authorization(&headers).contains("x-amz-security-token"));
        let text = format!("{signing:?} {headers:?}");
        assert!(!text.contains("wJalr") && !text.contains("session"), "{text}");
    }

    #[test]
    fn a_query_that_sets_response_fields_is_detected_in_any_encoding() {
        for (query, expected) in [
            ("response-content-type=text%2Fhtml", true),
            ("versionId=1&Response-Cache-Control=x", true),
            ("a=b&response%2Dexpires", true),
            ("%72esponse-content-disposition=x", true),
            ("prefix=response-content-type", false),
            ("", false),
        ] {
            assert_eq!(sets_fields_of_reply(query), expected, "{query}");
        }
    }

    #[test]
    fn the_payload_hash_follows_the_body_and_the_clients_field() {
        const DIGEST: &str = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
        const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        for (stated, has_body, expected) in [
            (None, false, Ok(NOTHING)),
            (None, true, Ok("UNSIGNED-PAYLOAD")),
            (Some(DIGEST), true, Ok(DIGEST)),
            (Some("UNSIGNED-PAYLOAD"), true, Ok("UNSIGNED-PAYLOAD")),
            (Some("STREAMING-UNSIGNED-PAYLOAD-TRAILER"), true, Ok("STREAMING-UNSIGNED-PAYLOAD-TRAILER")),
            (Some("STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), true, Err(SigningError)),
            (Some("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"), true, Err(SigningError)),
            (Some("zz"), true, Err(SigningError)),
        ] {
            let fields: Vec<_> = stated.iter().map(|stated| ("x-amz-content-sha256", *stated)).collect();
            let found = sign_request((Method::PUT, "/x"), &fields, has_body);
            let found = found.as_ref().map(|headers| headers["x-amz-content-sha256"].to_str().unwrap());
            assert_eq!(found.map_err(|error| *error), expected, "{stated:?}");
        }
    }
}
