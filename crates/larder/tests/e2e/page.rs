//! The page of the admin interface, in a real browser with a real cluster.

use larder_core::PolicyKind;
use larder_testkit::holds_for;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::http::{Client, get};
use crate::process::{LARDER, Process, until};

const NODES: [&str; 3] = ["oslo", "lima", "kyoto"];
const TARGETS: usize = 400;

/// Nodes and a switch with a master, whose policy can be changed.
pub struct Cluster {
    _folder: tempfile::TempDir,
    _nodes: Vec<Process>,
    switch: Child,
    pub address: SocketAddr,
    pub admin: SocketAddr,
}

impl Cluster {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("manifest.tsv");
        let lines = (0..TARGETS).map(|i| format!("{}\t/tiles/{}/{i}.png\n", 3_000 + i * 37 % 9_000, i % 7));
        fs::write(&manifest, lines.collect::<String>()).unwrap();
        let manifest = manifest.to_str().unwrap();
        let nodes: Vec<Process> = NODES
            .iter()
            .map(|name| {
                let store = ["--manifest", manifest, "--disk-speed", "100", "--cache", "1MB"];
                Process::start(&[&["node", "--name", name, "--listen", "127.0.0.1:0"][..], &store].concat())
            })
            .collect();
        let entry = |(name, node): (&&str, &Process)| {
            format!("{{ name = \"{name}\", address = \"{}\", cache = \"1MB\" }}", node.address)
        };
        let entries: Vec<String> = NODES.iter().zip(&nodes).map(entry).collect();
        let text = format!(
            "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [{}]\n[switch.shadow]\n\
             policies = [\"lard\", \"bounded\", \"hash\", \"least-conn\", \"wrr\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n",
            entries.join(", ")
        );
        let config = folder.path().join("larder.toml");
        fs::write(&config, text).unwrap();
        let mut switch = Command::new(LARDER)
            .args(["switch", "--ready-line", "--threads", "1", "--log", "warn", "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = switch.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let address = |value: &Value| value.as_str().unwrap().parse().unwrap();
        let (address, admin) = (address(&ready["listen"][0]), address(&ready["admin"]));
        Self { _folder: folder, _nodes: nodes, switch, address, admin }
    }

    /// Sends requests until `end` is set. Lower target numbers are more frequent.
    pub fn ask_until(&self, end: &AtomicBool) {
        let mut state = 1_u64;
        while !end.load(Relaxed) {
            let Ok(mut client) = Client::connect(self.address) else { continue };
            for _ in 0..200 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let unit = (state >> 11) as f64 / (1_u64 << 53) as f64;
                let target = (unit * unit * unit * TARGETS as f64) as usize;
                let path = format!("/tiles/{}/{target}.png", target % 7);
                // A switch that is replaced by a reload closes connections between requests.
                if client.ask("GET", &path, "").is_err() || end.load(Relaxed) {
                    break;
                }
            }
        }
    }

    pub fn node(&self, name: &str) -> Value {
        let nodes = get(self.admin, "/nodes").json();
        nodes.as_array().unwrap().iter().find(|node| node["name"] == name).unwrap().clone()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.switch.kill();
        let _ = self.switch.wait();
    }
}

/// Sets the flag on drop, so that the clients also stop when a test fails.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Returns the folder of the docs' images if `LARDER_WRITE=1` is set.
pub fn pictures() -> Option<PathBuf> {
    let wanted = std::env::var_os("LARDER_WRITE").is_some();
    wanted.then(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/img"))
}

fn click_and_answer(browser: &Browser, button: &str, answer: &str) {
    browser.click(button);
    browser.wait("document.getElementById('confirm').open");
    browser.click(&format!("#confirm button[value={answer}]"));
    browser.wait("!document.getElementById('confirm').open");
}

#[test]
fn the_page_shows_the_cluster_and_changes_it_when_that_is_meant() {
    let Some(browser) = Browser::start() else { return };
    let cluster = Cluster::start();
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = StopOnDrop(&end);
        scope.spawn(|| cluster.ask_until(&end));
        browser.look(1_280, 1_500, false);
        browser.open(&format!("http://{}/", cluster.admin));
        check_contents(&browser);
        check_layout(&browser);
        check_changes(&browser, &cluster);
        check_policy_switch(&browser, &cluster);
        assert_eq!(
            browser.errors(),
            Vec::<String>::new(),
            "neither errors nor anything that the page may not do"
        );
        check_other_origins(&browser, &cluster);
    });
}

