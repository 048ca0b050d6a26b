//! The settings of shadow mode.

use crate::cache::CacheKind;
use crate::policy::PolicyKind;
use crate::unit::Bytes;
use alloc::vec::Vec;

/// The settings of a shadow.
#[derive(Clone, Debug)]
pub struct ShadowSettings {
    /// The policies; the live policy is added.
    pub policies: Vec<PolicyKind>,
    /// The replacement policy of the nodes' memories.
    pub cache: CacheKind,
    /// The size above which objects are not kept. Default: no limit.
    pub object_max: Bytes,
    /// The smallest size that an object takes. Default 512, as at a node of larder.
    pub charge_min: Bytes,
    /// The largest number of objects at one policy's nodes together; above it the sampling rate is halved. 1,024 to
    /// 100,000,000; default 65,536.
    pub objects_max: usize,
}

impl Default for ShadowSettings {
    fn default() -> Self {
        Self {
            policies: Vec::new(),
            cache: CacheKind::default(),
            object_max: Bytes(u64::MAX),
            charge_min: Bytes(512),
            objects_max: 1 << 16,
        }
    }
}
