//! The objects of one kind that a selector matches, as the API server lists and changes them.
//!
//! If the API server has dropped old changes (410 Gone), the list is requested again. A watch that breaks off is resumed after pauses
//! that grow from 0.8 to 30 s.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use super::{WatchError, describe};

/// Status of a watch whose version the API server no longer has (410).
const HTTP_GONE: u16 = 410;
/// A watch without a failure for this time has recovered, if there is a list. The time covers the longest pause between two attempts,
/// 60 s, and the attempt itself.
const RECOVERY_TIME: Duration = Duration::from_secs(100);
/// The time after which the API server ends a watch, and the watcher begins another. A connection that is dead without a sign is
/// noticed 5 s later.
const WATCH_SECONDS: u32 = 30;

type Events<K> = Pin<Box<dyn Stream<Item = watcher::Result<Event<K>>> + Send>>;

/// A watch of objects.
pub(super) struct ObjectWatch<K> {
    events: Events<K>,
    cache: ObjectCache<K>,
    /// Whether the last attempt failed.
    failing: bool,
}

impl<K> Debug for ObjectWatch<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectWatch").field("objects", &self.cache.objects.len()).finish_non_exhaustive()
    }
}

impl<K: Resource + Clone + DeserializeOwned + Debug + Send + 'static> ObjectWatch<K> {
    /// Creates a watch. Sends nothing yet.
    pub(super) fn new(api: Api<K>, selector: watcher::Config) -> Self {
        Self {
            events: Box::pin(watcher(api, selector.timeout(WATCH_SECONDS)).default_backoff()),
            cache: ObjectCache::default(),
            failing: false,
        }
    }

    /// Waits until the objects have changed, or the watch has recovered. A caller may drop the future and call again.
    pub(super) async fn changed(&mut self) -> Result<(), WatchError> {
        loop {
            let event = if self.failing {
                match tokio::time::timeout(RECOVERY_TIME, self.events.next()).await {
                    Ok(event) => event,
                    Err(_) if self.cache.is_listed => {
                        self.failing = false;
                        return Ok(());
                    }
                    Err(_) => continue,
                }
            } else {
                self.events.next().await
            };
            match event {
                Some(Ok(event)) => {
                    if self.cache.apply(event) {
                        self.failing = false;
                        return Ok(());
                    }
                }
                // The API server dropped old changes, which is normal. The watcher requests the list again.
                Some(Err(watcher::Error::WatchError(status))) if status.code == HTTP_GONE => {}
                Some(Err(error)) => {
                    self.failing = true;
                    return Err(WatchError::Watch(describe(&error)));
                }
                // The stream has no end.
                None => std::future::pending().await,
            }
        }
    }

    /// Returns the objects, ordered by name.
    pub(super) fn objects(&self) -> impl Iterator<Item = &K> {
        self.cache.objects()
    }

    /// Whether a list has been received.
    pub(super) fn is_listed(&self) -> bool {
        self.cache.is_listed
    }
}

/// The known objects by name.
#[derive(Debug)]
pub(super) struct ObjectCache<K> {
    objects: BTreeMap<String, K>,
    /// Objects of a list that is not complete yet.
    incoming: BTreeMap<String, K>,
    is_listed: bool,
}

impl<K> Default for ObjectCache<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), incoming: BTreeMap::new(), is_listed: false }
    }
}

impl<K: Resource> ObjectCache<K> {
    pub(super) fn objects(&self) -> impl Iterator<Item = &K> {
        self.objects.values()
    }

    /// Applies an event. Returns whether the objects may have changed. A list takes effect when it is complete.
    pub(super) fn apply(&mut self, event: Event<K>) -> bool {
        match event {
            Event::Init => {
                self.incoming.clear();
                return false;
            }
            Event::InitApply(object) => {
                self.incoming.insert(object.name_any(), object);
                return false;
            }
            Event::InitDone => {
                self.objects = std::mem::take(&mut self.incoming);
                self.is_listed = true;
            }
            Event::Apply(object) => {
                self.objects.insert(object.name_any(), object);
            }
            Event::Delete(object) => {
                self.objects.remove(&object.name_any());
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use k8s_openapi::api::core::v1::ConfigMap;

    /// Returns a watch in which nothing happens after these events.
    fn watch(events: Vec<watcher::Result<Event<ConfigMap>>>) -> ObjectWatch<ConfigMap> {
        let events = Box::pin(stream::iter(events).chain(stream::pending()));
        ObjectWatch { events, cache: ObjectCache::default(), failing: false }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_watch_with_a_list_recovers() {
        let failure = || Err(watcher::Error::NoResourceVersion);
        let mut listed = watch(vec![Ok(Event::Init), Ok(Event::InitDone), failure()]);
        listed.changed().await.expect("a list");
        listed.changed().await.expect_err("a failure");
        listed.changed().await.expect("no more failures");

        let mut unlisted = watch(vec![failure(), Ok(Event::Init)]);
        unlisted.changed().await.expect_err("a failure");
        let later = tokio::time::timeout(Duration::from_secs(3_600), unlisted.changed()).await;
        assert!(later.is_err(), "no list has been read, so there are no nodes to report");
    }
}
