//! Addresses of nodes that are names: where they lead now.

use std::net::SocketAddr;
use std::time::Duration;

/// A look takes no longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether an address has a name for its host.
pub(super) fn is_name(address: &str) -> bool {
    address.parse::<SocketAddr>().is_err()
}

/// Where a name leads, if no more to where its node is: as long as that is among its addresses the node stays, whatever order
/// they come in.
///
/// # Errors
/// The name could not be looked up, or has no address: nothing is known.
pub(super) async fn look(address: &str, now_at: SocketAddr) -> Result<Option<SocketAddr>, String> {
    let looked = tokio::time::timeout(PATIENCE, tokio::net::lookup_host(address)).await;
    let found = looked.map_err(|_| format!("no answer within {} s", PATIENCE.as_secs()))?;
    choose(found.map_err(|error| error.to_string())?, now_at)
}

fn choose(found: impl Iterator<Item = SocketAddr>, now_at: SocketAddr) -> Result<Option<SocketAddr>, String> {
    let found: Vec<SocketAddr> = found.collect();
    match found.first() {
        None => Err("the name has no address".to_owned()),
        Some(_) if found.contains(&now_at) => Ok(None),
        Some(first) => Ok(Some(*first)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_moves_when_its_name_leads_there_no_more() {
        let [a, b, c] = [1, 2, 3].map(|last| SocketAddr::from(([10, 0, 0, last], 80)));
        assert_eq!(choose([b, a].into_iter(), a), Ok(None), "another order");
        assert_eq!(choose([b, c].into_iter(), a), Ok(Some(b)));
        assert!(choose([].into_iter(), a).is_err(), "nothing is known");
        assert!(is_name("store:80") && !is_name("10.0.0.1:80") && !is_name("[::1]:80"));
    }
}
