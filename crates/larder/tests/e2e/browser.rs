//! A headless Chromium, which is controlled over its DevTools protocol.
//!
//! The protocol uses two pipes (`--remote-debugging-pipe`: JSON messages, each terminated by a zero byte),
//! which need no port. The pipes are named, because a shell can then give them the file numbers that the
//! browser expects.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

/// Program names on a Debian machine.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

pub struct Browser {
    child: Child,
    _folder: tempfile::TempDir,
    requests: RefCell<File>,
    replies: RefCell<BufReader<File>>,
    session: String,
    sent: RefCell<u64>,
    /// Errors of pages: exceptions, and error messages of the console.
    errors: RefCell<Vec<String>>,
}

/// Returns the browser's program name. `None` if no browser is installed; then the test is skipped.
fn name() -> Option<&'static str> {
    let there = |name: &&str| {
        let asked = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    };
    let name = NAMES.into_iter().find(|name| there(name));
    if name.is_none() {
        larder_testkit::skip("needs chromium (apt-get install chromium)");
    }
    name
}

impl Browser {
    /// Starts a browser with one empty page. `None` if no browser is installed.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// Starts a browser with more command-line options.
    pub fn start_with(options: &[&str]) -> Option<Self> {
        let name = name()?;
        let folder = tempfile::tempdir().unwrap();
        let (requests, replies) = (folder.path().join("orders"), folder.path().join("replies"));
        let made = Command::new("mkfifo").args([&requests, &replies]).status().unwrap();
        assert!(made.success());
        let sandbox =
            if rustix::process::getuid().is_root() { "--no-sandbox" } else { "--disable-extensions" };
        let profile = format!("--user-data-dir={}", folder.path().join("profile").display());
        let child = Command::new("sh")
            .args(["-c", "in=$1; out=$2; shift 2; exec \"$@\" 3<\"$in\" 4>\"$out\"", "sh"])
            .args([&requests, &replies])
            .args([name, "--headless=new", sandbox, &profile, "--remote-debugging-pipe", "--disable-gpu"])
            .args(["--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio"])
            .args(options)
            .arg("about:blank")
            .env("HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Opening a pipe blocks until the other side has opened it.
        let requests = OpenOptions::new().write(true).open(requests).unwrap();
        let replies = BufReader::new(File::open(replies).unwrap());
        let mut browser = Self {
            child,
            _folder: folder,
            requests: RefCell::new(requests),
            replies: RefCell::new(replies),
            session: String::new(),
            sent: RefCell::new(0),
            errors: RefCell::default(),
        };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session =
            browser.call("Target.attachToTarget", &attach)["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        Some(browser)
    }

    /// Calls a method of the protocol, and returns its result.
    pub fn call(&self, method: &str, params: &Value) -> Value {
        let number = {
            let mut sent = self.sent.borrow_mut();
            *sent += 1;
            *sent
        };
        let mut order = json!({ "id": number, "method": method, "params": params });
        if !self.session.is_empty() {
            order["sessionId"] = self.session.clone().into();
        }
        let mut bytes = order.to_string().into_bytes();
        bytes.push(0);
        self.requests.borrow_mut().write_all(&bytes).unwrap();
        loop {
            let message = self.message();
            if message["id"] == number {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    fn message(&self) -> Value {
        let mut bytes = Vec::new();
        self.replies.borrow_mut().read_until(0, &mut bytes).unwrap();
        assert!(bytes.pop() == Some(0), "the browser has ended");
        serde_json::from_slice(&bytes).unwrap()
    }

    fn note(&self, event: &Value) {
        let what = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => &event["params"]["exceptionDetails"],
            Some("Log.entryAdded") if event["params"]["entry"]["level"] == "error" => {
                &event["params"]["entry"]["text"]
            }
            _ => return,
        };
        self.errors.borrow_mut().push(what.to_string());
    }

    /// Returns the errors of pages since the last call.
    pub fn errors(&self) -> Vec<String> {
        self.eval("1");
        self.errors.take()
    }

    /// Navigates to a page, and waits until it is loaded.
    pub fn open(&self, url: &str) {
        let gone = self.call("Page.navigate", &json!({ "url": url }));
        assert!(gone["errorText"].is_null(), "{url}: {gone}");
        self.wait(&format!("location.href === {} && document.readyState === 'complete'", json!(url)));
    }

    /// Evaluates an expression in the page. Waits for a promise.
    pub fn eval(&self, script: &str) -> Value {
        let params = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        let result = self.call("Runtime.evaluate", &params);
        assert!(result["exceptionDetails"].is_null(), "{script}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true in the page.
    pub fn wait(&self, script: &str) {
        let event = std::fmt::from_fn(|f| {
            write!(f, "{script}\n{}\n{:?}", self.eval("document.body.innerText"), self.errors())
        });
        larder_testkit::eventually(event, || (self.eval(script) == true).then_some(()));
    }

    /// Clicks the middle of an element.
    pub fn click(&self, selector: &str) {
        let place = self.press(selector);
        self.release(&place);
    }

    /// Presses the mouse button in the middle of an element. Returns the position.
    pub fn press(&self, selector: &str) -> Value {
        let place = self.eval(&format!(
            "(() => {{ const e = document.querySelector({}); e.scrollIntoView({{block: 'center', behavior: 'instant'}}); \
             const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()",
            json!(selector)
        ));
        self.mouse("mousePressed", &place);
        place
    }

    /// Releases the mouse button at a position.
    pub fn release(&self, place: &Value) {
        self.mouse("mouseReleased", place);
    }

    fn mouse(&self, kind: &str, place: &Value) {
        let params = json!({ "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1 });
        self.call("Input.dispatchMouseEvent", &params);
    }

    /// Sets the window size and the dark or light theme.
    pub fn look(&self, width: u32, height: u32, dark: bool) {
        let window =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.call("Emulation.setDeviceMetricsOverride", &window);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// Saves a screenshot of the page's upper part as PNG.
    pub fn picture(&self, path: &Path, width: u32, height: u32) {
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let order = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let taken = self.call("Page.captureScreenshot", &order);
        std::fs::write(path, base64(taken["data"].as_str().unwrap())).unwrap();
    }
}

fn base64(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
