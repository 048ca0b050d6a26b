//! Resolution of node addresses that contain names.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Longest time of a lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether the host of an address is a name.
pub(super) fn is_name(address: &str) -> bool {
    address.parse::<SocketAddr>().is_err()
}

/// Resolves a name again. Returns `None` if the current address of the node is still among the addresses of
/// the name, in any order.
///
/// # Errors
/// Returns an error if the lookup failed or the name has no address. The node then keeps its address.
pub(super) async fn resolve_again(address: &str, current: SocketAddr) -> Result<Option<SocketAddr>, String> {
    let result = tokio::time::timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host(address)).await;
    let addresses = result.map_err(|_| format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs()))?;
    choose_address(addresses.map_err(|error| error.to_string())?, current)
}

/// Resolves an address of a node, and returns the first of several. Blocks.
///
/// # Errors
/// Returns an error if the lookup failed or the name has no address.
pub(crate) fn resolve(address: &str) -> Result<SocketAddr, String> {
    let mut found = address.to_socket_addrs().map_err(|error| format!("'{address}': {error}"))?;
    found.next().ok_or_else(|| format!("'{address}': the name has no address"))
}

fn choose_address(
    addresses: impl Iterator<Item = SocketAddr>,
    current: SocketAddr,
) -> Result<Option<SocketAddr>, String> {
    let addresses: Vec<SocketAddr> = addresses.collect();
    match addresses.first() {
        None => Err("the name has no address".to_owned()),
        Some(_) if addresses.contains(&current) => Ok(None),
        Some(first) => Ok(Some(*first)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_moves_if_its_address_is_no_longer_among_those_of_its_name() {
        let [a, b, c] = [1, 2, 3].map(|last| SocketAddr::from(([10, 0, 0, last], 80)));
        assert_eq!(choose_address([b, a].into_iter(), a), Ok(None), "another order");
        assert_eq!(choose_address([b, c].into_iter(), a), Ok(Some(b)));
        assert!(choose_address([].into_iter(), a).is_err(), "nothing is known");
        assert!(is_name("store:80") && !is_name("10.0.0.1:80") && !is_name("[::1]:80"));
    }
}
