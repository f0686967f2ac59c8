//! What may be removed from SPIRE because nothing stands for it any more. Pure.
//!
//! A sweep acts on absence: an object that is not seen is taken for gone. A list that was cut short, a watch that
//! has not filled yet or a wrong cluster name would make everything look gone. So a sweep never starts from an
//! incomplete list, touches only its own cluster's records, and stops when it would remove more than a tenth and more than
//! a handful: in a small cluster a tenth is nothing, and what was removed by force there must lose its identity too.

use std::collections::BTreeSet;

/// One record that could be swept, with the key of what it stands for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    /// Id of the record in SPIRE.
    pub id: String,
    /// Uid of the object it stands for.
    pub stands_for: String,
    /// Its object is known to have ended and to be gone in the usual way: removing it is no surprise and does not
    /// count towards the limit.
    pub expected: bool,
}

/// What a sweep may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Remove these; often none.
    Remove(Vec<String>),
    /// Too much would go: remove nothing and tell somebody.
    Stop {
        /// How many surprises there are.
        surprising: usize,
        /// Of how many records.
        of: usize,
    },
}

/// Records of two members with their claims, which an operator may have removed by force in one go.
const ALWAYS_ALLOWED: usize = 6;

/// Plans a sweep of `records`, which must be the complete list of this cluster's records, against the uids of all
/// living objects.
#[must_use]
pub fn plan(records: &[Record], living: &BTreeSet<String>) -> Plan {
    let (mut remove, mut surprising) = (Vec::new(), 0);
    for record in records.iter().filter(|record| !living.contains(&record.stands_for)) {
        surprising += usize::from(!record.expected);
        remove.push(record.id.clone());
    }
    if surprising > ALWAYS_ALLOWED.max(records.len() / 10) {
        return Plan::Stop { surprising, of: records.len() };
    }
    Plan::Remove(remove)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(count: usize) -> Vec<Record> {
        (0..count).map(|at| Record { id: format!("r{at}"), stands_for: format!("u{at}"), expected: false }).collect()
    }

    fn living(range: std::ops::Range<usize>) -> BTreeSet<String> {
        range.map(|at| format!("u{at}")).collect()
    }

    #[test]
    fn removes_what_nothing_stands_for() {
        assert_eq!(plan(&records(20), &living(0..20)), Plan::Remove(vec![]));
        assert_eq!(plan(&records(20), &living(1..20)), Plan::Remove(vec!["r0".to_owned()]));
        assert_eq!(plan(&records(20), &living(2..30)), Plan::Remove(vec!["r0".to_owned(), "r1".to_owned()]));
        assert_eq!(plan(&[], &living(0..3)), Plan::Remove(vec![]));
    }

    #[test]
    fn stops_above_a_tenth_and_a_handful() {
        assert_eq!(plan(&records(20), &living(7..20)), Plan::Stop { surprising: 7, of: 20 });
        assert_eq!(plan(&records(80), &living(9..80)), Plan::Stop { surprising: 9, of: 80 });
        assert!(matches!(plan(&records(80), &living(8..80)), Plan::Remove(ids) if ids.len() == 8));
    }

    #[test]
    fn a_handful_goes_however_few_there_are() {
        assert!(matches!(plan(&records(2), &living(0..0)), Plan::Remove(ids) if ids.len() == 2));
        assert!(matches!(plan(&records(6), &living(0..0)), Plan::Remove(ids) if ids.len() == 6));
        assert_eq!(plan(&records(7), &living(0..0)), Plan::Stop { surprising: 7, of: 7 });
    }

    #[test]
    fn expected_ends_do_not_count() {
        let mut all = records(20);
        for record in all.iter_mut().take(12) {
            record.expected = true;
        }
        let Plan::Remove(ids) = plan(&all, &living(12..20)) else { panic!("stopped") };
        assert_eq!(ids.len(), 12);
        // What is expected gone but still lives stays.
        let Plan::Remove(ids) = plan(&all, &living(0..20)) else { panic!("stopped") };
        assert_eq!(ids, Vec::<String>::new());
    }
}
