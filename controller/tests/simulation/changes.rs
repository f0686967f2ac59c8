//! Objects of the simulated server as the changes that a watch brings.

use banlieue_controller::api::Kind as ObjectKind;
use banlieue_controller::store::{Change, ChangeEvent};
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::server::Logged;
use crate::world;

pub fn read<T: DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"))
}

/// The scope of the watch that tells about a kind.
pub fn scope(kind: ObjectKind) -> String {
    match kind {
        ObjectKind::ConfigMap | ObjectKind::NetworkPolicy => world::NAMESPACE.to_owned(),
        _ => String::new(),
    }
}

/// A list begins or ends.
pub fn boundary(kind: ObjectKind, begins: bool) -> ChangeEvent {
    macro_rules! both {
        ($variant:ident) => {
            if begins { ChangeEvent::$variant(Event::Init) } else { ChangeEvent::$variant(Event::InitDone) }
        };
    }
    match kind {
        ObjectKind::Pool => both!(Pool),
        ObjectKind::Member => both!(Member),
        ObjectKind::Claim => both!(Claim),
        ObjectKind::Instance => both!(Instance),
        ObjectKind::Pod => both!(Pod),
        ObjectKind::ConfigMap => both!(ConfigMap),
        ObjectKind::NetworkPolicy => both!(NetworkPolicy),
        _ => unreachable!("not watched"),
    }
}

/// How an object is told.
#[derive(Clone, Copy)]
enum How {
    Listed,
    Changed,
    Deleted,
}

impl How {
    fn wrap<T>(self, object: T) -> Event<T> {
        match self {
            How::Listed => Event::InitApply(object),
            How::Changed => Event::Apply(object),
            How::Deleted => Event::Delete(object),
        }
    }
}

/// One thing of a kind's log, as its watch tells it.
pub fn event(kind: ObjectKind, logged: &Logged) -> Option<Change> {
    wrap(kind, &logged.object, if logged.deleted { How::Deleted } else { How::Changed })
}

/// One object of a list.
pub fn listed(kind: ObjectKind, object: &Value) -> Option<Change> {
    wrap(kind, object, How::Listed)
}

fn wrap(kind: ObjectKind, object: &Value, how: How) -> Option<Change> {
    if matches!(kind, ObjectKind::ConfigMap | ObjectKind::NetworkPolicy)
        && object["metadata"]["namespace"] != world::NAMESPACE
    {
        return None;
    }
    let event = match kind {
        ObjectKind::Pool => ChangeEvent::Pool(how.wrap(read(object))),
        ObjectKind::Member => ChangeEvent::Member(how.wrap(read(object))),
        ObjectKind::Claim => ChangeEvent::Claim(how.wrap(read(object))),
        ObjectKind::Instance => ChangeEvent::Instance(how.wrap(read(object))),
        ObjectKind::Pod => ChangeEvent::Pod(how.wrap(read(object))),
        ObjectKind::ConfigMap => ChangeEvent::ConfigMap(how.wrap(read(object))),
        ObjectKind::NetworkPolicy => ChangeEvent::NetworkPolicy(how.wrap(read(object))),
        _ => unreachable!("not watched"),
    };
    Some(Change { scope: scope(kind), event })
}
