//! What callers send and get. snake_case, unknown fields refused.

use banlieue_crds::{
    VirtualMachineClaim, VirtualMachinePool,
    claim::{ClaimPhase, EnvVar, RestartPolicy, Workload, WorkloadResources, WorkloadState},
    conditions::ClaimReason,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    claims::lend,
    http::answer::{Code, Failure},
    tokens::material::Material,
};

/// A claim that is asked for.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// The pool: a name in the default namespace, or `namespace/name`.
    #[schemars(length(min = 1, max = 317))]
    pub pool_ref: String,
    /// Seconds that the member is lent, counted from when it is bound. Default: an hour, or the pool's maximum if that is
    /// shorter.
    #[serde(default)]
    #[schemars(range(min = 1, max = 31536000))]
    pub ttl_seconds: Option<u32>,
    /// Downstream services that the workload may reach and have tokens for.
    #[serde(default)]
    #[schemars(length(max = 32), inner(length(min = 1, max = 512)))]
    pub audiences: Vec<String>,
    /// What runs.
    pub workload: WorkloadRequest,
    /// A refresh token of the caller's own session, for audiences that need one. It is sealed and never answered back.
    #[serde(default)]
    #[schemars(length(min = 1, max = 8192))]
    pub refresh_token: Option<Secret>,
}

/// Text that no debug output shows.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text, on its way to where it is used.
    #[must_use]
    pub fn material(self) -> Material {
        Material::from(self.0)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// What runs in the member.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkloadRequest {
    /// OCI image, by tag or digest.
    #[schemars(length(min = 1, max = 512))]
    pub image: String,
    /// The whole argv. The image's entrypoint is ignored.
    #[serde(default)]
    #[schemars(length(max = 256), inner(length(max = 4096)))]
    pub args: Vec<String>,
    /// Environment. No secrets: a claim is readable by many.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub env: Vec<Variable>,
    /// Whether a finished workload is started again.
    #[serde(default)]
    pub restart_policy: Restart,
    /// Limits of the jail.
    #[serde(default)]
    pub resources: Resources,
}

/// One environment variable.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Variable {
    /// Its name.
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub name: String,
    /// Its value.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub value: String,
}

/// Whether a finished workload is started again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Restart {
    /// A finished job is finished.
    #[default]
    Never,
    /// Again after a failure.
    OnFailure,
    /// Again always, until the deadline.
    Always,
}

/// Limits of the jail.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Resources {
    /// CPUs, as a Kubernetes quantity (`500m`, `2`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"))]
    pub cpu: Option<String>,
    /// Bytes of memory, as a Kubernetes quantity (`512Mi`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"))]
    pub memory: Option<String>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000))]
    pub pids: Option<u32>,
}

/// How far a claim is.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ClaimResponse {
    /// Its name, for the other routes.
    pub name: String,
    /// Its uid, which its tokens carry.
    pub uid: String,
    /// Its phase.
    pub phase: Phase,
    /// Its deadline, RFC 3339; null until it is bound.
    pub expires_at: Option<String>,
    /// The pool, `namespace/name`.
    pub pool_ref: String,
    /// What the workload does; null until the guest said anything.
    pub workload_state: Option<State>,
    /// Exit code of the workload; null until it finished.
    pub exit_code: Option<i32>,
    /// Place in the pool's queue while it waits; 1 is next.
    pub queue_position: Option<u32>,
    /// Why it ended or ends.
    pub termination_reason: Option<Reason>,
}

/// Phases of a claim, as `kubectl` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub enum Phase {
    /// Waits for a member.
    Pending,
    /// Has its member.
    Bound,
    /// Ends.
    Releasing,
    /// Ended as it should.
    Released,
    /// Never bound, or ended as it should not.
    Failed,
}

/// States of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The guest has not begun.
    Pending,
    /// The image is being pulled.
    Pulling,
    /// The image is being unpacked.
    Unpacking,
    /// It runs.
    Running,
    /// It exited.
    Finished,
    /// It could not be started.
    Failed,
}

/// Why a claim ended: one stable word of the Kubernetes API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Reason(String);

/// The caller's claims.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ClaimList {
    /// Newest first.
    pub claims: Vec<ClaimResponse>,
}

