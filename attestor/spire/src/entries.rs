//! Registration entries: who gets which SVID on which agent.

use banlieue_protocol::names::{Cluster, SpiffeId, Writer, entry_prefix};
use tonic::Code;

use crate::{
    Client, Error,
    client::limited,
    proto::spire::api::{
        server::entry::v1::{
            BatchCreateEntryRequest, BatchDeleteEntryRequest, ListEntriesRequest, entry_client::EntryClient,
        },
        types,
    },
    to_proto,
};

/// SPIRE's own default page is unlimited, which would be one answer of any size.
const PAGE: i32 = 500;
/// More than this is no cluster of ours; it bounds a server that pages for ever.
const MOST_PAGES: usize = 2_000;

/// An entry to be made. Never admin, never downstream, no DNS names, no hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEntry {
    /// Its id, which says who wrote it: see [`entry_prefix`].
    pub id: String,
    /// The identity it grants.
    pub spiffe_id: SpiffeId,
    /// The agent that hands it out.
    pub parent: SpiffeId,
    /// What a workload must be, as `(type, value)`; all of them.
    pub selectors: Vec<(String, String)>,
    /// Life of the X.509 SVIDs in seconds; 0 takes the server's default.
    pub x509_svid_ttl: i32,
    /// Seconds since 1970, for SPIRE's pruner; 0 for never. Enforces nothing.
    pub expires_at: i64,
}

/// How a creation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// It is new.
    New,
    /// One of the same meaning was there, under this id.
    Existed(String),
}

/// An entry as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its id.
    pub id: String,
    /// Path of the identity it grants.
    pub path: String,
    /// Path of its agent.
    pub parent_path: String,
    /// `(type, value)`.
    pub selectors: Vec<(String, String)>,
}

/// Whether an entry id belongs to this writer of this cluster: only such ids are ever deleted.
#[must_use]
pub fn is_of(id: &str, cluster: &Cluster, writer: Writer) -> bool {
    id.starts_with(&entry_prefix(cluster, writer))
}

