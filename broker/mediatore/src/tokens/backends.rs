//! What the routes ask of providers: at claim time whether a person's audiences can be served and what is kept for them,
//! at token time a confirmation (`dex-refresh`) or the token itself (`entra-obo`).

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use banlieue_crds::VirtualMachineClaim;
use banlieue_identity::{Caller, Path};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    certificate::ClientCertificate,
    endpoint::{Endpoint, Proof, Tokens, Trouble},
    material::{Kept, Material},
    sessions::{self, Lack, Sessions},
    settings::{self, client_secret, resource_of},
    upstream::{Dialect, Meaning},
};
use crate::{
    audit::Entry,
    broker::Broker,
    claims::{
        cluster::place,
        grant::{Grant, SealingKeys},
        lend,
        record::subject_key,
    },
    config::{Audience, Backend, Config},
    http::{
        answer::{Code, Failure},
        reload::Reloaded,
    },
};

/// The on-behalf-of grant (RFC 7523, 2.1, as Entra extends it).
const ON_BEHALF_OF: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";

/// One issuer, as it is asked for tokens.
pub struct Upstream {
    /// For what.
    pub backend: Backend,
    /// Where.
    pub endpoint: Endpoint,
}

/// Every issuer that is asked for tokens.
pub struct Upstreams {
    by_url: BTreeMap<String, Arc<Upstream>>,
    /// What their refresh tokens are sealed with.
    pub sealing: Arc<Reloaded<SealingKeys>>,
    /// Sessions at those whose refresh tokens change with each use.
    pub sessions: Sessions,
}

impl Upstreams {
    /// As configured; secrets and certificates are read now and again when they change, until `stop`.
    ///
    /// # Errors
    /// What is wrong with a file.
    pub fn new(config: &Config, sealing: Arc<Reloaded<SealingKeys>>, stop: &CancellationToken) -> Result<Self, String> {
        let mut by_url = BTreeMap::new();
        for settings in &config.upstreams {
            let Some(issuer) = config.issuers.iter().find(|issuer| issuer.name == settings.issuer) else { continue };
            let endpoint = Endpoint {
                issuer: issuer.name.clone(),
                ca_file: issuer.ca_file.clone(),
                client_id: settings.client_id.clone().unwrap_or_else(|| issuer.client_id.clone()),
                dialect: if settings.backend == Backend::DexRefresh { Dialect::Dex } else { Dialect::Standard },
                proof: proof(settings, stop)?,
                client: Default::default(),
            };
            by_url.insert(issuer.url.clone(), Arc::new(Upstream { backend: settings.backend, endpoint }));
        }
        let mut random = [0; 16];
        aws_lc_rs::rand::fill(&mut random).map_err(|_| "there is no randomness to be had".to_owned())?;
        Ok(Self { by_url, sealing, sessions: Sessions::new(random) })
    }

    /// The one that serves this backend for subjects of this issuer.
    #[must_use]
    pub fn of(&self, issuer_url: &str, backend: Backend) -> Option<&Arc<Upstream>> {
        self.by_url.get(issuer_url).filter(|upstream| upstream.backend == backend)
    }
}

fn proof(settings: &settings::Upstream, stop: &CancellationToken) -> Result<Proof, String> {
    fn reloaded<T: Send + Sync + 'static>(
        what: &'static str,
        files: Vec<PathBuf>,
        read: impl Fn() -> Result<T, String> + Send + 'static,
        stop: &CancellationToken,
    ) -> Result<Arc<Reloaded<T>>, String> {
        let value = Reloaded::new(read()?);
        value.watch(what, files, read, stop.clone());
        Ok(value)
    }
    match (settings.secret_file.clone(), settings.certificate_file.clone().zip(settings.key_file.clone())) {
        (Some(file), _) => {
            let files = vec![file.clone()];
            let read = move || client_secret(&file).map_err(|error| error.to_string());
            reloaded("the secret of an upstream's client", files, read, stop).map(Proof::Secret)
        }
        (None, Some((certificate, key))) => {
            let files = vec![certificate.clone(), key.clone()];
            let read = move || ClientCertificate::read(&certificate, &key).map_err(|error| error.to_string());
            reloaded("the certificate of an upstream's client", files, read, stop).map(Proof::Certificate)
        }
        (None, None) => Ok(Proof::Public),
    }
}

