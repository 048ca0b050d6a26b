//! A browser that shows a page of fifty images over HTTP/2, through the switch and from the node.

use std::fs;

use serde_json::json;

use super::{Chain, HOST, noise};
use crate::browser::Browser;

const IMAGES: usize = 50;
/// Width and height of an image. Pixels.
const SIDE: usize = 100;

/// Returns an image of random pixels, 24-bit BMP.
fn image(seed: u64) -> Vec<u8> {
    let (head, pixels) = (54, noise(seed, SIDE * SIDE * 3));
    let word = |number: usize| u32::try_from(number).unwrap().to_le_bytes();
    let fields = [head + pixels.len(), 0, head, 40, SIDE, SIDE, 1 | 24 << 16, 0, pixels.len(), 0, 0, 0, 0];
    let fields: Vec<u8> = fields.into_iter().flat_map(word).collect();
    [b"BM", &fields[..], &pixels].concat()
}

/// Returns a checksum that the page computes the same way: FNV-1a, 32 bits.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(2_166_136_261, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(16_777_619))
}

const CHECKSUM: &str = "async url => { \
    const bytes = new Uint8Array(await (await fetch(url, {cache: 'force-cache'})).arrayBuffer()); \
    return bytes.reduce((sum, byte) => Math.imul(sum ^ byte, 16777619), 2166136261 | 0) >>> 0; }";

#[test]
fn a_browser_shows_a_page_of_fifty_images_over_http2() {
    // The browser does not know the authority of the certificates.
    let Some(browser) = Browser::start_with(&["--ignore-certificate-errors"]) else { return };
    let site = tempfile::tempdir().unwrap();
    let pictures: Vec<Vec<u8>> = (0..IMAGES as u64).map(|number| image(100 + number)).collect();
    for (number, bytes) in pictures.iter().enumerate() {
        fs::write(site.path().join(format!("{number}.bmp")), bytes).unwrap();
    }
    let tags: String = (0..IMAGES).map(|number| format!("<img src=\"{number}.bmp\">")).collect();
    let icon = "<link rel=\"icon\" href=\"data:,\">";
    fs::write(site.path().join("index.html"), format!("<!doctype html>{icon}{tags}")).unwrap();
    let expected: Vec<u32> = pictures.iter().map(|bytes| checksum(bytes)).collect();
    let chain = Chain::before_node(&format!("root = {:?}", site.path()));
    for port in [chain.tls_port(), chain.node().further[0].port()] {
        // `open` returns once the page and its images are loaded.
        browser.open(&format!("https://{HOST}:{port}/index.html"));
        let shown = browser.eval(&format!(
            "[...document.images].filter(image => image.complete && image.naturalWidth === {SIDE}).length"
        ));
        assert_eq!(shown, IMAGES, "images shown");
        let protocols = browser.eval(
            "[...new Set(performance.getEntriesByType('resource').filter(entry => entry.initiatorType === 'img')\
             .map(entry => entry.nextHopProtocol))]",
        );
        assert_eq!(protocols, json!(["h2"]));
        let sums =
            browser.eval(&format!("Promise.all([...document.images].map(image => ({CHECKSUM})(image.src)))"));
        assert_eq!(sums, json!(expected), "checksums of the images");
        assert_eq!(browser.errors(), [""; 0]);
    }
}
