//! The committed objects are of the committed sources.

use std::path::Path;

#[test]
fn the_objects_are_of_these_sources() {
    larder_testkit::assert_objects_are_current(&Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf"));
}
