//! Tokens that name nodes in sticky cookies.

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

/// Size of a token before encoding. Bytes.
const TOKEN_BYTES: usize = 12;

type Token = [u8; TOKEN_BYTES];

/// Tokens of all nodes, recomputed when a node joins.
#[derive(Debug)]
pub(crate) struct NodeTokens {
    key: hmac::Key,
    table: ArcSwap<TokenTable>,
}

#[derive(Debug, Default)]
struct TokenTable {
    /// Epoch of the node table at the time of the computation, plus one.
    epoch: u64,
    nodes: HashMap<Token, NodeId>,
    /// Name and encoded token of each node, by slot.
    texts: HashMap<NodeId, (Arc<str>, String)>,
}

impl NodeTokens {
    pub(crate) fn new(cookie: &StickyCookie) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, &cookie.secret), table: ArcSwap::default() }
    }

    fn token(&self, name: &str) -> Token {
        let tag = hmac::sign(&self.key, name.as_bytes());
        std::array::from_fn(|at| tag.as_ref()[at])
    }

    fn table(&self, nodes: &Nodes) -> Guard<Arc<TokenTable>> {
        let (table, epoch) = (self.table.load(), nodes.epoch() + 1);
        if table.epoch == epoch {
            return table;
        }
        let mut table = TokenTable { epoch, ..TokenTable::default() };
        for node in nodes.members() {
            let token = self.token(&node.name);
            table.nodes.insert(token, node.id);
            table.texts.insert(node.id, (node.name.clone(), URL_SAFE_NO_PAD.encode(token)));
        }
        let table = Arc::new(table);
        self.table.store(table.clone());
        Guard::from_inner(table)
    }

    /// Returns the node that a cookie's value names.
    pub(crate) fn node(&self, value: &[u8], nodes: &Nodes) -> Option<NodeId> {
        let mut token = [0; TOKEN_BYTES];
        let length = URL_SAFE_NO_PAD.decode_slice(value, &mut token).ok()?;
        if length != TOKEN_BYTES {
            return None;
        }
        self.table(nodes).nodes.get(&token).copied()
    }

    /// Returns the value of `Set-Cookie` that names a node.
    pub(crate) fn set_cookie(
        &self,
        cookie: &StickyCookie,
        node: &Node,
        nodes: &Nodes,
        by_tls: bool,
    ) -> String {
        let table = self.table(nodes);
        let computed;
        let token = match table.texts.get(&node.id) {
            Some((name, text)) if *name == node.name => text,
            // The node has left meanwhile.
            _ => {
                computed = URL_SAFE_NO_PAD.encode(self.token(&node.name));
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
    use crate::dial::Dialer;
    use crate::edits::SameSite;
    use crate::node::Node;
    use crate::node_entry::NodeEntry;
    use larder_core::NodeSpec;
    use std::time::Duration;

    fn nodes(names: &[&str]) -> Nodes {
        let nodes = Nodes::new(8);
        for (id, name) in (0..).zip(names) {
            let entry = NodeEntry::new(NodeSpec::named(*name), "127.0.0.1:1");
            nodes.insert(Node::new(NodeId(id), &entry, Dialer::plain(([127, 0, 0, 1], 1).into())));
        }
        nodes
    }

    fn made(secret: Option<&[u8]>) -> StickyCookie {
        StickyCookie::new("srv", "/", SameSite::Lax, None, secret).expect("a cookie")
    }

    fn value(tokens: &NodeTokens, cookie: &StickyCookie, node: &str) -> String {
        let table = nodes(&[node]);
        let text = tokens.set_cookie(cookie, &table.named(node).expect("a member"), &table, false);
        text.strip_prefix("srv=").and_then(|rest| rest.split_once(';')).expect("a pair").0.to_owned()
    }

    #[test]
    fn a_token_names_its_node_whatever_its_slot() {
        let cookie = made(Some(b"0123456789abcdef"));
        let (tokens, other) = (NodeTokens::new(&cookie), NodeTokens::new(&made(None)));
        let first = value(&tokens, &cookie, "b");
        assert_eq!(first.len(), 16);
        assert!(!first.contains('b') || first.len() > 1, "opaque");
        assert_ne!(first, value(&other, &cookie, "b"), "the secret counts");
        assert_eq!(tokens.node(first.as_bytes(), &nodes(&["a", "b"])), Some(NodeId(1)));
        // After a restart with the nodes in another order.
        let again = NodeTokens::new(&cookie);
        let now = nodes(&["b", "c", "a"]);
        assert_eq!(again.node(first.as_bytes(), &now), Some(NodeId(0)));
        assert_eq!(again.node(value(&tokens, &cookie, "gone").as_bytes(), &now), None);
        for forged in ["", "b", "AAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAA", "\u{e9}"] {
            assert_eq!(again.node(forged.as_bytes(), &now), None, "{forged}");
        }
        // A node that joins later is found.
        let entry = NodeEntry::new(NodeSpec::named("gone"), "127.0.0.1:1");
        now.insert(Node::new(NodeId(5), &entry, Dialer::plain(([127, 0, 0, 1], 1).into())));
        assert_eq!(again.node(value(&tokens, &cookie, "gone").as_bytes(), &now), Some(NodeId(5)));
    }

    #[test]
    fn cookie_attributes_follow_the_config() {
        let said = |same_site, age, tls| {
            let cookie = StickyCookie::new("s", "/app", same_site, age, None).expect("a cookie");
            let nodes = nodes(&["a"]);
            let node = nodes.named("a").expect("a member");
            let set = NodeTokens::new(&cookie).set_cookie(&cookie, &node, &nodes, tls);
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