fn check_contents(browser: &Browser) {
    browser.wait("document.querySelectorAll('#nodes tbody tr').length === 3");
    browser.wait("document.querySelectorAll('#hottest tbody tr').length >= 10");
    browser.wait("[...document.querySelectorAll('#hottest .chip')].some(c => ['oslo', 'lima', 'kyoto'].includes(c.innerText))");
    browser.wait("document.querySelector('#decisions tbody').innerText.includes('first')");
    // The active policy, its shadow and the shadows of five others, with values.
    browser.wait("document.querySelectorAll('#shadow tbody tr').length === 7");
    browser.wait("!document.querySelector('#shadow tbody').innerText.includes('–')");
    // Rates need two samples.
    browser.wait("[...document.querySelectorAll('#nodes td[data-name=\"requests/s\"]')].every(c => parseFloat(c.innerText) > 0)");
    browser.wait("parseFloat(document.querySelector('[data-figure=\"hit ratio\"] b').innerText) > 5");
    browser.wait("document.querySelector('[data-figure=p99] b').innerText.includes('s')");
    assert_eq!(browser.eval("document.getElementById('trouble').hidden"), true);
    if let Some(folder) = pictures() {
        // A line of two dozen points.
        browser.wait("history.requests.length > 24");
        browser.picture(&folder.join("page.png"), 1_280, 1_900);
        browser.look(1_280, 1_500, true);
        browser.picture(&folder.join("page-dark.png"), 1_280, 800);
    }
}

fn check_layout(browser: &Browser) {
    let ground = "getComputedStyle(document.body).backgroundColor";
    browser.look(1_280, 1_500, true);
    let dark = browser.eval(ground);
    browser.look(1_280, 1_500, false);
    assert_ne!(browser.eval(ground), dark, "dark and light");
    browser.look(390, 844, false);
    browser.wait("innerWidth === 390");
    let width = browser.eval("document.documentElement.scrollWidth");
    assert!(width.as_u64().unwrap() <= 390, "a phone shows it without scrolling to the side: {width}");
    if let Some(folder) = pictures() {
        browser.picture(&folder.join("page-phone.png"), 390, 1_100);
    }
    browser.look(1_280, 1_500, false);
}

fn check_changes(browser: &Browser, cluster: &Cluster) {
    let button = |word: &str| format!("[data-node=lima] button[data-act={word}]");
    click_and_answer(browser, &button("drain"), "no");
    assert_eq!(cluster.node("lima")["state"], "up", "not meant");
    click_and_answer(browser, &button("drain"), "yes");
    browser.wait("document.querySelector('[data-node=lima] .state').innerText === 'draining'");
    assert_eq!(cluster.node("lima")["state"], "draining");
    click_and_answer(browser, &button("undrain"), "yes");
    until("it takes requests again", || (cluster.node("lima")["state"] == "up").then_some(()));
    check_repeated_question(browser, cluster);
    check_held_button(browser, &button("weight"));
    browser.click(&button("weight"));
    browser.wait("document.getElementById('confirm').open");
    browser.eval("document.getElementById('weight').value = '1.5'");
    browser.click("#confirm button[value=yes]");
    until("it weighs more", || (cluster.node("lima")["weight"] == 1.5).then_some(()));
    browser.wait("document.querySelector('[data-node=lima] [data-name=weight]').innerText.includes('1.5')");
}

