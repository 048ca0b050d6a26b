//! The oracle against a cache that shares all replies. Each rule about sharing must find a wrong reply.

#![expect(clippy::unwrap_used, reason = "a failing helper fails its test")]

use larder_oracle::model::stored::end_to_end;
use larder_oracle::model::{Rule, sharing};
use larder_oracle::origin::{self, CaseRegistry};
use larder_oracle::run::{self, Plan};
use larder_oracle::runner::Target;
use larder_oracle::wire::{Fields, Head, Wire};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OnceCell;

/// A cached reply.
#[derive(Clone, Default)]
struct CachedReply {
    head: Head,
    body: Vec<u8>,
}

/// A cache that keeps the first reply for each path forever, independent of host, query, method, reply and client.
struct CarelessCache {
    origin: SocketAddr,
    cached: Mutex<HashMap<String, Arc<OnceCell<CachedReply>>>>,
}

impl CarelessCache {
    async fn start(origin: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let careless = Arc::new(Self { origin, cached: Mutex::default() });
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let careless = Arc::clone(&careless);
                tokio::spawn(async move { careless.serve(Wire::new(tcp)).await });
            }
        });
        address
    }

    async fn serve(&self, mut wire: Wire) {
        while let Ok(Some(head)) = wire.request().await {
            wire.request_body(&head).await.unwrap();
            let cached = if head.method == "POST" {
                self.fetch(&head).await
            } else {
                let path = head.target.split('?').next().unwrap_or_default().to_owned();
                let cell = Arc::clone(self.cached.lock().unwrap().entry(path).or_default());
                cell.get_or_init(|| self.fetch(&head)).await.clone()
            };
            let mut text = format!("HTTP/1.1 {} Kept\r\n", cached.head.status);
            cached.head.fields.write(&mut text);
            let mut bytes = text.into_bytes();
            let bodiless = matches!(cached.head.status, 204 | 304);
            if !bodiless {
                bytes.extend(format!("Content-Length: {}\r\n", cached.body.len()).bytes());
            }
            bytes.extend(b"\r\n");
            if head.method != "HEAD" && !bodiless {
                bytes.extend(&cached.body);
            }
            if wire.write(&bytes).await.is_err() {
                return;
            }
        }
    }

    /// Fetches a reply from the origin, or generates 502 if the origin fails.
    async fn fetch(&self, head: &Head) -> CachedReply {
        self.try_fetch(head).await.unwrap_or_else(|_| CachedReply {
            head: Head { status: 502, ..Head::default() },
            body: Vec::new(),
        })
    }

    async fn try_fetch(&self, head: &Head) -> std::io::Result<CachedReply> {
        let mut wire = Wire::new(TcpStream::connect(self.origin).await?);
        let mut text = format!("{} {} HTTP/1.1\r\n", head.method, head.target);
        end_to_end(&head.fields).write(&mut text);
        text.push_str(if head.method == "POST" { "\r\nhello" } else { "\r\n" });
        wire.write(text.as_bytes()).await?;
        loop {
            let mut reply = wire.reply().await?.ok_or_else(|| std::io::Error::other("closed"))?;
            if reply.status >= 200 {
                let body = wire.reply_body(&head.method, &reply).await?;
                let mut fields: Fields = end_to_end(&reply.fields);
                fields.remove("content-length");
                reply.fields = fields;
                return Ok(CachedReply { head: reply, body: body.bytes });
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_sharing_rule_finds_violations_of_a_careless_cache() {
    let registry = Arc::new(CaseRegistry::new(32));
    let origin = origin::start(Arc::clone(&registry)).await.unwrap();
    let target = Arc::new(Target {
        name: "careless",
        entry_points: vec![CarelessCache::start(origin).await],
        one_cache: true,
        dropped: None,
        hedge: None,
    });
    let plan =
        Plan { seed: 3, numbers: 0..6_000, runners: 32, grace: Duration::from_millis(15), shown_max: 0 };
    let outcome = run::run(&target, &registry, &Arc::<AtomicU64>::default(), &plan).await;
    let found = |rule: &Rule| outcome.broken.get(rule).copied().unwrap_or(0);
    // This cache never validates, so it cannot violate the rules about 304.
    let missed: Vec<Rule> = sharing().filter(|rule| *rule != Rule::Validation && found(rule) == 0).collect();
    assert!(missed.is_empty(), "not found: {missed:?} in {:?}", outcome.broken);
    let also = [
        Rule::Age,
        Rule::Identity,
        Rule::Foreign,
        Rule::PrivateFields,
        Rule::NoCacheFields,
        Rule::NotModified,
    ];
    assert!(also.iter().all(|rule| found(rule) > 0), "{also:?} in {:?}", outcome.broken);
    assert!(!outcome.passes());
}
