//! Events that mark the ends of frames, reused so that no frame makes one.

use std::sync::{Arc, Mutex};

use overtone_cuda::driver::{DriverError, Entered, Event};

use crate::executor::lock;

/// Events of one executor that mark nothing now.
#[derive(Debug, Default)]
pub struct Events(Mutex<Vec<Arc<Event>>>);

/// The end of one frame. Its event goes back to the others when nobody asks for it any more.
#[derive(Debug)]
pub struct Mark {
    event: Arc<Event>,
    events: Arc<Events>,
}

impl Events {
    /// An event to record. One is made only when all are in use.
    ///
    /// # Errors
    /// The driver's.
    pub fn take(self: &Arc<Self>, entered: &Entered<'_>) -> Result<Arc<Mark>, DriverError> {
        let free = lock(&self.0).pop();
        let event = match free {
            Some(event) => event,
            None => Arc::new(Event::create(entered)?),
        };
        Ok(Arc::new(Mark { event, events: Arc::clone(self) }))
    }
}

impl Mark {
    /// The event.
    pub const fn event(&self) -> &Arc<Event> {
        &self.event
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // The executor may still hold the event as that of its latest frame: it looks at it before it records another.
        lock(&self.events.0).push(Arc::clone(&self.event));
    }
}
