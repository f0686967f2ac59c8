//! Objects that cannot be read are told of: nothing else can be done about them, and nothing is done to them.
//!
//! No condition is written: it would go into a status that this version does not understand.

use super::{Controller, Event};
use crate::api::Kind;
use crate::store::{Change, Unread};

impl Controller {
    /// Counts them, and tells of a new one.
    pub(super) fn note_unreadable(&self, change: &Change) {
        let kind = change.event.kind();
        let (new, count) = {
            let mut index = self.index();
            (index.unreadable.see(change), index.unreadable.count(kind))
        };
        self.metrics.unreadable(kind, count);
        if let Some(unread) = new.filter(|_| self.works()) {
            self.tell_unreadable(&unread);
        }
    }

    /// Whoever begins to lead tells of all there are: nobody knows what the one before has told.
    pub(super) fn tell_all_unreadable(&self) {
        let all: Vec<Unread> = self.index().unreadable.iter().cloned().collect();
        all.iter().for_each(|unread| self.tell_unreadable(unread));
    }

    fn tell_unreadable(&self, unread: &Unread) {
        // Nodes and the like have no events of ours.
        let kinds = [Kind::Pool, Kind::Member, Kind::Claim, Kind::Instance];
        let Some(kind) = kinds.into_iter().find(|kind| kind.plural() == unread.kind) else { return };
        self.events.send(Event {
            kind,
            object: unread.object.clone(),
            uid: unread.uid.clone(),
            group: unread.uid.clone(),
            warning: true,
            reason: "Unreadable".to_owned(),
            action: "Read",
            message: format!(
                "the controller cannot read this object and leaves it as it is: {}. Correct or delete it, or run the version \
                 of the controller that belongs to the definitions that are installed",
                unread.why
            ),
        });
    }
}