/// A pool that the caller may claim from.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PoolResponse {
    /// `namespace/name`, for `pool_ref`.
    pub pool_ref: String,
    /// Members that are ready to be lent.
    pub warm: u32,
    /// Longest `ttl_seconds`.
    pub max_ttl_seconds: u32,
    /// Claims of one subject at once.
    pub max_claims_per_subject: u32,
    /// Images that it allows: exactly, or by a prefix that ends in `*`.
    pub allowed_images: Vec<String>,
    /// Whether an image must be named by digest.
    pub require_digest: bool,
    /// Audiences that it allows.
    pub allowed_audiences: Vec<String>,
}

/// Pools.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PoolList {
    /// By name.
    pub pools: Vec<PoolResponse>,
}

fn bad(detail: impl Into<String>) -> Failure {
    Failure::new(Code::InvalidRequest, detail)
}

fn at_most(what: &str, length: usize, most: usize) -> Result<(), Failure> {
    if length > most { Err(bad(format!("{what}: at most {most}"))) } else { Ok(()) }
}

fn quantity(what: &str, text: Option<&str>) -> Result<Option<Quantity>, Failure> {
    let Some(text) = text else { return Ok(None) };
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let is_number = number.bytes().any(|b| b.is_ascii_digit()) && number.bytes().filter(|b| *b == b'.').count() <= 1;
    let is_unit = matches!(unit, "" | "m" | "k" | "Ki" | "M" | "Mi" | "G" | "Gi" | "T" | "Ti");
    if text.len() > 32 || !is_number || !is_unit {
        return Err(bad(format!("workload.resources.{what}: must be a quantity such as 500m or 512Mi")));
    }
    Ok(Some(Quantity(text.to_owned())))
}

impl ClaimRequest {
    /// Checks what the schema promises, since serde does not, and what it cannot say.
    ///
    /// # Errors
    /// `invalid_request` with the field's name.
    pub fn check(&self) -> Result<(), Failure> {
        if self.pool_ref.is_empty() {
            return Err(bad("pool_ref: is empty"));
        }
        if self.ttl_seconds == Some(0) {
            return Err(Failure::new(Code::InvalidTtl, "ttl_seconds: must be at least 1"));
        }
        at_most("pool_ref", self.pool_ref.len(), 317)?;
        at_most("audiences", self.audiences.len(), 32)?;
        for (at, audience) in self.audiences.iter().enumerate() {
            if audience.is_empty() || audience.chars().count() > 512 {
                return Err(bad(format!("audiences[{at}]: must be 1 to 512 characters")));
            }
            if self.audiences.iter().take(at).any(|earlier| earlier == audience) {
                return Err(bad(format!("audiences[{at}]: stands there twice")));
            }
        }
        self.workload.check()
    }
}

impl WorkloadRequest {
    fn check(&self) -> Result<(), Failure> {
        if self.image.is_empty() || self.image.chars().count() > 512 {
            return Err(bad("workload.image: must be 1 to 512 characters"));
        }
        if self.image.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(bad("workload.image: must not have spaces"));
        }
        at_most("workload.args", self.args.len(), 256)?;
        at_most("workload.env", self.env.len(), 256)?;
        // The guest hands these to the kernel, which ends them at the first NUL.
        let text = |what: String, text: &str| {
            if text.contains('\0') {
                return Err(bad(format!("{what}: must not have a NUL character")));
            }
            at_most(&format!("{what}: characters"), text.chars().count(), 4096)
        };
        for (at, arg) in self.args.iter().enumerate() {
            text(format!("workload.args[{at}]"), arg)?;
        }
        for (at, variable) in self.env.iter().enumerate() {
            let name = variable.name.as_bytes();
            let starts = name.first().is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_');
            if !starts || name.len() > 256 || !name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_') {
                return Err(bad(format!("workload.env[{at}].name: must be letters, digits and _, not a digit first")));
            }
            if self.env.iter().take(at).any(|earlier| earlier.name == variable.name) {
                return Err(bad(format!("workload.env[{at}].name: {} stands there twice", variable.name)));
            }
            text(format!("workload.env[{at}].value"), &variable.value)?;
        }
        if self.resources.pids.is_some_and(|pids| pids == 0 || pids > 1_000_000) {
            return Err(bad("workload.resources.pids: must be 1 to 1000000"));
        }
        self.resources().map(drop)
    }

    fn resources(&self) -> Result<WorkloadResources, Failure> {
        Ok(WorkloadResources {
            cpu: quantity("cpu", self.resources.cpu.as_deref())?,
            memory: quantity("memory", self.resources.memory.as_deref())?,
            pids: self.resources.pids,
        })
    }

    /// As the claim has it.
    ///
    /// # Errors
    /// When a quantity is none.
    pub fn workload(self) -> Result<Workload, Failure> {
        let resources = self.resources()?;
        Ok(Workload {
            image: self.image,
            args: self.args,
            env: self.env.into_iter().map(|it| EnvVar { name: it.name, value: it.value }).collect(),
            restart_policy: match self.restart_policy {
                Restart::Never => RestartPolicy::Never,
                Restart::OnFailure => RestartPolicy::OnFailure,
                Restart::Always => RestartPolicy::Always,
            },
            resources,
        })
    }

    /// As a guest gets it.
    #[must_use]
    pub fn from_claim(workload: &Workload) -> Self {
        let text = |quantity: &Option<Quantity>| quantity.as_ref().map(|quantity| quantity.0.clone());
        Self {
            image: workload.image.clone(),
            args: workload.args.clone(),
            env: workload.env.iter().map(|it| Variable { name: it.name.clone(), value: it.value.clone() }).collect(),
            restart_policy: match workload.restart_policy {
                RestartPolicy::Never => Restart::Never,
                RestartPolicy::OnFailure => Restart::OnFailure,
                RestartPolicy::Always => Restart::Always,
            },
            resources: Resources {
                cpu: text(&workload.resources.cpu),
                memory: text(&workload.resources.memory),
                pids: workload.resources.pids,
            },
        }
    }
}

