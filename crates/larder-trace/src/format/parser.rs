//! The parser of a format, with what it keeps from line to line.

use std::ops::ControlFlow;

use super::json_fields::{CADDY, ENVOY, JsonFields, KeyTable, LARDER, NGINX, TRAEFIK};
use super::timestamp::CommonClock;
use super::{Format, alb, clf, haproxy, json, keys, mooncake, oracle, s3, sdsc, w3c, worldcup};
use crate::record::{Reason, Record};
use crate::report::TokenSums;

/// Reads the lines (or binary records) of one format.
pub(crate) struct Parser {
    clock: CommonClock,
    kind: Kind,
    /// Token sums, in formats that have them.
    pub(crate) tokens: Option<TokenSums>,
}

enum Kind {
    Clf,
    Sdsc,
    WorldCup98,
    OracleGeneral,
    Keys64,
    Mooncake,
    Haproxy,
    Alb,
    S3,
    W3c { header: w3c::Header, target: Vec<u8> },
    Json(Box<json::Parser>),
}

impl Parser {
    /// The parser of a format. The user's fields are needed for [`Format::Json`] alone; without them no line fits.
    pub(crate) fn new(format: Format, fields: Option<&JsonFields>) -> Self {
        let server = |table: KeyTable| Kind::Json(Box::new(json::Parser::of_server(table)));
        let kind = match format {
            Format::Clf => Kind::Clf,
            Format::Sdsc => Kind::Sdsc,
            Format::WorldCup98 => Kind::WorldCup98,
            Format::OracleGeneral => Kind::OracleGeneral,
            Format::Keys64 => Kind::Keys64,
            Format::Mooncake => Kind::Mooncake,
            Format::Haproxy => Kind::Haproxy,
            Format::Alb => Kind::Alb,
            Format::S3 => Kind::S3,
            Format::W3c => Kind::W3c { header: w3c::Header::default(), target: Vec::new() },
            Format::Larder => server(LARDER),
            Format::Caddy => server(CADDY),
            Format::Envoy => server(ENVOY),
            Format::Nginx => server(NGINX),
            Format::Traefik => server(TRAEFIK),
            Format::Json => fields
                .map_or_else(|| server(&[]), |fields| Kind::Json(Box::new(json::Parser::of_user(fields)))),
        };
        Self { clock: CommonClock::default(), kind, tokens: None }
    }

    /// Bytes of a record, in formats that have no lines.
    pub(crate) const fn record_bytes(&self) -> Option<usize> {
        match self.kind {
            Kind::WorldCup98 => Some(worldcup::RECORD_BYTES),
            Kind::OracleGeneral => Some(oracle::RECORD_BYTES),
            Kind::Keys64 => Some(keys::RECORD_BYTES),
            _ => None,
        }
    }

    /// Reads one line (without its line end) or record. `take` gets each request, or why there is none; a directive gives
    /// neither.
    pub(crate) fn parse(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(Result<Record<'_>, Reason>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let clock = &mut self.clock;
        match &mut self.kind {
            Kind::Clf => take(clf::parse(bytes, clock)),
            Kind::Sdsc => take(sdsc::parse(bytes)),
            Kind::WorldCup98 => take(worldcup::parse(bytes)),
            Kind::OracleGeneral => take(oracle::parse(bytes)),
            Kind::Keys64 => take(keys::parse(bytes)),
            Kind::Haproxy => take(haproxy::parse(bytes, clock)),
            Kind::Alb => take(alb::parse(bytes)),
            Kind::S3 => take(s3::parse(bytes, clock)),
            Kind::Json(parser) => take(parser.parse(bytes, clock)),
            Kind::W3c { header, target } => match w3c::parse(bytes, header, target).transpose() {
                Some(parsed) => take(parsed),
                None => ControlFlow::Continue(()),
            },
            Kind::Mooncake => match mooncake::parse(bytes) {
                Err(reason) => take(Err(reason)),
                Ok(line) => {
                    let sums = self.tokens.get_or_insert_default();
                    sums.input = sums.input.saturating_add(line.input_length);
                    sums.output = sums.output.saturating_add(line.output_length);
                    line.records().try_for_each(|record| take(Ok(record)))
                }
            },
        }
    }
}