/// Whether one of these audiences rests on a session that a claim's request brings.
#[must_use]
pub fn takes_refresh_token(config: &Config, audiences: &[String]) -> bool {
    audiences.iter().any(|id| config.audience(id).is_some_and(|audience| audience.backend == Backend::DexRefresh))
}

/// Before a claim is made: whether its audiences can be served for this caller. Gives what is sealed with the grant.
///
/// # Errors
/// `forbidden` when an audience is not for such callers or the provider refuses; `invalid_request` without the session
/// that an audience needs; `unavailable` when nobody can tell.
pub async fn prepare(
    broker: &Arc<Broker>,
    caller: &Caller,
    bearer: &str,
    audiences: &[String],
    brought: Option<Material>,
) -> Result<Kept, Failure> {
    let audiences: Vec<&Audience> = audiences.iter().filter_map(|id| broker.config.audience(id)).collect();
    let (mut by_session, mut on_behalf) = (None, Vec::new());
    for audience in audiences {
        match audience.backend {
            Backend::Sts => {}
            Backend::DexRefresh => by_session = Some((audience, upstream_of(broker, caller, audience)?)),
            Backend::EntraObo => on_behalf.push((audience, upstream_of(broker, caller, audience)?)),
        }
    }
    if let Some((audience, upstream)) = by_session {
        let has_brought = brought.is_some();
        let confirmed = sessions::confirm(broker, &upstream, caller.key, brought).await;
        confirmed.map_err(|lack| no_session(lack, audience, has_brought))?;
    }
    let mut kept = Kept::default();
    // A service's own tokens need nothing but its name on the audience's list.
    if caller.path == Path::Service {
        return Ok(kept);
    }
    let mut exchanges = JoinSet::new();
    for (audience, upstream) in on_behalf {
        exchanges.spawn(exchange(broker.clone(), upstream, bearer.to_owned().into(), audience.clone()));
    }
    while let Some(outcome) = exchanges.join_next().await {
        let defect = |_| Failure::new(Code::Internal, "mediatore has a defect here; see its log");
        let (id, material) = outcome.map_err(defect)??;
        kept.add(&id, material);
    }
    Ok(kept)
}

fn upstream_of(broker: &Broker, caller: &Caller, audience: &Audience) -> Result<Arc<Upstream>, Failure> {
    let found = broker.upstreams.of(&caller.issuer, audience.backend);
    // A service has no session.
    let usable = found.filter(|_| audience.backend != Backend::DexRefresh || caller.path != Path::Service);
    usable.cloned().ok_or_else(|| {
        let (id, issuer) = (&audience.id, &caller.issuer_name);
        let detail = format!("audiences: {id:?} is not for callers of issuer {issuer} like you");
        Failure::new(Code::Forbidden, detail).because("audience_of_other_issuer")
    })
}

fn no_session(lack: Lack, audience: &Audience, brought: bool) -> Failure {
    let id = &audience.id;
    match lack {
        Lack::Ended if brought => Failure::new(
            Code::Forbidden,
            format!("refresh_token: the provider does not take it, and audience {id:?} needs a session; log in with offline access and claim again"),
        )
        .because("session_ended"),
        Lack::Ended => Failure::new(
            Code::InvalidRequest,
            format!("refresh_token: audience {id:?} needs one; log in with offline access and claim again"),
        )
        .because("session_missing"),
        Lack::Foreign => {
            Failure::new(Code::Forbidden, "refresh_token: is not of your own session").because("session_foreign")
        }
        Lack::Refused => Failure::new(
            Code::Forbidden,
            "refresh_token: its session is none that mediatore accepts; log in for mediatore's audience with offline access, \
             and ask your operators for what you need there",
        )
        .because("session_refused"),
        Lack::Unavailable => {
            Failure::new(Code::Unavailable, format!("audience {id:?}: your session cannot be confirmed now; try again"))
                .because("upstream")
        }
    }
}

