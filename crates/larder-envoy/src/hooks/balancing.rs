//! Hooks of the load-balancing policy.

#![expect(unsafe_code, reason = "functions that Envoy calls")]

use super::{destroy, exclusive, guard, shared};
use crate::abi::Buffer;
use crate::balancer::{Balancer, Metrics, NO_FILTER, Policy, SPLIT};
use crate::config::PolicyConfig;
use crate::hooks::filters;
use crate::host::{Context, Hosts, PolicyMetrics};
use crate::log;
use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr;

/// The name of the policy in Envoy's config.
const POLICY_NAME: &[u8] = b"larder";

thread_local! {
    /// The policies for which this thread has a load balancer.
    static IN_USE: RefCell<Vec<*const c_void>> = const { RefCell::new(Vec::new()) };
}

/// Reads the config of a cluster's policy. Returns null if it cannot be used; the log has the reason.
///
/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_lb_config_new(
    config: *mut c_void,
    name: Buffer,
    text: Buffer,
) -> *const c_void {
    guard("on_lb_config_new", ptr::null(), || {
        // SAFETY: Envoy passes valid texts.
        let name = unsafe { name.bytes() };
        // SAFETY: as above.
        let text = unsafe { text.bytes() };
        if name != POLICY_NAME {
            let name = String::from_utf8_lossy(name);
            log::error(&format!("lb_policy_name is '{}': write larder", name.escape_debug()));
            return ptr::null();
        }
        match PolicyConfig::parse(&String::from_utf8_lossy(text)) {
            Ok(parsed) => {
                // SAFETY: Envoy's config outlives the load balancers that are made from it.
                let metrics = Metrics::define(unsafe { PolicyMetrics::new(config) });
                Box::into_raw(Box::new(Policy::new(parsed, metrics))).cast_const().cast()
            }
            Err(error) => {
                log::error(&format!("cannot use the config of the policy: {error}"));
                ptr::null()
            }
        }
    })
}

/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_lb_config_destroy(policy: *const c_void) {
    // SAFETY: Envoy gives the config up.
    guard("on_lb_config_destroy", (), || unsafe { destroy::<Policy>(policy) });
}

/// Creates a worker's load balancer. Returns null if the cluster's config does not fit the policy; the log has the reason, and the
/// cluster's requests fail.
///
/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_lb_new(
    policy: *const c_void,
    lb: *mut c_void,
) -> *const c_void {
    guard("on_lb_new", ptr::null(), || {
        // SAFETY: Envoy passes the pointer that on_lb_config_new has returned, and keeps the config for the load balancer's life.
        let Some(config) = (unsafe { shared::<Policy>(policy) }) else { return ptr::null() };
        // SAFETY: Envoy passes a valid pointer.
        let hosts = unsafe { Hosts::new(lb) };
        if !filters::is_configured() {
            log::error(&format!("cluster {}: {NO_FILTER}", hosts.cluster_name()));
            return ptr::null();
        }
        let Some(in_use) = InUse::claim(policy) else {
            log::error(&format!("cluster {}: {SPLIT}", hosts.cluster_name()));
            config.refuse_split();
            return ptr::null();
        };
        let owned = OwnedBalancer { balancer: Balancer::new(config, hosts), _in_use: in_use };
        Box::into_raw(Box::new(owned)).cast_const().cast()
    })
}

/// A load balancer, and the claim of its policy.
struct OwnedBalancer {
    balancer: Balancer,
    _in_use: InUse,
}

/// The claim of a policy by a load balancer of this thread.
struct InUse(*const c_void);

impl InUse {
    /// Returns the claim; `None` if this thread has a load balancer of this policy already.
    fn claim(policy: *const c_void) -> Option<Self> {
        IN_USE.with_borrow_mut(|policies| {
            let is_free = !policies.contains(&policy);
            is_free.then(|| {
                policies.push(policy);
                Self(policy)
            })
        })
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        // The thread may be ending.
        let _ = IN_USE.try_with(|policies| {
            let mut policies = policies.borrow_mut();
            if let Some(at) = policies.iter().position(|policy| *policy == self.0) {
                policies.swap_remove(at);
            }
        });
    }
}

/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_lb_destroy(balancer: *const c_void) {
    // SAFETY: Envoy gives the load balancer up.
    guard("on_lb_destroy", (), || unsafe { destroy::<OwnedBalancer>(balancer) });
}

/// Chooses a host. Returns false if the request is refused.
///
/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_lb_choose_host(
    lb: *mut c_void,
    balancer: *const c_void,
    context: *mut c_void,
    priority: *mut u32,
    index: *mut u32,
) -> bool {
    guard("on_lb_choose_host", false, || {
        // SAFETY: Envoy passes the pointer that on_lb_new has returned, on the thread of the load balancer.
        let Some(owned) = (unsafe { exclusive::<OwnedBalancer>(balancer) }) else { return false };
        // SAFETY: Envoy passes a valid pointer.
        let hosts = unsafe { Hosts::new(lb) };
        // SAFETY: Envoy passes null or a valid pointer.
        let context = unsafe { Context::new(context) };
        let Some((chosen_priority, chosen_index)) = owned.balancer.choose(hosts, context) else {
            return false;
        };
        // SAFETY: Envoy passes a pointer for the result.
        unsafe { priority.write(chosen_priority) };
        // SAFETY: as above.
        unsafe { index.write(chosen_index) };
        true
    })
}

/// Reads the hosts again after a change. Envoy also calls this when only the health of hosts has changed.
///
/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_lb_on_host_membership_update(
    lb: *mut c_void,
    balancer: *const c_void,
    _added: usize,
    _removed: usize,
) {
    guard("on_lb_on_host_membership_update", (), || {
        // SAFETY: as in on_lb_choose_host.
        let Some(owned) = (unsafe { exclusive::<OwnedBalancer>(balancer) }) else { return };
        // SAFETY: Envoy passes a valid pointer.
        owned.balancer.update(unsafe { Hosts::new(lb) });
    });
}
