//! The expected number of nodes that receive a request for a target with f requests.
//!
//! Equation (7) of WARD is the sum of i P(f, i). P(f, i) is the probability that exactly i of N nodes get at
//! least one of f evenly spread requests. The paper computes P by a recursion over f, in O(f N) for each
//! target. The sum has a closed form, because each node gets none of the f requests with probability (1 -
//! 1/N)^f:
//!
//! ```text
//! E(f) = N (1 - (1 - 1/N)^f)
//! ```

/// Returns the expected number of nodes that get at least one of `requests` requests. Each request goes to
/// one of `nodes` nodes, all equally likely.
pub fn nodes_reached(nodes: u16, requests: u64) -> f64 {
    if requests == 0 || nodes == 0 {
        return 0.0;
    }
    let n = f64::from(nodes);
    // The formula 1 - x^f is computed with logarithms, which keep full precision for a thousand nodes and one
    // request.
    -n * libm::expm1(requests as f64 * libm::log1p(-1.0 / n))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The recursion of the paper: P(0, 0) = 1 and P(f + 1, i) = P(f, i - 1) (N - i + 1) / N + P(f, i) i / N.
    fn by_recursion(nodes: u16, requests: u64) -> f64 {
        let n = f64::from(nodes);
        let mut p = vec![0.0; usize::from(nodes) + 1];
        p[0] = 1.0;
        for _ in 0..requests {
            for i in (1..p.len()).rev() {
                p[i] = p[i - 1] * (n - (i as f64 - 1.0)) / n + p[i] * i as f64 / n;
            }
            p[0] = 0.0;
        }
        p.iter().zip(0_u32..).map(|(p, i)| p * f64::from(i)).sum()
    }

    #[test]
    fn the_closed_form_equals_the_recursion() {
        for nodes in [1, 2, 3, 4, 16, 100] {
            for requests in [0, 1, 2, 3, 5, 10, 50, 300] {
                let (closed, recursion) = (nodes_reached(nodes, requests), by_recursion(nodes, requests));
                assert!((closed - recursion).abs() < 1e-9, "N={nodes} f={requests}: {closed} {recursion}");
            }
        }
    }

    #[test]
    fn known_values() {
        // Computed by hand: with 4 nodes E(1) = 1, E(2) = 4 (1 - 9/16) = 1.75, E(5) = 4 (1 - 243/1024) =
        // 3.05078125.
        for (nodes, requests, expected) in [
            (4, 1, 1.0),
            (4, 2, 1.75),
            (4, 5, 3.050_781),
            (4, 10, 3.774_746),
            (16, 2, 1.937_5),
            (16, 5, 4.412_857),
            (16, 16, 10.302_814),
            (16, 32, 13.971_379),
            (16, 100, 15.974_809),
        ] {
            let found = nodes_reached(nodes, requests);
            assert!((found - expected).abs() < 1e-6, "N={nodes} f={requests}: {found}");
        }
    }

    #[test]
    fn extreme_values_are_exact() {
        assert_eq!((nodes_reached(1, 1), nodes_reached(1, u64::MAX)), (1.0, 1.0));
        assert_eq!((nodes_reached(7, 0), nodes_reached(0, 7)), (0.0, 0.0));
        assert_eq!(nodes_reached(1_000, u64::MAX), 1_000.0);
        assert!((nodes_reached(u16::MAX, 1) - 1.0).abs() < 1e-12);
    }
}
