//! The tokens by which cookies name nodes.

use crate::edits::StickyCookie;
use crate::node::Node;
use crate::nodes::Nodes;
use arc_swap::{ArcSwap, Guard};
use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use larder_core::NodeId;
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of a token, before they are written.
const TOKEN_BYTES: usize = 12;

type Token = [u8; TOKEN_BYTES];

/// The tokens of all nodes, computed anew when a node joins.
#[derive(Debug)]
pub(crate) struct Tokens {
    key: hmac::Key,
    known: ArcSwap<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The epoch of the nodes when this was computed, plus one.
    epoch: u64,
    nodes: HashMap<Token, NodeId>,
    /// By slot: the node's name and its token as cookies carry it.
    texts: HashMap<NodeId, (Arc<str>, String)>,
}

impl Tokens {
    pub(crate) fn new(cookie: &StickyCookie) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, &cookie.secret), known: ArcSwap::default() }
    }

    fn of(&self, name: &str) -> Token {
        let tag = hmac::sign(&self.key, name.as_bytes());
        std::array::from_fn(|at| tag.as_ref()[at])
    }

    fn known(&self, nodes: &Nodes) -> Guard<Arc<Known>> {
        let (known, epoch) = (self.known.load(), nodes.epoch() + 1);
        if known.epoch == epoch {
            return known;
        }
        let mut known = Known { epoch, ..Known::default() };
        for node in nodes.members() {
            let token = self.of(&node.name);
            known.nodes.insert(token, node.id);
            known.texts.insert(node.id, (node.name.clone(), URL_SAFE_NO_PAD.encode(token)));
        }
        let known = Arc::new(known);
        self.known.store(known.clone());
        Guard::from_inner(known)
    }

    /// The node that a cookie's value names.
    pub(crate) fn node(&self, value: &[u8], nodes: &Nodes) -> Option<NodeId> {
        let mut token = [0; TOKEN_BYTES];
        let length = URL_SAFE_NO_PAD.decode_slice(value, &mut token).ok()?;
        if length != TOKEN_BYTES {
            return None;
        }
        self.known(nodes).nodes.get(&token).copied()
    }

    /// Returns the value of `Set-Cookie` that names a node.
    pub(crate) fn set_cookie(
        &self,
        cookie: &StickyCookie,
        node: &Node,
        nodes: &Nodes,
        by_tls: bool,
    ) -> String {
        let known = self.known(nodes);
        let computed;
        let token = match known.texts.get(&node.id) {
            Some((name, text)) if *name == node.name => text,
            // It has left in the meantime.
            _ => {
                computed = URL_SAFE_NO_PAD.encode(self.of(&node.name));
                &computed
            }
        };
        let secure = if by_tls || cookie.secure { "; Secure" } else { "" };
        [&*cookie.name, "=", token, &*cookie.attributes, secure].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dial::Dial;
    use crate::edits::SameSite;
    use crate::node::Node;
    use crate::node_entry::NodeEntry;
    use larder_core::NodeSpec;
    use std::time::Duration;

    fn nodes(names: &[&str]) -> Nodes {
        let nodes = Nodes::new(8);
        for (id, name) in (0..).zip(names) {
            let entry = NodeEntry::new(NodeSpec::named(*name), "127.0.0.1:1");
            nodes.put(Node::new(NodeId(id), &entry, Dial::plain(([127, 0, 0, 1], 1).into())));
        }
        nodes
    }

    fn made(secret: Option<&[u8]>) -> StickyCookie {
        StickyCookie::new("srv", "/", SameSite::Lax, None, secret).expect("a cookie")
    }

    fn value(tokens: &Tokens, cookie: &StickyCookie, node: &str) -> String {
        let known = nodes(&[node]);
        let text = tokens.set_cookie(cookie, &known.named(node).expect("a member"), &known, false);
        text.strip_prefix("srv=").and_then(|rest| rest.split_once(';')).expect("a pair").0.to_owned()
    }

    #[test]
    fn a_token_names_its_node_whatever_its_slot() {
        let cookie = made(Some(b"0123456789abcdef"));
        let (tokens, other) = (Tokens::new(&cookie), Tokens::new(&made(None)));
        let first = value(&tokens, &cookie, "b");
        assert_eq!(first.len(), 16);
        assert!(!first.contains('b') || first.len() > 1, "opaque");
        assert_ne!(first, value(&other, &cookie, "b"), "the secret counts");
        assert_eq!(tokens.node(first.as_bytes(), &nodes(&["a", "b"])), Some(NodeId(1)));
        // After a restart with the nodes in another order.
        let again = Tokens::new(&cookie);
        let now = nodes(&["b", "c", "a"]);
        assert_eq!(again.node(first.as_bytes(), &now), Some(NodeId(0)));
        assert_eq!(again.node(value(&tokens, &cookie, "gone").as_bytes(), &now), None);
        for forged in ["", "b", "AAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAA", "\u{e9}"] {
            assert_eq!(again.node(forged.as_bytes(), &now), None, "{forged}");
        }
        // One that joins later is found.
        let entry = NodeEntry::new(NodeSpec::named("gone"), "127.0.0.1:1");
        now.put(Node::new(NodeId(5), &entry, Dial::plain(([127, 0, 0, 1], 1).into())));
        assert_eq!(again.node(value(&tokens, &cookie, "gone").as_bytes(), &now), Some(NodeId(5)));
    }

    #[test]
    fn attributes_are_as_asked() {
        let said = |same_site, age, tls| {
            let cookie = StickyCookie::new("s", "/app", same_site, age, None).expect("a cookie");
            let nodes = nodes(&["a"]);
            let node = nodes.named("a").expect("a member");
            let set = Tokens::new(&cookie).set_cookie(&cookie, &node, &nodes, tls);
            set.split_once("; ").expect("attributes").1.to_owned()
        };
        assert_eq!(said(SameSite::Lax, None, false), "Path=/app; HttpOnly; SameSite=Lax");
        let hour = Some(Duration::from_secs(3600));
        assert_eq!(
            said(SameSite::Strict, hour, true),
            "Path=/app; HttpOnly; Max-Age=3600; SameSite=Strict; Secure"
        );
        assert_eq!(said(SameSite::None, None, false), "Path=/app; HttpOnly; SameSite=None; Secure");
    }
}
