//! aria2 as a client: one file by ranges over eight connections, verified by its checksum.

use std::fs::{self, File};
use std::path::Path;
use std::time::SystemTime;

use larder_testkit::needs_tool;

use super::{Chain, client, noise, run};
use crate::http::get;

const CONNECTIONS: u64 = 8;

#[test]
fn aria2_puts_a_file_together_from_parallel_ranges() {
    let Some(aria2) = needs_tool("aria2c", "aria2") else { return };
    let Some(sha256sum) = needs_tool("sha256sum", "coreutils") else { return };
    let site = tempfile::tempdir().unwrap();
    let content = noise(2, 40_000_000);
    let file = site.path().join("file");
    fs::write(&file, &content).unwrap();
    // A node reads a file again if it was modified within the last seconds.
    File::options().write(true).open(&file).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let (sum, _) = run(client(&sha256sum).arg(&file));
    let checksum = format!("--checksum=sha-256={}", sum.split(' ').next().unwrap());
    let chain = Chain::before_node(&format!("root = {:?}", site.path()));
    let stats_after = |name: &str| {
        let folder = chain.folder.path().join(name);
        download(&aria2, &folder, &checksum, &format!("{}/file", chain.plain_url()));
        assert!(fs::read(folder.join("file")).unwrap() == content, "{name}: other bytes");
        get(chain.node().admin.unwrap(), "/stats").json()
    };
    // The first download finds nothing in the node's memory, the second one finds everything.
    let (cold, warm) = (stats_after("cold"), stats_after("warm"));
    let growth = |name: &str| warm[name].as_u64().unwrap() - cold[name].as_u64().unwrap();
    // aria2 requests each part by a range. It may request the first part without one.
    assert!(growth("partial_content") >= CONNECTIONS - 1, "{cold}\n{warm}");
    assert_eq!((growth("misses"), growth("store_reads")), (0, 0), "{cold}\n{warm}");
}

fn download(aria2: &Path, folder: &Path, checksum: &str, url: &str) {
    let connections = CONNECTIONS.to_string();
    let mut command = client(aria2);
    command.args([
        "--no-conf",
        "--quiet",
        "--check-integrity",
        "--file-allocation=none",
        "--max-tries=1",
        "--min-split-size=1M",
    ]);
    command.args(["--split", &connections, "--max-connection-per-server", &connections, checksum, "--dir"]);
    run(command.arg(folder).arg(url));
}
