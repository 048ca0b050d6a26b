//! Random calls with random arguments: no call panics, and every request that started can end.

use super::*;
use larder_core::PolicyKind;

/// A generator of numbers that are often near the limits of what a call accepts.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(5),
            1 => u64::MAX - self.below(3),
            2 => 1 << self.below(64),
            _ => self.next(),
        }
    }

    fn node(&mut self, nodes: &[NodeHandle]) -> NodeHandle {
        if self.below(8) == 0 { self.number() as u32 } else { nodes[self.below(nodes.len() as u64) as usize] }
    }

    fn request(&mut self, nodes: &[NodeHandle]) -> Request {
        let mut request = Request { service_class: self.below(5) as u8, ..target(self.below(300) << 40) };
        match self.below(6) {
            0 => request.sticky = self.node(nodes),
            1 => request.origin = self.node(nodes),
            2 => {
                request.exclude = nodes.as_ptr();
                request.exclude_len = self.below(nodes.len() as u64) as usize;
            }
            3 => request.lasting = self.below(3) as u8,
            _ => {}
        }
        request
    }
}

/// Makes a call that changes a node or passes a signal.
fn change(host: &Host, numbers: &mut Numbers, nodes: &mut Vec<NodeHandle>) -> i32 {
    let (now, node) = (numbers.number(), numbers.node(nodes));
    match numbers.below(7) {
        0 => match host.add(&format!("n{}", numbers.below(12))) {
            Ok(node) => {
                nodes.push(node);
                LARDER_OK
            }
            Err(code) => code,
        },
        1 => host.set_state(node, numbers.below(5) as u8),
        // SAFETY: the dispatcher is valid.
        2 => unsafe { larder_node_set_weight(host.0, now, node, numbers.number() as u32) },
        // SAFETY: as above.
        3 => unsafe { larder_node_set_backup(host.0, now, node, numbers.below(3) as u8) },
        // SAFETY: as above.
        4 => unsafe {
            larder_cache_event(host.0, now, node, numbers.below(300) << 40, numbers.below(4) as u8)
        },
        5 => {
            let value = SignalValue { signal: numbers.below(13) as u32, value: numbers.number() };
            host.report(now, node, &[value, value])
        }
        _ => {
            let rows = [TableRow { target: numbers.below(300) << 40, node }];
            // SAFETY: the rows are valid for their number.
            unsafe { larder_set_table(host.0, now, rows.as_ptr(), rows.len()) }
        }
    }
}

#[test]
fn random_calls_never_panic() {
    for (seed, policy) in (1..).zip(PolicyKind::ALL) {
        let host =
            host(&format!("policy = \"{policy}\"\nnodes = [\"n0\", \"n1\"]\n[admission]\nlimit = 20\n"));
        let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15 ^ seed);
        let mut nodes = vec![host.find("n0").expect("it is there"), host.find("n1").expect("it is there")];
        let mut flying: Vec<Decision> = Vec::new();
        for step in 0..4_000 {
            let (now, request) = (numbers.number(), numbers.request(&nodes));
            let code = match numbers.below(6) {
                0 | 1 => host.decide(now, &request).map_or_else(
                    |code| code,
                    |decision| {
                        flying.push(decision);
                        LARDER_OK
                    },
                ),
                2 | 3 if !flying.is_empty() => {
                    let decision = flying.swap_remove(numbers.below(flying.len() as u64) as usize);
                    let feedback = Feedback {
                        elapsed_ns: numbers.number(),
                        first_byte_ns: numbers.number(),
                        bytes: numbers.number(),
                        status: 200,
                        cache: numbers.below(3) as u8,
                        failed: numbers.below(2) as u8,
                    };
                    let code = host.done(now, &decision, Some(&feedback));
                    assert_eq!(code, LARDER_OK, "{policy}, step {step}: {}", message());
                    code
                }
                4 if !flying.is_empty() => {
                    let at = numbers.below(flying.len() as u64) as usize;
                    // SAFETY: all pointers are valid.
                    unsafe { larder_long_lived(host.0, now, &raw mut flying[at]) }
                }
                _ => change(&host, &mut numbers, &mut nodes),
            };
            assert_ne!(code, LARDER_ERROR_PANIC, "{policy}, step {step}: {}", message());
        }
        for decision in flying {
            assert_eq!(host.done(0, &decision, None), LARDER_OK, "{policy}: {}", message());
        }
        assert_eq!(host.status()["outstanding"], 0, "{policy}");
    }
}
