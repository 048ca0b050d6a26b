//! A store's verification of AWS Signature Version 4, after Amazon's "Authenticating Requests: Using the
//! Authorization Header".
//!
//! It is independent of the library that the node signs with, so that the two can disagree.

use super::stub::StubRequest;
use aws_lc_rs::{digest, hmac};

pub(crate) const ACCESS_KEY: &str = "AKIAIOSFODNN7EXAMPLE";
pub(crate) const SECRET_KEY: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

/// Returns the names of the signed fields, if the request has a valid signature with the keys above.
pub(crate) fn verify(request: &StubRequest) -> Result<String, String> {
    let authorization = request.header("authorization");
    let parameters = authorization.strip_prefix("AWS4-HMAC-SHA256 ").ok_or("no signature")?;
    let parameter = |name: &str| {
        let mut all = parameters.split(", ").filter_map(|pair| pair.split_once('='));
        all.find(|(found, _)| *found == name).map(|(_, value)| value).ok_or(format!("no {name}"))
    };
    let (credential, signed) = (parameter("Credential")?, parameter("SignedHeaders")?);
    let (key, scope) = credential.split_once('/').ok_or("no scope")?;
    if key != ACCESS_KEY {
        return Err(format!("the key is {key}"));
    }
    let unsigned = request.head.lines().filter_map(|line| line.split_once(": ")).find(|(name, _)| {
        let name = name.to_ascii_lowercase();
        (name == "host" || name.starts_with("x-amz-")) && !signed.split(';').any(|signed| signed == name)
    });
    if let Some((name, _)) = unsigned {
        return Err(format!("{name} is not signed"));
    }
    let payload = request.header("x-amz-content-sha256");
    if payload.len() == 64 && payload != hex(&sha256(&request.body)) {
        return Err("the body has another digest".to_owned());
    }
    let (method, target) = request.line.split_once(' ').ok_or("no method")?;
    let (path, query) =
        target.split(' ').next().map(|target| target.split_once('?').unwrap_or((target, ""))).ok_or("")?;
    let mut pairs: Vec<String> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            format!("{}={}", encode(&decode(name), b"-._~"), encode(&decode(value), b"-._~"))
        })
        .collect();
    pairs.sort();
    let fields: String =
        signed.split(';').map(|name| format!("{name}:{}\n", request.header(name).trim())).collect();
    let path = encode(&decode(path), b"/-._~");
    let canonical = format!("{method}\n{path}\n{}\n{fields}\n{signed}\n{payload}", pairs.join("&"));
    let date = request.header("x-amz-date");
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&sha256(canonical.as_bytes())));
    let mut key = format!("AWS4{SECRET_KEY}").into_bytes();
    for part in scope.split('/') {
        key = mac(&key, part);
    }
    match parameter("Signature")? == hex(&mac(&key, &text)) {
        true => Ok(signed.to_owned()),
        false => Err(format!("the signature is not that of\n{canonical}")),
    }
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    digest::digest(&digest::SHA256, bytes).as_ref().to_vec()
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decode(text: &str) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut bytes = Vec::new();
    while let [first, after @ ..] = rest {
        let escaped = (*first == b'%').then(|| text.get(text.len() - after.len()..)?.get(..2)).flatten();
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

fn encode(bytes: &[u8], plain: &[u8]) -> String {
    let each = bytes.iter().map(|byte| match byte {
        byte if byte.is_ascii_alphanumeric() || plain.contains(byte) => (*byte as char).to_string(),
        byte => format!("%{byte:02X}"),
    });
    each.collect()
}

/// Amazon's own examples, which sign more fields than a node does.
#[test]
fn the_verifier_accepts_the_examples_of_amazon() {
    let nothing = hex(&sha256(b""));
    let example = |line: &str, fields: &str, body: &str, signed: &str, signature: &str| StubRequest {
        line: line.to_owned(),
        head: format!(
            "{line}\r\nHost: examplebucket.s3.amazonaws.com\r\nx-amz-date: 20130524T000000Z\r\n{fields}\
             Authorization: AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders={signed}, Signature={signature}\r\n\r\n"
        ),
        body: body.as_bytes().to_vec(),
        earlier: 0,
        sni: String::new(),
    };
    let get = example(
        "GET /test.txt HTTP/1.1",
        &format!("Range: bytes=0-9\r\nx-amz-content-sha256: {nothing}\r\n"),
        "",
        "host;range;x-amz-content-sha256;x-amz-date",
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    );
    assert_eq!(verify(&get).unwrap(), "host;range;x-amz-content-sha256;x-amz-date");
    let put = example(
        "PUT /test$file.text HTTP/1.1",
        "Date: Fri, 24 May 2013 00:00:00 GMT\r\nx-amz-storage-class: REDUCED_REDUNDANCY\r\n\
         x-amz-content-sha256: 44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072\r\n",
        "Welcome to Amazon S3.",
        "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    );
    verify(&put).unwrap();
    let spoilt = StubRequest { head: get.head.replace("bytes=0-9", "bytes=0-8"), ..get.clone() };
    assert!(verify(&spoilt).unwrap_err().contains("range:bytes=0-8"));
    assert!(verify(&StubRequest { body: b"x".to_vec(), ..get }).is_err());
}
