//! `larder plan` with the config of another proxy: the gain from a change of policy inside it, its lines of config, and errors.

mod envoy;
mod nginx;

use std::process::{Command, Output};

use crate::process::LARDER;

/// A folder with a log, and configs of a proxy.
struct Files {
    folder: tempfile::TempDir,
    log: String,
    /// The option for configs of the proxy.
    option: &'static str,
}

impl Files {
    /// Writes the log: 6,000 requests for 400 targets, in which all targets are about equally frequent. `line` returns
    /// the line of a request from its number, hour, minute, second and path.
    fn new(option: &'static str, line: impl Fn(u32, [u32; 3], &str) -> String) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("access.log").to_str().unwrap().to_owned();
        let text: String = (0..6_000_u32)
            .map(|n| {
                let target = n.wrapping_mul(2_654_435_761) >> 16;
                line(n, [n / 3_600, n / 60 % 60, n % 60], &format!("/{}", target % 400)) + "\n"
            })
            .collect();
        std::fs::write(&log, text).unwrap();
        Self { folder, log, option }
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn plan(&self, config: &str, more: &[&str]) -> Output {
        let small = ["--costs", "lard98", "--seeds", "1", "--policies", "rr"];
        let arguments = [&["plan", &self.log, self.option, config], &small[..], more].concat();
        Command::new(LARDER).args(arguments).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
