//! The header of a record: settings, routes and nodes at the start of the run.

use super::frame::{put_spec, put_table, read_spec, read_table};
use super::settings::{from_text, to_text};
use super::{FRAME_BYTES_MAX, MAGIC, RecordError, VERSION};
use crate::dispatch::{Dispatcher, RouteSpec, Settings};
use crate::nodes::{GroupId, NODES_LIMIT, NodeSpec};
use crate::wire::{Wire, WireError, put, put_bytes};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The configuration at the start of a recorded run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The default route's settings, which are also the dispatcher's.
    pub settings: Settings,
    /// The other routes.
    pub routes: Vec<RouteSpec>,
    /// The nodes, in the order of their slots.
    pub nodes: Vec<NodeSpec>,
}

impl Header {
    /// Encodes the first bytes of a record: magic, version, and the header preceded by its length.
    ///
    /// # Errors
    /// A setting cannot be recorded, or the header does not fit in one frame.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        let mut body = Vec::new();
        put_settings(&mut body, &self.settings)?;
        put(&mut body, self.routes.len() as u64);
        for route in &self.routes {
            put(&mut body, route.group.index() as u64);
            put_settings(&mut body, &route.settings)?;
        }
        put(&mut body, self.nodes.len() as u64);
        self.nodes.iter().for_each(|spec| put_spec(&mut body, spec));
        if body.len() > FRAME_BYTES_MAX {
            return Err(WireError::TooLong(body.len() as u64).into());
        }
        let mut out = [&MAGIC[..], &[VERSION]].concat();
        put_bytes(&mut out, &body);
        Ok(out)
    }

    /// Decodes a header without magic, version and length.
    ///
    /// # Errors
    /// The bytes are not a header.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut wire = Wire(bytes);
        let own = read_settings(&mut wire)?;
        let count = wire.number("number of routes")?;
        if count >= Dispatcher::ROUTES_MAX as u64 {
            return Err(WireError::Value { what: "number of routes", value: count }.into());
        }
        let route = |_| {
            let number: u8 = wire.small("group")?;
            let group = GroupId::new(number);
            let group = group.ok_or(WireError::Value { what: "group", value: number.into() })?;
            Ok(RouteSpec { group, settings: read_settings(&mut wire)? })
        };
        let routes = (0..count).map(route).collect::<Result<_, RecordError>>()?;
        let count = wire.number("number of nodes")?;
        if count > u64::from(NODES_LIMIT) {
            return Err(WireError::Value { what: "number of nodes", value: count }.into());
        }
        let nodes = (0..count).map(|_| read_spec(&mut wire)).collect::<Result<_, _>>()?;
        wire.end()?;
        Ok(Self { settings: own, routes, nodes })
    }
}

/// Encodes the settings as text, and the routing table if there is one: 0, or 1 and the table.
fn put_settings(out: &mut Vec<u8>, settings: &Settings) -> Result<(), RecordError> {
    put_bytes(out, to_text(settings)?.as_bytes());
    match &settings.table {
        None => out.push(0),
        Some(table) => {
            out.push(1);
            put_table(out, table);
        }
    }
    Ok(())
}

fn read_settings(wire: &mut Wire<'_>) -> Result<Settings, RecordError> {
    let settings = from_text(wire.text("settings")?)?;
    let table = match wire.byte("routing table")? {
        0 => None,
        1 => Some(Arc::new(read_table(wire)?)),
        other => return Err(WireError::Value { what: "sign of a routing table", value: other.into() }.into()),
    };
    Ok(Settings { table, ..settings })
}