impl State {
    /// As the claim has it.
    #[must_use]
    pub fn in_claim(self) -> WorkloadState {
        match self {
            Self::Pending => WorkloadState::Pending,
            Self::Pulling => WorkloadState::Pulling,
            Self::Unpacking => WorkloadState::Unpacking,
            Self::Running => WorkloadState::Running,
            Self::Finished => WorkloadState::Finished,
            Self::Failed => WorkloadState::Failed,
        }
    }

    /// From the claim.
    #[must_use]
    pub fn of(state: WorkloadState) -> Self {
        match state {
            WorkloadState::Pending => Self::Pending,
            WorkloadState::Pulling => Self::Pulling,
            WorkloadState::Unpacking => Self::Unpacking,
            WorkloadState::Running => Self::Running,
            WorkloadState::Finished => Self::Finished,
            WorkloadState::Failed => Self::Failed,
        }
    }
}

impl ClaimResponse {
    /// Of a claim object.
    #[must_use]
    pub fn of(claim: &VirtualMachineClaim) -> Self {
        let status = claim.status.clone().unwrap_or_default();
        let phase = match status.phase.unwrap_or_default() {
            // Its deletion was asked for; the controller has not written so yet.
            ClaimPhase::Pending | ClaimPhase::Bound if lend::is_ending(claim) => Phase::Releasing,
            ClaimPhase::Pending => Phase::Pending,
            ClaimPhase::Bound => Phase::Bound,
            ClaimPhase::Releasing => Phase::Releasing,
            ClaimPhase::Released => Phase::Released,
            ClaimPhase::Failed => Phase::Failed,
        };
        let workload = status.workload.unwrap_or_default();
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        Self {
            name: claim.metadata.name.clone().unwrap_or_default(),
            uid: claim.metadata.uid.clone().unwrap_or_default(),
            phase,
            expires_at: status.expires_at.map(|at| at.0.to_string()),
            pool_ref: format!("{namespace}/{}", claim.spec.pool_ref.name),
            workload_state: workload.state.map(State::of),
            exit_code: workload.exit_code,
            queue_position: status.queue_position.filter(|_| phase == Phase::Pending),
            termination_reason: status.termination_reason.map(|reason: ClaimReason| Reason(reason.as_str().to_owned())),
        }
    }
}

impl PoolResponse {
    /// Of a pool object.
    #[must_use]
    pub fn of(pool: &VirtualMachinePool) -> Self {
        let policy = &pool.spec.claim_policy;
        let namespace = pool.metadata.namespace.as_deref().unwrap_or_default();
        Self {
            pool_ref: format!("{namespace}/{}", pool.metadata.name.as_deref().unwrap_or_default()),
            warm: pool.status.as_ref().map_or(0, |status| status.warm),
            max_ttl_seconds: policy.max_ttl_seconds,
            max_claims_per_subject: policy.max_claims_per_subject,
            allowed_images: policy.allowed_images.clone(),
            require_digest: policy.require_digest,
            allowed_audiences: policy.allowed_audiences.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
