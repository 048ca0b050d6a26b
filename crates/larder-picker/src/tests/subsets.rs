//! Requests for which the gateway permits some endpoints only.

use super::*;
use larder_core::dispatch::Admission;

fn first(picker: &Arc<Picker>, message: ProcessingRequest) -> String {
    endpoints(&answer(&mut Exchange::new(Arc::clone(picker)), 0, message))[0].clone()
}

#[test]
fn only_permitted_endpoints_are_chosen_and_a_target_returns() {
    let picker = picker(config(), 40);
    let permitted = ["10.0.0.7:80", "10.0.0.9:80", "10.0.0.31:80"];
    for target in 0..50 {
        let path = format!("/{target}");
        let mut exchange = Exchange::new(Arc::clone(&picker));
        let list = endpoints(&answer(&mut exchange, 0, within(request(&path), &permitted)));
        assert!(list.iter().all(|endpoint| permitted.contains(&endpoint.as_str())), "{list:?}");
        assert_eq!(list.len(), 2, "a fallback is permitted too");
        drop(exchange);
        assert_eq!(first(&picker, within(request(&path), &permitted)), list[0], "the target returns");
    }
    assert_eq!(in_flight(&picker), 0);
}

#[test]
fn the_policys_choice_is_kept_if_it_is_permitted() {
    let picker = picker(config(), 20);
    for target in 0..20 {
        let path = format!("/{target}");
        let free = first(&picker, request(&path));
        assert_eq!(first(&picker, within(request(&path), &["10.0.0.1:80", "10.0.0.2:80", &free])), free);
    }
}

#[test]
fn an_empty_or_unknown_subset_gets_503() {
    let picker = picker(config(), 2);
    for permitted in [&[][..], &["192.0.2.1:80"], &["10.0.0.1"], &["10.0.0.1:81"]] {
        let response = answer(&mut Exchange::new(Arc::clone(&picker)), 0, within(request("/a"), permitted));
        assert_eq!(refusal(&response), 503, "{permitted:?}");
    }
    let number = with_metadata(
        request("/a"),
        "envoy.lb.subset_hint",
        "x-gateway-destination-endpoint-subset",
        Kind::NumberValue(1.0),
    );
    assert_eq!(refusal(&answer(&mut Exchange::new(Arc::clone(&picker)), 0, number)), 503);
    picker.leave("n1");
    let left = answer(&mut Exchange::new(Arc::clone(&picker)), 0, within(request("/a"), &["10.0.0.1:80"]));
    assert_eq!(refusal(&left), 503);
}

#[test]
fn a_list_may_be_one_text_with_commas() {
    let picker = picker(config(), 9);
    let text = Kind::StringValue("10.0.0.4:80, 10.0.0.5:80".to_owned());
    let message =
        with_metadata(request("/a"), "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", text);
    assert!(["10.0.0.4:80", "10.0.0.5:80"].contains(&first(&picker, message).as_str()));
}

#[test]
fn an_endpoint_at_t_high_gives_its_targets_to_others_of_the_subset() {
    let mut low = config();
    (low.settings.t_low, low.settings.t_high) = (1, 2);
    low.settings.admission = Admission::Unlimited;
    let picker = picker(low, 9);
    let permitted = ["10.0.0.4:80", "10.0.0.5:80"];
    let mut open = Vec::new();
    for _ in 0..6 {
        let mut exchange = Exchange::new(Arc::clone(&picker));
        endpoints(&answer(&mut exchange, 0, within(request("/a"), &permitted)));
        open.push(exchange);
    }
    assert_eq!((node(&picker, "n4", "load"), node(&picker, "n5", "load")), (3, 3));
}

#[test]
fn the_admission_limit_holds_for_subsets() {
    let mut limited = config();
    limited.settings.admission = Admission::Fixed(1);
    let picker = picker(limited, 9);
    let mut open = Exchange::new(Arc::clone(&picker));
    endpoints(&answer(&mut open, 0, within(request("/a"), &["10.0.0.4:80"])));
    let other = answer(&mut Exchange::new(Arc::clone(&picker)), 0, within(request("/a"), &["10.0.0.5:80"]));
    assert_eq!(refusal(&other), 429);
}
