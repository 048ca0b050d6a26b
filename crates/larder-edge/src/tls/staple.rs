//! OCSP responses in files beside certificates, which are stapled to handshakes (RFC 6066 section 8).
//!
//! They are fetched by other programs, for example by `openssl ocsp -respout FILE.ocsp` in a timer, and are read again
//! with the certificates. A response that clients would reject is not stapled: for another certificate, not valid now,
//! or not *good*. Its signature is verified only by clients.

use der::Decode as _;
use rustls::pki_types::CertificateDer;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use x509_ocsp::{BasicOcspResponse, CertStatus, OcspGeneralizedTime, OcspResponse};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Maximum size of a response, in bytes; it is sent in handshakes.
const RESPONSE_BYTES_MAX: u64 = 16 << 10;

/// The response in the file beside a certificate.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Staple {
    /// There is no file.
    None,
    /// The response is valid and is stapled.
    Response(Vec<u8>),
    /// The response is not stapled.
    Unusable {
        /// Its file.
        file: PathBuf,
        /// The reason.
        why: String,
    },
}

impl Staple {
    /// Reads `FILE.pem.ocsp` or `FILE.ocsp` beside the certificate's `FILE.pem`. `now_s` is in seconds since 1970.
    pub(super) fn read(path: &Path, certificate: &CertificateDer<'_>, now_s: u64) -> Self {
        let mut appended = path.as_os_str().to_owned();
        appended.push(".ocsp");
        for file in [PathBuf::from(appended), path.with_extension("ocsp")] {
            let read = File::open(&file).and_then(|opened| {
                let mut response = Vec::new();
                opened.take(RESPONSE_BYTES_MAX + 1).read_to_end(&mut response).map(|_| response)
            });
            let checked = match read {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => Err(error.to_string()),
                Ok(response) => check(&response, certificate, now_s).map(|()| response),
            };
            return checked.map_or_else(|why| Self::Unusable { file, why }, Self::Response);
        }
        Self::None
    }

    pub(super) fn response(&self) -> Option<&[u8]> {
        if let Self::Response(response) = self { Some(response) } else { None }
    }
}

fn check(response: &[u8], certificate: &CertificateDer<'_>, now_s: u64) -> Result<(), String> {
    if response.len() as u64 > RESPONSE_BYTES_MAX {
        return Err(format!("it is larger than {RESPONSE_BYTES_MAX} bytes"));
    }
    let no_response = |error: der::Error| format!("it is not an OCSP response in DER: {error}");
    let outer = OcspResponse::from_der(response).map_err(no_response)?;
    let Some(bytes) = outer.response_bytes else {
        return Err(format!("the responder has answered with an error: {:?}", outer.response_status));
    };
    let basic = BasicOcspResponse::from_der(bytes.response.as_bytes()).map_err(no_response)?;
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
    let mut responses = basic.tbs_response_data.responses.iter();
    let Some(single) =
        responses.find(|single| single.cert_id.serial_number.as_bytes() == parsed.raw_serial())
    else {
        return Err("it is for another certificate".to_owned());
    };
    if !matches!(single.cert_status, CertStatus::Good(_)) {
        return Err("its status is revoked or unknown".to_owned());
    }
    let seconds = |time: &OcspGeneralizedTime| time.0.to_unix_duration().as_secs();
    if seconds(&single.this_update) > now_s {
        return Err("it is not valid yet: check the clock".to_owned());
    }
    match &single.next_update {
        Some(end) if seconds(end) <= now_s => Err("it is no longer valid: fetch a new one".to_owned()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, Issuer, KeyPair, SerialNumber};
    use std::process::{Command, Stdio};

    fn openssl(folder: &Path, arguments: &[&str]) -> bool {
        let mut command = Command::new("openssl");
        command.current_dir(folder).args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    /// Makes an authority's certificate and key in a folder, and a certificate that it has issued with this serial
    /// number. `ok.ocsp` and `revoked.ocsp` are its responses.
    fn made(folder: &Path, serial: u64) -> CertificateDer<'static> {
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("written");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        write("ca.pem", &params.self_signed(&key).expect("signed").pem());
        write("ca.key", &key.serialize_pem());
        let issuer = Issuer::new(params, key);
        let own = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["a.test".to_owned()]).expect("parameters");
        params.serial_number = Some(SerialNumber::from(serial));
        let certificate = params.signed_by(&own, &issuer).expect("signed");
        write("a.pem", &certificate.pem());
        for (name, status) in [("ok", "V\t400101000000Z\t"), ("revoked", "R\t400101000000Z\t200101000000Z")] {
            write("index", &format!("{status}\t{serial:02X}\tunknown\t/CN=a.test\n"));
            assert!(openssl(
                folder,
                &["ocsp", "-issuer", "ca.pem", "-cert", "a.pem", "-reqout", "request", "-no_nonce"]
            ));
            let output = format!("{name}.ocsp");
            let answer =
                ["ocsp", "-index", "index", "-CA", "ca.pem", "-rsigner", "ca.pem", "-rkey", "ca.key"];
            let files = ["-reqin", "request", "-respout", &output, "-ndays", "7"];
            assert!(openssl(folder, &[&answer[..], &files].concat()), "openssl ocsp");
        }
        certificate.der().clone()
    }

    fn now_s() -> u64 {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs()
    }

    #[test]
    fn only_acceptable_responses_are_stapled() {
        if larder_testkit::needs_tool("openssl", "openssl").is_none() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let other = tempfile::tempdir().expect("a folder");
        let (certificate, another) = (made(folder.path(), 0x1234), made(other.path(), 0x4321));
        let path = folder.path().join("a.pem");
        let read = |certificate: &CertificateDer<'_>, now_s: u64| Staple::read(&path, certificate, now_s);
        let put = |name: &str, to: &str| {
            std::fs::copy(folder.path().join(name), folder.path().join(to)).expect("copied");
        };
        let refused = |staple: Staple, says: &str| match staple {
            Staple::Unusable { why, .. } => assert!(why.contains(says), "{why}"),
            staple => panic!("{staple:?}, not: {says}"),
        };
        assert_eq!(read(&certificate, now_s()), Staple::None);
        put("ok.ocsp", "a.ocsp");
        let response = std::fs::read(folder.path().join("ok.ocsp")).expect("read");
        assert_eq!(read(&certificate, now_s()), Staple::Response(response));
        refused(read(&another, now_s()), "for another certificate");
        refused(read(&certificate, now_s() + 8 * 86_400), "no longer valid");
        refused(read(&certificate, now_s() - 86_400), "not valid yet");
        // The name with both extensions has priority.
        put("revoked.ocsp", "a.pem.ocsp");
        refused(read(&certificate, now_s()), "revoked");
        std::fs::write(folder.path().join("a.pem.ocsp"), "no response").expect("written");
        refused(read(&certificate, now_s()), "it is not an OCSP response in DER");
    }
}
