//! Mixed connections of every behaviour, from a seed.

use std::net::SocketAddr;
use std::time::Duration;

use larder_shaper::Shape;

use crate::client::{Behaviour, Plan, head};
use crate::content::Target;

/// Largest reply on a half-closed connection. Bytes. It fits into a socket at once. A server such as nginx
/// may close a half-closed connection while a reply waits for room.
const AT_ONCE: u64 = 10_000;
/// Number of connections after which every behaviour has occurred once.
const BEHAVIOURS: usize = 8;
/// Size of large replies, which are rare because they take long. Bytes.
const LARGE: u64 = 1_000_000;

/// Returns wires that lose, duplicate, delay and reorder packets.
pub fn bad_network(seed: u64) -> Shape {
    Shape {
        seed,
        loss: 0.005,
        duplicate: 0.01,
        jitter: Duration::from_micros(300),
        reorder: 0.01,
        reorder_by: Duration::from_millis(2),
        ..Shape::default()
    }
}

/// A random number generator: SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Returns a number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Returns `count` connections to the servers, in turn with each behaviour. Every fourth one reuses its port
/// at once.
pub fn mixed(seed: u64, count: usize, servers: &[SocketAddr], targets: &[Target]) -> Vec<Plan> {
    let mut random = Random(seed);
    let small: Vec<&Target> = targets.iter().filter(|t| t.bytes <= AT_ONCE).collect();
    let usual: Vec<&Target> = targets.iter().filter(|t| t.bytes < LARGE).collect();
    let plan = |number: usize| {
        let server = servers[random.below(servers.len())];
        let chance = random.next();
        let mut some = |from: &[&Target], count: usize| -> Vec<Target> {
            (0..count).map(|_| from[random.below(from.len())].clone()).collect()
        };
        let (behaviour, targets) = match number % BEHAVIOURS {
            0 => (Behaviour::Plain, some(&usual, 1)),
            1 => (Behaviour::Pipelined, some(&usual, 2 + number % 5)),
            2 => (Behaviour::HalfClosing, some(&small, 1)),
            3 => {
                let targets = some(&usual, 1);
                (Behaviour::Resetting { after: chance % (targets[0].bytes + 1) }, targets)
            }
            4 => (Behaviour::KeptAlive, some(&usual, 1 + number % 9)),
            5 if number % 50 == 5 => (Behaviour::Plain, targets[targets.len() - 1..].to_vec()),
            5 => (Behaviour::HeadOnly, some(&usual, 1)),
            // One to five segments. Servers accept up to 8 KB in a line.
            7 => (Behaviour::LongHead { bytes: (chance % 7_000) as usize }, some(&usual, 1)),
            _ => (Behaviour::Plain, some(&usual, 1)),
        };
        // The server closes these connections, so the client's port is free at once.
        let same_port =
            matches!(behaviour, Behaviour::Plain | Behaviour::Pipelined) && number.is_multiple_of(4);
        Plan { behaviour, server, same_port, targets }
    };
    let mut plans: Vec<Plan> = (0..count).map(plan).collect();
    split(&mut random, &mut plans);
    plans
}

/// Replaces the connections of the sixth kind by ones with a split head, each time at the next byte.
fn split(random: &mut Random, plans: &mut [Plan]) {
    for (number, plan) in plans.iter_mut().skip(6).step_by(BEHAVIOURS).enumerate() {
        let length = head(plan, 0, true).len();
        plan.behaviour = Behaviour::Split {
            at: 1 + number % (length - 1),
            pause: Duration::from_micros(random.next() % 2_000),
            no_delay: number.is_multiple_of(2),
        };
    }
}
