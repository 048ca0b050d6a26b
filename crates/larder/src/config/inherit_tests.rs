//! Tests of the settings that routes inherit from `[switch]`, and of those that they must not inherit.

use larder_core::policy::thresholds::{LowRule, TrainingSettings};
use larder_core::rules::{Head, KeyTemplate};

use super::*;

const HEAD: &str = "[switch]\nlisten = \"127.0.0.1:80\"\nnodes = [{ address = \"a:1\", cache = \"1GiB\" }]\n";

fn switch(text: &str) -> SwitchRole {
    let config = Written::parse("larder.toml", &format!("{HEAD}{text}")).and_then(|it| it.validate());
    config.unwrap_or_else(|error| panic!("{text}\n{error}")).switch.expect("there is one")
}

/// Whether a route's key distinguishes two paths.
fn apart(role: &SwitchRole, route: usize) -> bool {
    let key: &KeyTemplate = role.switch.routes[route].key.as_ref().unwrap_or(&role.switch.key);
    let id = |path: &str| key.id(&Head::get(b"h", path.as_bytes()));
    id("/api/v1/a") != id("/api/v1/b")
}

#[test]
fn the_level_of_hacc_is_the_level_of_hacc() {
    let routes = "[[switch.routes]]\nname = \"hash\"\npath = \"/a/*\"\npolicy = \"hash\"\n\
                  [[switch.routes]]\nname = \"documents\"\npath = \"/b/*\"\npolicies.hacc = { level = 0 }\n\
                  [[switch.routes]]\nname = \"same\"\npath = \"/c/*\"\n";
    let role = switch(&format!("policy = \"hacc\"\npolicies.hacc = {{ level = 2 }}\n{routes}"));
    assert!(apart(&role, 0), "another policy keeps the key that is written, here the default");
    assert!(apart(&role, 1), "level 0 is the document");
    assert!(!apart(&role, 2), "what is inherited whole is inherited with its level");
}

#[test]
fn a_routes_host_is_nearer_than_that_of_the_switchs_table() {
    let ward = "policy = \"ward\"\npolicies.ward = { table = \"t.routes\", host = \"www.example.com\" }\n";
    let route = "[[switch.routes]]\nname = \"r\"\n";
    let host = |more: &str| {
        let role = switch(&format!("{ward}{route}{more}"));
        let table = |at: usize| role.wards[at].table.clone().expect("it is named").host;
        assert_eq!(table(0), "www.example.com", "the switch's own");
        table(1)
    };
    assert_eq!(host("host = \"app.example.com\"\n"), "app.example.com");
    assert_eq!(
        host("host = \"app.example.com\"\npolicies.ward = { host = \"o.example.com\" }\n"),
        "o.example.com"
    );
    assert_eq!(host("host = \"*.example.com\"\n"), "www.example.com", "many hosts are none");
    assert_eq!(host("path = \"/a/*\"\n"), "www.example.com");
}

#[test]
fn a_route_that_begins_to_learn_learns_as_the_switch_says() {
    let learned = |route: &str| {
        let training =
            "policies.lard.t_low = 20\n[switch.policies.lard.training]\nlength = \"90s\"\nbusy = 0.8\n";
        let role = switch(&format!("{training}[[switch.routes]]\nname = \"r\"\npath = \"/a/*\"\n{route}"));
        assert_eq!(role.switch.settings.thresholds.low, LowRule::Fixed);
        role.switch.routes[0].settings.thresholds.low
    };
    let all = TrainingSettings {
        length: std::time::Duration::from_secs(90),
        busy_permille: 800,
        ..TrainingSettings::default()
    };
    assert_eq!(learned("policies.lard.t_low = \"learned\"\n"), LowRule::Learned(all));
    let own = TrainingSettings { busy_permille: 700, ..all };
    assert_eq!(
        learned("policies.lard = { t_low = \"learned\", training = { busy = 0.7 } }\n"),
        LowRule::Learned(own)
    );
    assert_eq!(learned(""), LowRule::Fixed);
    // Training settings of a route override those of the switch.
    let role = switch(
        "policies.lard.t_low = \"learned\"\n[switch.policies.lard.training]\nbusy = 0.8\n[[switch.routes]]\nname = \"r\"\npath = \"/a/*\"\n\
         policies.lard.training = { min = 9 }\n",
    );
    let both = TrainingSettings { busy_permille: 800, min: 9, ..TrainingSettings::default() };
    assert_eq!(role.switch.routes[0].settings.thresholds.low, LowRule::Learned(both));
}
