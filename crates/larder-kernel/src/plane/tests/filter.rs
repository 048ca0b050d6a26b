//! tc programs on kernels without tc links.

use super::super::pins::Pins;
use super::super::syscalls::Hook;
use super::{AttachMode, Plane, config, may_load};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

/// The test's namespace, removed when dropped.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// The loopback interface is number 1 in every namespace.
const LOOPBACK: u32 = 1;

#[test]
fn filters_are_added_replaced_and_removed() {
    if !may_load() {
        return;
    }
    let name = format!("ld{}-filter", std::process::id());
    let made = Command::new("ip").args(["netns", "add", &name]).status().expect("ip");
    assert!(made.success());
    let namespace = Namespace(name);
    let listed = |way: &str| {
        let arguments = ["netns", "exec", &namespace.0, "tc", "filter", "show", "dev", "lo", way];
        let output = Command::new("ip").args(arguments).output().expect("tc");
        String::from_utf8_lossy(&output.stdout).matches("direct-action").count()
    };
    let inside = File::open(format!("/run/netns/{}", namespace.0)).expect("the namespace");
    std::thread::scope(|scope| {
        let test = scope.spawn(|| {
            move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Network)).expect("setns");
            let pins = Pins::open(&namespace.0).expect("pins");
            let plane = Plane::load(&config("filter"), AttachMode::Tc, None).expect("loaded");
            for _ in 0..2 {
                plane.programs.filter(LOOPBACK, Hook::TcIngress, "front_tc", &pins).expect("ingress");
                plane.programs.filter(LOOPBACK, Hook::TcEgress, "front_egress", &pins).expect("egress");
                assert_eq!((listed("ingress"), listed("egress")), (1, 1));
            }
            drop(plane);
            assert_eq!((listed("ingress"), listed("egress")), (1, 1), "they outlive their process");
            pins.remove_all().expect("removed");
            assert_eq!((listed("ingress"), listed("egress")), (0, 0));
        });
        test.join().expect("it runs");
    });
}
