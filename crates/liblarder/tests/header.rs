//! The header is that of the functions.

use std::path::Path;

/// The files that the header describes.
const SOURCES: [&str; 8] = [
    "src/types.rs",
    "src/fault.rs",
    "src/handle.rs",
    "src/calls/dispatcher.rs",
    "src/calls/requests.rs",
    "src/calls/members.rs",
    "src/calls/signals.rs",
    "src/calls/state.rs",
];

#[test]
fn header_is_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("cbindgen.toml is valid");
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = SOURCES.iter().fold(builder, |builder, source| builder.with_src(folder.join(source)));
    let mut header = Vec::new();
    builder.generate().expect("a header").write(&mut header);
    let header = String::from_utf8(header).expect("UTF-8");
    assert!(header.matches("larder_dispatcher *").count() > 10, "{header}");
    let path = folder.join("include/larder.h");
    if std::env::var_os("LARDER_WRITE").is_some() {
        std::fs::write(&path, &header).expect("the header can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        written, header,
        "include/larder.h is stale: run LARDER_WRITE=1 cargo test -p liblarder --test header"
    );
}
