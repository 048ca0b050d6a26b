//! A node with a modelled store that starts with its targets in memory.

use super::*;

/// For 64 KiB of memory in chunks of 8 KiB. `/big` exceeds the size limit, and `/d` has no room behind the
/// three targets before it.
const MANIFEST: &str = "20000\t/a\n40000\t/big\n500\t/b?x=1\n20000\t/c\n30000\t/d\n100\t/e\n";

async fn start_node(preloaded: bool) -> TestNode {
    TestNode::with_model(MANIFEST, fast_disk(), |config| {
        config.cache.bytes = Bytes::kib(64);
        config.cache.chunk = Bytes::kib(8);
        config.cache.object_max = Bytes(32_000);
        let StoreConfig::Model(model) = &mut config.store else { panic!("it is modelled") };
        model.preload = if preloaded { larder_node::Preload::Targets } else { larder_node::Preload::Nothing };
    })
    .await
}

#[tokio::test]
async fn the_first_request_is_a_hit_if_the_preload_had_room() {
    let (warm, cold) = (start_node(true).await, start_node(false).await);
    let before = warm.node.stats();
    // Two targets have a head and three chunks each, and one target is whole.
    assert_eq!((before.cache_objects, before.cache_evictions, before.store_reads), (9, 0, 0));
    assert!((40_500..=65_536).contains(&before.cache_bytes), "{}", before.cache_bytes);
    let (mut client, mut other) = (warm.client().await, cold.client().await);
    for target in ["/a", "/b?x=1", "/c"] {
        let (hit, miss) = (client.get(target).await, other.get(target).await);
        assert!(hit.cache_status().starts_with("n; hit"), "{target}: {}", hit.cache_status());
        assert!(miss.cache_status().starts_with("n; fwd=uri-miss"), "{target}: {}", miss.cache_status());
        assert!(hit.status == 200 && hit.body == miss.body, "{target}");
    }
    let after = warm.node.stats();
    assert_eq!((after.hits, after.misses, after.cache_evictions, after.store_reads), (3, 0, 0, 0));
    for target in ["/big", "/e", "/d"] {
        let miss = client.get(target).await;
        assert!(miss.cache_status().starts_with("n; fwd=uri-miss"), "{target}: {}", miss.cache_status());
    }
}