impl Client {
    /// Makes entries. Each has its own result, in order; making one twice is no error.
    ///
    /// # Errors
    /// When the call as a whole fails; nothing is known then, and it may be made again.
    pub async fn create_entries(&self, entries: &[NewEntry]) -> Result<Vec<Result<Created, Error>>, Error> {
        const CALL: &str = "creating entries";
        let trust_domain = self.trust_domain();
        let request = BatchCreateEntryRequest {
            entries: entries
                .iter()
                .map(|entry| types::Entry {
                    id: entry.id.clone(),
                    spiffe_id: Some(to_proto(trust_domain, &entry.spiffe_id)),
                    parent_id: Some(to_proto(trust_domain, &entry.parent)),
                    selectors: entry
                        .selectors
                        .iter()
                        .map(|(kind, value)| types::Selector { r#type: kind.clone(), value: value.clone() })
                        .collect(),
                    x509_svid_ttl: entry.x509_svid_ttl,
                    expires_at: entry.expires_at,
                    ..types::Entry::default()
                })
                .collect(),
            // The id comes in any case.
            output_mask: Some(types::EntryMask::default()),
        };
        let mut client = EntryClient::new(self.channel());
        let results = limited(CALL, client.batch_create_entry(request)).await?.into_inner().results;
        if results.len() != entries.len() {
            let what = format!("{} results for {} entries", results.len(), entries.len());
            return Err(Error::Answer { call: CALL, what });
        }
        Ok(results.into_iter().map(|result| created(CALL, result.status, result.entry)).collect())
    }

    /// Every entry in SPIRE, of whomever. Complete, or an error.
    ///
    /// # Errors
    /// When any page is missing.
    pub async fn list_entries(&self) -> Result<Vec<Entry>, Error> {
        self.list_entries_by(None).await
    }

    /// The entries whose agent is `parent`. Complete, or an error.
    ///
    /// # Errors
    /// When any page is missing.
    pub async fn list_entries_of(&self, parent: &SpiffeId) -> Result<Vec<Entry>, Error> {
        self.list_entries_by(Some(parent)).await
    }

    async fn list_entries_by(&self, parent: Option<&SpiffeId>) -> Result<Vec<Entry>, Error> {
        const CALL: &str = "listing entries";
        use crate::proto::spire::api::server::entry::v1::list_entries_request::Filter;
        let filter = parent
            .map(|parent| Filter { by_parent_id: Some(to_proto(self.trust_domain(), parent)), ..Filter::default() });
        let mask = types::EntryMask { spiffe_id: true, parent_id: true, selectors: true, ..Default::default() };
        let mut client = EntryClient::new(self.channel());
        let mut entries = Vec::new();
        let mut page_token = String::new();
        for _ in 0..MOST_PAGES {
            let request =
                ListEntriesRequest { filter: filter.clone(), output_mask: Some(mask), page_size: PAGE, page_token };
            let page = limited(CALL, client.list_entries(request)).await?.into_inner();
            entries.extend(page.entries.into_iter().map(read));
            if page.next_page_token.is_empty() {
                return Ok(entries);
            }
            page_token = page.next_page_token;
        }
        Err(Error::Answer { call: CALL, what: "the list does not end".to_owned() })
    }

    /// Deletes entries by id. Each has its own result, in order; one that is gone already is no error.
    ///
    /// # Errors
    /// When the call as a whole fails.
    pub async fn delete_entries(&self, ids: &[String]) -> Result<Vec<Result<(), Error>>, Error> {
        const CALL: &str = "deleting entries";
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut client = EntryClient::new(self.channel());
        let request = BatchDeleteEntryRequest { ids: ids.to_vec() };
        let results = limited(CALL, client.batch_delete_entry(request)).await?.into_inner().results;
        if results.len() != ids.len() {
            let what = format!("{} results for {} entries", results.len(), ids.len());
            return Err(Error::Answer { call: CALL, what });
        }
        Ok(results
            .into_iter()
            .map(|result| match status(result.status) {
                status if matches!(status.code(), Code::Ok | Code::NotFound) => Ok(()),
                status => Err(Error::call(CALL)(status)),
            })
            .collect())
    }
}

fn status(status: Option<types::Status>) -> tonic::Status {
    let status = status.unwrap_or_default();
    tonic::Status::new(Code::from_i32(status.code), status.message)
}

fn created(call: &'static str, answer: Option<types::Status>, entry: Option<types::Entry>) -> Result<Created, Error> {
    let answer = status(answer);
    match answer.code() {
        Code::Ok => Ok(Created::New),
        // "similar entry already exists": same identity, agent and selectors, or the same id.
        Code::AlreadyExists => match entry {
            Some(entry) if !entry.id.is_empty() => Ok(Created::Existed(entry.id)),
            _ => Err(Error::Answer { call, what: "an existing entry came without its id".to_owned() }),
        },
        _ => Err(Error::call(call)(answer)),
    }
}

fn read(entry: types::Entry) -> Entry {
    Entry {
        id: entry.id,
        path: entry.spiffe_id.unwrap_or_default().path,
        parent_path: entry.parent_id.unwrap_or_default().path,
        selectors: entry.selectors.into_iter().map(|selector| (selector.r#type, selector.value)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: Code) -> Option<types::Status> {
        Some(types::Status { code: code as i32, message: "m".to_owned() })
    }

    #[test]
    fn a_second_creation_names_the_first() {
        let entry = types::Entry { id: "local.attestor.node.x".to_owned(), ..Default::default() };
        assert_eq!(created("c", answer(Code::Ok), Some(entry.clone())).unwrap(), Created::New);
        assert_eq!(
            created("c", answer(Code::AlreadyExists), Some(entry)).unwrap(),
            Created::Existed("local.attestor.node.x".to_owned())
        );
        assert!(created("c", answer(Code::AlreadyExists), None).is_err());
        assert!(created("c", answer(Code::Internal), None).unwrap_err().is_transient());
        assert!(!created("c", answer(Code::InvalidArgument), None).unwrap_err().is_transient());
    }

    #[test]
    fn ids_tell_clusters_and_writers_apart() {
        let cluster = Cluster::parse("local").unwrap();
        assert!(is_of("local.attestor.node.x", &cluster, Writer::Attestor));
        assert!(!is_of("local.mediatore.claim.x", &cluster, Writer::Attestor));
        assert!(!is_of("local2.attestor.node.x", &cluster, Writer::Attestor));
        assert!(!is_of("local.attestor", &cluster, Writer::Attestor));
        assert!(!is_of("0f3c…", &cluster, Writer::Attestor));
    }
}
