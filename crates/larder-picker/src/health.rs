//! The health of a picker, as `grpc.health.v1` tells it.
//!
//! | service | `SERVING` |
//! |---|---|
//! | `liveness` | always |
//! | `readiness`, the external processing, and the empty name | from the first endpoint on, or from the moment at which all sources have been read, until a shutdown begins |
//!
//! A pool without endpoints is known, so the picker serves and replies 503 itself. Every replica serves: there is no leader.

use crate::picker::Picker;
use crate::proto::SERVICE;
use std::sync::Arc;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

const LIVENESS: &str = "liveness";
/// The services that are ready together.
const READY: [&str; 3] = ["", "readiness", SERVICE];

/// The health of a picker, and the server that tells it.
pub(crate) struct Health {
    reporter: HealthReporter,
    pub(crate) server: HealthServer<HealthService>,
}

impl Health {
    pub(crate) async fn new() -> Self {
        let (reporter, _) = tonic_health::server::health_reporter();
        let server = HealthServer::new(HealthService::from_health_reporter(reporter.clone()));
        let health = Self { reporter, server };
        health.reporter.set_service_status(LIVENESS, ServingStatus::Serving).await;
        health.set(ServingStatus::NotServing).await;
        health
    }

    /// Waits until the picker is ready, and sets `SERVING`.
    pub(crate) async fn follow(&self, picker: &Arc<Picker>) {
        picker.until_ready().await;
        tracing::info!("endpoint picker: endpoints known, health is SERVING");
        self.set(ServingStatus::Serving).await;
    }

    /// Sets `NOT_SERVING`, because a shutdown has begun.
    pub(crate) async fn stop(&self) {
        self.set(ServingStatus::NotServing).await;
    }

    async fn set(&self, status: ServingStatus) {
        for service in READY {
            self.reporter.set_service_status(service, status).await;
        }
    }
}
