//! The route's edits, carried out on headers that pass.

use super::{Context, Fields, Relay, headers, link};
use crate::cache_status::CacheOutcome;
use crate::edits::{FieldRules, Known, Values};
use crate::target::target_key;
use http::header::{CONTENT_LENGTH, HOST};
use http::{HeaderValue, Version};
use larder_core::Reason;
use larder_core::rules::Head;
use larder_edge::Fields as _;
use pingora_error::Result;
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;

impl Relay {
    /// Lets `act` see what is known of a request, and of its reply if there is one of this status.
    pub(super) fn known<T>(
        &self,
        session: &Session,
        context: &Context,
        status: Option<u16>,
        act: impl FnOnce(&Known<'_>) -> T,
    ) -> T {
        let header = session.req_header();
        let (key, fields) = (target_key(headers::host(header), header.raw_path()), Fields(header));
        let node = context.decision.and_then(|decision| self.shared.nodes.get(decision.node));
        let link = link(session);
        act(&Known {
            head: Head::new(header.method.as_str().as_bytes(), key.host, key.path, &fields),
            client: link.as_ref().map(|link| link.client),
            secure: link.is_some_and(|link| link.security.is_some()),
            request_id: context.request_id.as_deref(),
            target: context.request.target,
            route: &self.shared.routing.of(context.request.route).name,
            class: context.request.class.name(),
            policy: self.shared.dispatcher.settings_of(context.request.route).policy.name(),
            node: node.as_ref().map(|node| &*node.name),
            reason: context.decision.map(|decision| decision.reason).map(Reason::name),
            status,
            cache: context.cache.map(CacheOutcome::name),
        })
    }

    /// Edits a request on its way to a node, whose header is still the client's but for what the switch has added.
    pub(super) fn edit_request(
        &self,
        session: &Session,
        request: &mut RequestHeader,
        context: &Context,
    ) -> Result<()> {
        let route = self.shared.routing.of(context.request.route);
        if !route.edited {
            return Ok(());
        }
        if let (Some(ids), Some(id)) = (&self.shared.request_ids, &context.request_id) {
            headers::Engine(&mut *request).set(ids.config.header.as_str(), id);
        }
        if let Some(rewrite) = &route.edits.rewrite {
            let header = session.req_header();
            let key = target_key(headers::host(header), header.raw_path());
            let head = Head::get(key.host, key.path);
            let path = rewrite.apply(head.path);
            if path != head.path {
                // Where the client's target has named the host, its header says the same from here on.
                if !key.host.is_empty()
                    && request.headers.get(HOST).map(HeaderValue::as_bytes) != Some(key.host)
                {
                    request.insert_header(HOST, key.host)?;
                }
                let query = head.query.map_or(Vec::new(), |query| [b"?", query].concat());
                request.set_raw_path(&[&*path, &query].concat())?;
            }
        }
        self.unstick(session, request, context)?;
        self.rules(
            session,
            context,
            None,
            [&self.shared.routing.request_fields, &route.edits.request_fields],
            headers::Engine(request),
        );
        Ok(())
    }

    /// Has the reply compressed, if its route does that and the client asks for it.
    pub(super) fn compress(
        &self,
        session: &Session,
        reply: &mut ResponseHeader,
        context: &mut Context,
    ) -> Result<()> {
        let Some(compression) = &self.shared.routing.of(context.request.route).edits.compress else {
            return Ok(());
        };
        // What comes without a length comes as it is made: none of it is kept waiting for more.
        let flush = !reply.headers.contains_key(CONTENT_LENGTH);
        let request = session.req_header();
        // A stream of HTTP/2 from a node may end with trailers, of which the codec is not told.
        if request.version >= Version::HTTP_11 && reply.version < Version::HTTP_2 {
            let (asked, status) =
                ((request.method.as_str().as_bytes(), &request.headers), reply.status.as_u16());
            let encoder = compression.prepare(asked, status, &mut headers::Engine(reply));
            context.encoder = encoder.map(|encoder| (encoder, flush));
        }
        Ok(())
    }

    /// Edits a reply on its way to the client.
    pub(super) fn edit_reply(
        &self,
        session: &Session,
        reply: &mut ResponseHeader,
        context: &Context,
    ) -> Result<()> {
        let route = self.shared.routing.of(context.request.route);
        if !route.edited {
            return Ok(());
        }
        if let (Some(ids), Some(id)) = (&self.shared.request_ids, &context.request_id)
            && ids.config.reply
        {
            headers::Engine(&mut *reply).set(ids.config.header.as_str(), id);
        }
        let status = reply.status.as_u16();
        self.rules(
            session,
            context,
            Some(status),
            [&self.shared.routing.reply_fields, &route.edits.reply_fields],
            headers::Engine(reply),
        );
        Ok(())
    }

    /// Has the rules carried out in their order.
    fn rules(
        &self,
        session: &Session,
        context: &Context,
        status: Option<u16>,
        rules: [&FieldRules; 2],
        mut message: impl larder_edge::Fields,
    ) {
        if rules.iter().all(|rules| rules.is_empty()) {
            return;
        }
        let mut values = Values::default();
        self.known(session, context, status, |known| {
            rules.iter().for_each(|rules| rules.render(known, &mut values));
        });
        rules.iter().fold(0, |from, rules| rules.edit(&mut message, &values, from));
    }
}
