//! The committed objects are built from the committed sources.

use std::path::Path;

#[test]
fn objects_match_the_sources() {
    larder_testkit::assert_objects_are_current(&Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf"));
}