fn no_exchange(trouble: &Trouble, audience: &Audience) -> Failure {
    let id = &audience.id;
    tracing::warn!(%trouble, audience = id, "no token on behalf of a caller");
    match trouble.meaning {
        Meaning::Refused => Failure::new(
            Code::Forbidden,
            format!("audiences: the provider does not let mediatore act for you towards {id:?}; it may need your consent or a new login"),
        )
        .because("upstream_refused"),
        Meaning::Outage => {
            Failure::new(Code::Unavailable, format!("audience {id:?}: the provider does not answer; try again"))
                .because("upstream")
        }
        Meaning::Misconfigured => Failure::new(
            Code::Unavailable,
            format!("audience {id:?}: the provider does not take mediatore's request; ask your operators"),
        )
        .because("upstream_misconfigured"),
    }
}

/// The caller's token for mediatore, traded for a refresh token for one audience on their behalf.
async fn exchange(
    broker: Arc<Broker>,
    upstream: Arc<Upstream>,
    bearer: Material,
    audience: Audience,
) -> Result<(String, Material), Failure> {
    let scope = format!("{} offline_access", audience.scope.as_deref().unwrap_or_default());
    let grant = [
        ("grant_type", ON_BEHALF_OF),
        ("requested_token_use", "on_behalf_of"),
        ("assertion", bearer.reveal()),
        ("scope", &scope),
    ];
    let outcome = upstream.endpoint.ask(&broker.issuers, &grant).await.and_then(|tokens| {
        tokens.refresh_token.ok_or_else(|| Trouble {
            issuer: upstream.endpoint.issuer.clone(),
            meaning: Meaning::Misconfigured,
            what: "no refresh token in the answer; mediatore's application may not ask for offline_access".to_owned(),
        })
    });
    match outcome {
        Ok(material) => Ok((audience.id, material)),
        Err(trouble) => Err(no_exchange(&trouble, &audience)),
    }
}

/// At token time, for `dex-refresh`: the provider confirms the session, or the subject's claims are released.
///
/// # Errors
/// `released`, `forbidden`, or `unavailable` when nobody can tell.
pub async fn confirm(broker: &Arc<Broker>, claim: &VirtualMachineClaim, grant: &Grant) -> Result<(), Failure> {
    let upstream = broker.upstreams.of(&grant.issuer, Backend::DexRefresh).ok_or_else(no_upstream)?;
    match sessions::confirm(broker, upstream, subject_key(claim), None).await {
        Ok(()) => Ok(()),
        Err(Lack::Ended) => {
            let (key, uid) = (subject_key(claim), claim.metadata.uid.as_deref());
            for other in broker.store.claims() {
                let same = subject_key(&other) == key && other.metadata.uid.as_deref() != uid;
                if same && !lend::is_ending(&other) && takes_refresh_token(&broker.config, &other.spec.audiences) {
                    release(broker, &other).await;
                }
            }
            Err(revoked(broker, claim).await)
        }
        Err(Lack::Unavailable) => {
            Err(Failure::new(Code::Unavailable, "the person's session cannot be confirmed now; try again")
                .because("upstream"))
        }
        Err(Lack::Foreign | Lack::Refused) => {
            Err(Failure::new(Code::Forbidden, "the person may not use sandboxes now").because("session_refused"))
        }
    }
}

