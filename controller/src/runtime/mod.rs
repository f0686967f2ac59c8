//! What a member runs on.

mod enrolment;
mod kubevirt;
mod member;
mod network_policy;

pub use enrolment::{EnrolmentError, Issuer, read_seed, seed_secret};
pub use kubevirt::instance;
pub use member::{member_object, member_owner, pool_owner};
pub use network_policy::{Egress, Endpoint, Peer, PeerError, network_policy};
