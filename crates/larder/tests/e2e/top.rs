//! `larder top` in a real terminal. tmux draws its output and types the keys.

use std::fs;
use std::process::{Command, Output};
use std::sync::atomic::AtomicBool;
use std::thread;

use serde_json::Value;

use crate::page::{Cluster, StopOnDrop, pictures};
use crate::peers;
use crate::process::{LARDER, until};

/// A tmux server with one window.
struct Terminal {
    socket: tempfile::TempDir,
}

impl Terminal {
    /// Starts `larder top` in a terminal. `None` if tmux is not installed; then the test is skipped.
    fn start(arguments: &[String]) -> Option<Self> {
        larder_testkit::needs_tool("tmux", "tmux")?;
        let terminal = Self { socket: tempfile::tempdir().unwrap() };
        let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
        // The window stays open after the program has exited, so that its last screen can be checked.
        let line = format!("'{LARDER}' top {}; echo ended with $?; exec sleep 600", words.join(" "));
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "150", "-y", "40", &line]);
        Some(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let ran = Command::new("tmux")
            .arg("-S")
            .arg(self.socket.path().join("tmux"))
            .args(arguments)
            .env("TERM", "xterm-256color")
            .env("LC_ALL", "C.UTF-8")
            .output()
            .unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Waits until the screen satisfies a condition.
    fn wait(&self, what: &str, fits: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        until(format!("{what}, on\n{}", self.screen()), || {
            last = self.screen();
            fits(&last).then(|| last.clone())
        })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let socket = self.socket.path().join("tmux");
        let _ = Command::new("tmux").arg("-S").arg(socket).arg("kill-server").output();
    }
}

/// Returns the words of the line that begins with a name, inside the frame.
fn line<'a>(screen: &'a str, name: &str) -> Vec<&'a str> {
    let lines = screen.lines().map(|line| line.trim_matches(|c: char| c == '│' || c.is_whitespace()));
    lines.filter(|line| line.starts_with(name)).flat_map(str::split_whitespace).collect()
}

#[test]
fn a_terminal_shows_the_cluster_and_drains_a_node_when_that_is_meant() {
    let cluster = Cluster::start();
    let Some(terminal) = Terminal::start(&["--admin".to_owned(), cluster.admin.to_string()]) else { return };
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = StopOnDrop(&end);
        scope.spawn(|| cluster.ask_until(&end));
        let screen = terminal.wait("all is shown", |screen| {
            let rates = ["kyoto", "lima", "oslo"]
                .map(|name| line(screen, name).get(3).and_then(|rate| rate.parse::<f64>().ok()));
            rates.iter().all(|rate| rate.is_some_and(|rate| rate > 0.0))
                && screen.contains("3 of 3 nodes up")
                && screen.contains("localhost/tiles/0/0.png")
                && screen.contains("lard-r, live")
                && screen.contains("│first ")
                && !screen.contains("p99 -")
        });
        if let Some(folder) = pictures() {
            fs::write(folder.join("top.txt"), screen.trim_end().to_owned() + "\n").unwrap();
        }
        let state = |name: &str| cluster.node(name)["state"].as_str().unwrap().to_owned();

        // Names are sorted: kyoto, lima, oslo.
        terminal.keys(&["Down", "d"]);
        terminal.wait("it asks", |screen| screen.contains("drain lima: it finishes"));
        terminal.keys(&["n"]);
        terminal.wait("it is left", |screen| screen.contains("not changed"));
        assert_eq!(state("lima"), "up");
        terminal.keys(&["d"]);
        terminal.wait("it asks", |screen| screen.contains("drain lima: it finishes"));
        terminal.keys(&["y"]);
        terminal.wait("it drains", |screen| {
            line(screen, "lima").get(1) == Some(&"draining") && screen.contains("2 of 3 nodes up")
        });
        assert_eq!(state("lima"), "draining");
        terminal.keys(&["u"]);
        terminal.wait("it asks", |screen| screen.contains("undrain lima: it gets requests again"));
        terminal.keys(&["y"]);
        terminal.wait("it is back", |screen| line(screen, "lima").get(1) == Some(&"up"));

        terminal.keys(&["s", "s", "s"]);
        terminal.wait("they are sorted", |screen| screen.contains("nodes, by hit ratio"));
        terminal.keys(&["q"]);
        let left = terminal.wait("it ends", |screen| screen.contains("ended with 0"));
        assert!(!left.contains("requests/s"), "the screen is as it was before\n{left}");
    });
}

fn once(arguments: &[&str]) -> Output {
    Command::new(LARDER).args(["top", "--once", "--interval", "300ms"]).args(arguments).output().unwrap()
}

#[test]
fn scripts_get_json_and_an_unreachable_server_is_an_error() {
    let cluster = Cluster::start();
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = StopOnDrop(&end);
        scope.spawn(|| cluster.ask_until(&end));
        let admin = cluster.admin.to_string();
        let json = until("there are requests", || {
            let output = once(&["--json", "--admin", &admin]);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let json: Value = serde_json::from_slice(&output.stdout).unwrap();
            (json["cluster"]["requests_per_s"].as_f64().unwrap_or(0.0) > 0.0).then_some(json)
        });
        assert_eq!(json["nodes"][0]["name"], "kyoto", "{json:#}");
        assert_eq!(
            (&json["sources"][0]["kind"], &json["cluster"]["nodes_up"]),
            (&"switch".into(), &3.into())
        );
        assert!(json["cluster"]["p99_s"].as_f64().unwrap() > 0.0);
        let text = String::from_utf8(once(&["--admin", &admin, "--admin", "9"]).stdout).unwrap();
        assert!(text.contains("127.0.0.1:9: does not answer") && text.contains("3 of 3 nodes up"), "{text}");
    });
    let gone = once(&["--admin", "127.0.0.1:9"]);
    assert_eq!(gone.status.code(), Some(1));
    assert_eq!(once(&["--admin", "no such host"]).status.code(), Some(2));
}

#[test]
fn nodes_without_a_front_end_are_shown_together() {
    let cluster = peers::PeerCluster::start_as(6, "", "");
    cluster.await_members(&[0, 1, 2]);
    for node in 0..3 {
        (0..6).for_each(|file| assert_eq!(cluster.get(node, &format!("/{file}")).status, 200));
    }
    let admins: Vec<String> = (0..3).map(|node| cluster.node(node).admin.unwrap().to_string()).collect();
    let words: Vec<&str> = admins.iter().flat_map(|admin| ["--admin", admin]).collect();
    let json: Value = serde_json::from_slice(&once(&[&["--json"], &words[..]].concat()).stdout).unwrap();
    assert_eq!(
        (&json["sources"][1]["kind"], &json["sources"][1]["policy"]),
        (&"node".into(), &"press".into())
    );
    let names: Vec<&Value> = json["nodes"].as_array().unwrap().iter().map(|node| &node["name"]).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(json["nodes"][0]["memory_bytes"] == 2_000_000 && json["cluster"]["nodes"] == 3, "{json:#}");
    assert!(!json["decisions"].as_object().unwrap().is_empty());
}