/// At token time, for `entra-obo`: the token for an audience, of the person or of the service.
///
/// # Errors
/// `released` when the provider refuses for good, `unavailable` otherwise.
pub async fn issue(
    broker: &Broker,
    claim: &VirtualMachineClaim,
    grant: &Grant,
    audience: &Audience,
) -> Result<Tokens, Failure> {
    let upstream = broker.upstreams.of(&grant.issuer, Backend::EntraObo).ok_or_else(no_upstream)?;
    let scope = audience.scope.as_deref().unwrap_or_default();
    let asked = if grant.path == Path::Service {
        let scope = format!("{}/.default", resource_of(scope).unwrap_or_default());
        let grant = [("grant_type", "client_credentials"), ("scope", scope.as_str())];
        upstream.endpoint.ask(&broker.issuers, &grant).await
    } else {
        let kept = kept(broker, claim).await?;
        let material = kept.as_ref().and_then(|kept| kept.of(&audience.id)).ok_or_else(|| {
            let detail = "nothing was kept for this audience when the claim was made; make a new claim";
            Failure::new(Code::Unavailable, detail).because("no_material")
        })?;
        let grant = [("grant_type", "refresh_token"), ("refresh_token", material.reveal()), ("scope", scope)];
        upstream.endpoint.ask(&broker.issuers, &grant).await
    };
    match asked {
        Ok(tokens) => Ok(tokens),
        Err(trouble) if trouble.meaning == Meaning::Refused && grant.path != Path::Service => {
            tracing::info!(%trouble, claim = place(claim).1, "the provider ended what a claim was made of");
            Err(revoked(broker, claim).await)
        }
        Err(trouble) => {
            tracing::warn!(%trouble, audience = audience.id, "no token from the provider");
            Err(Failure::new(Code::Unavailable, "the provider gives no token now; try again").because("upstream"))
        }
    }
}

/// What stands sealed beside a claim's grant.
async fn kept(broker: &Broker, claim: &VirtualMachineClaim) -> Result<Option<Kept>, Failure> {
    let ((namespace, name), uid) = (place(claim), claim.metadata.uid.as_deref().unwrap_or_default());
    let Some(sealed) = broker.cluster.sealed_material(namespace, uid).await? else { return Ok(None) };
    let opened = broker.upstreams.sealing.get().open_text(&Kept::bound_to(uid), &sealed);
    let kept = opened.map(|text| Kept::read(&text));
    if !matches!(kept, Ok(Some(_))) {
        tracing::error!(claim = name, "the refresh tokens of a claim do not open; look at sealing_keys");
    }
    Ok(kept.ok().flatten())
}

fn no_upstream() -> Failure {
    Failure::new(Code::Unavailable, "nothing makes tokens for this audience").because("no_backend")
}

async fn revoked(broker: &Broker, claim: &VirtualMachineClaim) -> Failure {
    release(broker, claim).await;
    Failure::new(Code::Released, "the provider ended the session behind this claim, so the claim is over")
        .because("upstream_refused")
}

/// Ends a claim whose provider refused. If that is not done now, the next request for a token finds the same refusal.
async fn release(broker: &Broker, claim: &VirtualMachineClaim) {
    let ((namespace, name), uid) = (place(claim), claim.metadata.uid.as_deref().unwrap_or_default());
    let mark = broker.releasing.begin(uid);
    let outcome = match broker.cluster.release(namespace, name, uid).await {
        Ok(_) => {
            mark.done();
            "allowed"
        }
        Err(error) => {
            tracing::warn!(%error, claim = name, "a claim whose provider refused is not released yet");
            "unknown"
        }
    };
    let entry = Entry {
        outcome,
        reason: "upstream_refused",
        subject_key: Some(subject_key(claim).to_string()),
        claim: Some(format!("{namespace}/{name}")),
        claim_uid: Some(uid),
        ..Entry::about("revoke", None)
    };
    broker.audit.write(&entry.of_subject(&claim.spec.subject));
}
