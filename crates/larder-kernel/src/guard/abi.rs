//! ABI between the node program and this module: the mirror of `bpf/node_abi.h`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(super) const TUNNELS_MAX: usize = 256;
pub(super) const FROZEN_MAX: u32 = 16_384;

pub(super) const CONN_COOKIE: u32 = 1;
/// FIN of either side.
pub(super) const CONN_FINS: u32 = 2 | 4;
pub(super) const CONN_ENDED: u32 = 8;
pub(super) const CONN_KILLING: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RawTunnelKey {
    pub(super) local: [u8; 16],
    pub(super) remote: [u8; 16],
    pub(super) port_be: [u8; 2],
    pub(super) protocol: u8,
    pub(super) zero: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RawTunnel {
    pub(super) kind: u8,
    pub(super) zero: [u8; 3],
    pub(super) vni: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RawConn {
    pub(super) flags: u32,
    pub(super) first_seq: u32,
    pub(super) kills: u32,
    pub(super) waits: u32,
    pub(super) echo: u32,
    pub(super) previous_seq: u32,
    pub(super) opened_ns: u64,
    pub(super) seen_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// `bpf/node_abi.h` asserts the same numbers of the C structs.
    #[test]
    fn structs_match_the_c_layout() {
        assert_eq!(size_of::<RawTunnelKey>(), 36);
        assert_eq!(size_of::<RawTunnel>(), 8);
        assert_eq!((size_of::<RawConn>(), offset_of!(RawConn, opened_ns)), (40, 24));
    }
}
