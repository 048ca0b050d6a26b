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
/// A watch without a failure for this time has recovered. The time covers the longest pause between two attempts and the attempt
/// itself.
const RECOVERY_TIME: Duration = Duration::from_secs(45);

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
            events: Box::pin(watcher(api, selector).default_backoff()),
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
                    Err(_) => {
                        self.failing = false;
                        return Ok(());
                    }
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
