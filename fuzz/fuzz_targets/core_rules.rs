//! Rules and key templates: texts from a config, and heads from a client.

#![no_main]

use larder_core::id::RouteId;
use larder_core::rules::{Head, KeyTemplate, Matcher, RouteRules};
use larder_core::{ServiceClass, TargetId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(5, |&byte| byte == b'\n');
    let mut part = || parts.next().unwrap_or_default();
    let (pattern, template, host, field, target) = (part(), part(), part(), part(), part());
    let headers = vec![("cookie", field), ("x", field)];
    let head = Head::new(b"GET", host, target, &headers);
    if let Ok(template) = std::str::from_utf8(template).unwrap_or_default().parse::<KeyTemplate>() {
        let mut key = Vec::new();
        template.render(&head, &mut key);
        assert_eq!(template.id(&head), TargetId::of(&key));
    }
    let text = std::str::from_utf8(pattern).unwrap_or_default();
    let matchers = [
        Matcher::new().method(text),
        Matcher::new().host(text),
        Matcher::new().path(text),
        Matcher::new().extension(text),
        Matcher::new().header("x", text),
    ];
    for matcher in matchers.into_iter().flatten() {
        let taken = matcher.matches(&head);
        let rules = larder_core::rules::ClassRules::new(vec![(matcher.clone(), ServiceClass::Db)]);
        assert_eq!(rules.map(|rules| rules.classify(&head) == ServiceClass::Db), Ok(taken));
        let routes = RouteRules::new(vec![(matcher, RouteId(1)), (Matcher::new(), RouteId(2))]);
        assert_eq!(routes.map(|routes| routes.find(&head)), Ok(RouteId(if taken { 1 } else { 2 })));
    }
});
