//! The Kubernetes types of banlieue: pool, member, claim, endorsement report.