/// A question is cancelled, and asked again before the page has received the dialog's close event.
fn check_repeated_question(browser: &Browser, cluster: &Cluster) {
    let act = |word: &str| format!("document.querySelector('[data-node=lima] [data-act={word}]').click();");
    let say = |word: &str| format!("document.querySelector('#confirm button[value={word}]').click();");
    browser.wait("document.querySelector('[data-node=lima] [data-act=drain]') !== null");
    browser.eval(&[act("drain"), say("no"), act("drain")].concat());
    let asks = || browser.eval("document.querySelector('#confirm').open") == true;
    holds_for(Duration::from_millis(100), "the second question stays open", asks);
    browser.eval(&say("yes"));
    until("it drains", || (cluster.node("lima")["state"] == "draining").then_some(()));
    browser.wait("document.querySelector('[data-node=lima] [data-act=undrain]') !== null");
    browser.eval(&[act("undrain"), say("yes")].concat());
    until("it takes requests again", || (cluster.node("lima")["state"] == "up").then_some(()));
    browser.wait("document.querySelector('[data-node=lima] [data-act=drain]') !== null");
}

/// The row is redrawn meanwhile.
fn check_held_button(browser: &Browser, button: &str) {
    browser.eval("document.querySelector('[data-node=lima]').cells[0].dataset.old = 1; 0");
    let place = browser.press(button);
    browser.wait("document.querySelector('[data-node=lima]').cells[0].dataset.old === undefined");
    browser.release(&place);
    browser.wait("document.getElementById('confirm').open");
    browser.click("#confirm button[value=no]");
    browser.wait("!document.getElementById('confirm').open");
}

fn check_policy_switch(browser: &Browser, cluster: &Cluster) {
    let policies = PolicyKind::ALL.len();
    browser.wait(&format!(
        "document.querySelector('#policy select[name=policy]').options.length === {policies}"
    ));
    browser.eval("document.querySelector('#policy select[name=policy]').value = 'hash'");
    click_and_answer(browser, "#policy button", "yes");
    until("the other policy runs", || {
        (get(cluster.admin, "/status").json()["policy"] == "hash").then_some(())
    });
    browser.wait("document.getElementById('identity').innerText.startsWith('hash,')");
    browser.wait("document.getElementById('policy-note').innerText.includes('default: hash')");
    assert_eq!(get(cluster.admin, "/reload").json()["policies"], json!({ "default": "hash" }));
    assert_eq!(crate::http::post(cluster.admin, "/policy?value=hush").status, 409);
    // A reload restores the policy of the config.
    assert_eq!(crate::http::post(cluster.admin, "/reload").status, 200);
    assert_eq!(get(cluster.admin, "/status").json()["policy"], "lard-r");
}

/// A page of another origin in the operator's browser tries every way in which a page can send a request.
fn check_other_origins(browser: &Browser, cluster: &Cluster) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stranger = listener.local_addr().unwrap();
    // The thread ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4_096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi");
        }
    });
    browser.open(&format!("http://{stranger}/"));
    let drain = json!(format!("http://{}/nodes/oslo/drain", cluster.admin));
    for options in [
        "{ method: 'POST', mode: 'no-cors' }",
        "{ method: 'POST', headers: { 'larder-admin': '1' } }",
        "{ method: 'POST', mode: 'no-cors', body: 'x', headers: { 'content-type': 'text/plain' } }",
    ] {
        browser.eval(&format!("fetch({drain}, {options}).then(() => 1, () => 0)"));
        assert_eq!(cluster.node("oslo")["state"], "up", "{options}");
    }
    browser.eval(&format!(
        "(() => {{ const f = document.createElement('form'); f.method = 'POST'; f.action = {drain}; \
         document.body.append(f); f.submit(); }})()"
    ));
    browser.wait("location.href !== 'about:blank' && document.body.innerText.includes('refused')");
    assert_eq!(cluster.node("oslo")["state"], "up", "a form");
    let readable = format!("fetch('http://{}/nodes').then(() => 1, () => 0)", cluster.admin);
    browser.open(&format!("http://{stranger}/"));
    assert_eq!(browser.eval(&readable), 0, "nor may it read");
}
