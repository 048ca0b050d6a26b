//! The manifests and the Helm chart: a real API server accepts them, and their configs are valid.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::api_server::{ApiServer, kinds, objects, tool};
use crate::process::LARDER;

fn packaging(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(path)
}

/// Sets of values: the parts alone, together, and with all options.
const VALUES: [&[&str]; 5] = [
    &["picker.enabled=true", "picker.inferencePool=store"],
    &[
        "picker.enabled=true",
        "picker.service=default/store:http",
        "picker.tlsSecret=tls",
        "picker.config=tls.reload = \"5m\"",
        "picker.peersSecret=own",
    ],
    &[
        "picker.enabled=true",
        "picker.inferencePool=store",
        "picker.createPool=true",
        "picker.matchLabels.app=store",
        "picker.targetPorts={8000,8001}",
        "imagePullSecrets[0].name=registry",
    ],
    &["switch.enabled=true", "nodes.enabled=true", "nodes.origin=http://app.default:8000"],
    &["switch.enabled=true", "switch.service=web/store:8080", "switch.replicas=2"],
];

/// Runs helm, and returns its output and messages.
fn helm(program: &Path, arguments: &[&str], values: &[&str]) -> (bool, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command.args(arguments);
    if ["lint", "template"].contains(&arguments[0]) {
        // Without a cluster, helm takes the version that it was built with.
        command.args(["--kube-version", "1.36"]);
    }
    values.iter().for_each(|value| _ = command.args(["--set", value]));
    // Nothing of the user's own configuration is read.
    for variable in ["HELM_CONFIG_HOME", "HELM_CACHE_HOME", "HELM_DATA_HOME"] {
        command.env(variable, folder.path());
    }
    let ran = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (ran.status.success(), text(&ran.stdout), text(&ran.stderr))
}

fn rendered(program: &Path, values: &[&str]) -> String {
    let chart = packaging("helm/larder");
    let (done, text, error) =
        helm(program, &["template", "edge", chart.to_str().unwrap(), "-n", "default"], values);
    assert!(done, "{values:?}: {error}");
    text
}

#[test]
fn the_chart_passes_lint_and_refuses_wrong_values() {
    let Some(program) = tool("helm") else { return };
    let chart = packaging("helm/larder");
    let chart = chart.to_str().unwrap();
    for values in VALUES {
        let (done, text, error) = helm(&program, &["lint", "--strict", chart], values);
        assert!(done, "{values:?}: {text}{error}");
    }
    for (values, told) in [
        (&["picker.enabled=true"][..], "set picker.inferencePool"),
        (&["picker.enabled=true", "picker.inferencePool=a", "picker.service=a/b:c"], "not both"),
        (
            &["picker.enabled=true", "picker.inferencePool=a", "picker.createPool=true"],
            "needs picker.matchLabels",
        ),
        (
            &["picker.enabled=true", "picker.service=a/b:c", "picker.createPool=true"],
            "needs picker.inferencePool",
        ),
        (&["picker.replica=2"], "replica"),
        (&["switch.enabled=true"], "set switch.service"),
        (&["nodes.enabled=true"], "nodes.origin is missing"),
        (&["nodes.cache=much"], "cache"),
    ] {
        let (done, _, error) = helm(&program, &["template", "edge", chart], values);
        assert!(!done && error.contains(told), "{values:?}: {error}");
    }
}

/// The configs of the manifests and of the chart pass `larder check`.
#[test]
fn the_configs_are_valid() {
    let mut texts = vec![
        fs::read_to_string(packaging("kubernetes/larder.yaml")).unwrap(),
        fs::read_to_string(packaging("kubernetes/picker.yaml")).unwrap(),
    ];
    if let Some(program) = tool("helm") {
        texts.extend(VALUES.map(|values| rendered(&program, values)));
    }
    let folder = tempfile::tempdir().unwrap();
    let (secret, tls) = (folder.path().join("peers.key"), folder.path().join("tls"));
    let made = Command::new(LARDER).args(["keys", "new"]).arg(&secret).output().unwrap();
    assert!(made.status.success());
    fs::create_dir(&tls).unwrap();
    let certificate = rcgen::generate_simple_self_signed(["picker".to_owned()]).unwrap();
    fs::write(tls.join("tls.crt"), certificate.cert.pem()).unwrap();
    larder_testkit::write_secret(&tls.join("tls.key"), &certificate.signing_key.serialize_pem());
    let mut checked = 0;
    for object in texts.iter().flat_map(|text| objects(text)).filter(|object| object["kind"] == "ConfigMap") {
        let config = object["data"]["larder.toml"].as_str().unwrap();
        // The command line sets the name and the address of a replica.
        let config = config
            .replace("[picker.peers]", "[picker.peers]\nname = \"pod\"\nadvertise = \"10.0.0.1:7960\"")
            .replace("/etc/larder-secret/peers.key", secret.to_str().unwrap())
            .replace("/etc/larder-tls", tls.to_str().unwrap());
        let path = folder.path().join("larder.toml");
        fs::write(&path, &config).unwrap();
        let ran = Command::new(LARDER).args(["check", "--no-preflight"]).arg(&path).output().unwrap();
        assert!(ran.status.success(), "{config}\n{}", String::from_utf8_lossy(&ran.stderr));
        checked += 1;
    }
    assert!(checked >= 2, "{checked}");
}

#[test]
fn a_real_api_server_accepts_the_manifests_and_the_chart() {
    let Some(api) = ApiServer::start() else { return };
    for manifest in ["kubernetes/larder.yaml", "kubernetes/picker.yaml"] {
        api.dry_run(&fs::read_to_string(packaging(manifest)).unwrap(), "default");
    }
    let Some(program) = tool("helm") else { return };
    api.apply_text(r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "web"}}"#, "default");
    for values in VALUES {
        let text = rendered(&program, values);
        assert!(!kinds(&text).is_empty(), "{values:?}");
        api.dry_run(&text, "default");
    }
    // The guide's command installs, and an upgrade keeps the secret of the replicas.
    let kubeconfig = api.admin_kubeconfig();
    let kubeconfig = kubeconfig.to_str().unwrap();
    let chart = packaging("helm/larder");
    let guide = fs::read_to_string(packaging("../docs/operate/picker.md")).unwrap();
    let line = guide.lines().find(|line| line.starts_with("helm install ")).expect("a command in the guide");
    let arguments: Vec<&str> = line.split(' ').skip(1).collect();
    assert_eq!(arguments[2], "packaging/helm/larder", "{line}");
    let secret = || {
        let (done, text, error) =
            helm(&program, &["get", "manifest", arguments[1], "--kubeconfig", kubeconfig], &[]);
        assert!(done, "{error}");
        let made = objects(&text).into_iter().find(|object| object["kind"] == "Secret").expect("a secret");
        made["data"]["peers.key"].as_str().unwrap().to_owned()
    };
    for verb in ["install", "upgrade"] {
        let mut all = vec![verb, arguments[1], chart.to_str().unwrap(), "--kubeconfig", kubeconfig];
        all.extend(&arguments[3..]);
        let before = (verb == "upgrade").then(&secret);
        let (done, text, error) = helm(&program, &all, &[]);
        assert!(done, "{verb}: {error}");
        assert!(text.contains(":9002"), "{text}");
        assert!(before.is_none_or(|before| before == secret()), "the secret is kept");
    }
}
