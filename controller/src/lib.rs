//! The banlieue controller: pools, claims, members, deadlines.
