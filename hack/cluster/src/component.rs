//! Names of the processes in a cluster: for `kill`, `restart`, extra arguments, and their logs `<dir>/log/<name>.log`.

/// etcd.
pub const ETCD: &str = "etcd";
/// The API server.
pub const API_SERVER: &str = "kube-apiserver";
/// Kubernetes' controllers.
pub const CONTROLLER_MANAGER: &str = "kube-controller-manager";
/// Kubernetes' scheduler.
pub const SCHEDULER: &str = "kube-scheduler";
/// KubeVirt's webhooks and subresources.
pub const VIRT_API: &str = "virt-api";
/// KubeVirt's controllers.
pub const VIRT_CONTROLLER: &str = "virt-controller";
/// SPIRE's server, with our plugin inside.
pub const SPIRE_SERVER: &str = "spire-server";
/// The SPIRE agent beside the server, for our own programs.
pub const SPIRE_AGENT: &str = "spire-agent";
/// The node half of KubeVirt.
pub const HYPERVISOR: &str = "banlieue-hypervisor";
/// The controller.
pub const CONTROLLER: &str = "banlieue-controller";
/// The attestor controller.
pub const ATTESTOR_CONTROLLER: &str = "banlieue-attestor-controller";
/// `oidc-provider`, unless its configuration names it otherwise.
pub const OIDC: &str = "oidc";
/// Dex, unless its configuration names it otherwise.
pub const DEX: &str = "dex";
