//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler.

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use kube::Client;

use crate::error::Result;
use crate::identity::{Endpoint, Identities, Identity, client};
use crate::pki::{self, Authority, Pair};
use crate::process::Processes;
use crate::programs::tool;
use crate::{component, probe};

/// Every request at Metadata level, apart from the control plane's own traffic, which would be nine tenths of the log.
const AUDIT_POLICY: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ["system:apiserver", "system:kube-scheduler", "system:kube-controller-manager"]
- level: None
  nonResourceURLs: ["*"]
- level: Metadata
"#;

/// Starts etcd and kube-apiserver. `fsync` as a real cluster has it, or not, as tests want it.
pub(crate) async fn api_server(processes: &Processes, fsync: bool) -> Result<(Identities, Client)> {
    let dir = processes.dir.clone();
    let pki_dir = dir.join("pki");
    let authority = Authority::new(&pki_dir, "cluster-ca")?;
    let front_proxy = Authority::new(&pki_dir, "front-proxy-ca")?;
    let service = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.0.0.1"];
    let serving = authority.server(&pki_dir, "kube-apiserver", &service)?;
    let accounts = pki::signing_key(&pki_dir, "service-accounts")?;
    let (people, tokens) = Identities::people();
    pki::write(&dir.join("tokens.csv"), &tokens)?;
    pki::write(&dir.join("audit-policy.yaml"), AUDIT_POLICY)?;

    let etcd = etcd(processes, fsync).await?;
    let program = tool(component::API_SERVER)?;
    let port = processes
        .start_on_port(
            |port| {
                let args = api_server_args(&dir, port, &etcd, &authority, &front_proxy, &serving, &accounts);
                Ok(processes.spec(component::API_SERVER, &program, args))
            },
            async |port| {
                let probe = probe::client(&format!("https://127.0.0.1:{port}"), Some(&authority.der));
                // Anybody may ask whether it is ready.
                match probe {
                    Some(probe) => probe::answers(&probe, "/readyz").await,
                    None => false,
                }
            },
        )
        .await?;
    let endpoint = Endpoint { url: format!("https://127.0.0.1:{port}"), authority_pem: authority.pem.clone() };
    let identities = Identities { folder: dir.join("kubeconfig"), endpoint, authority, people };
    let admin = client(&identities.kubeconfig(&Identity::Admin, None).await?).await?;
    Ok((identities, admin))
}

/// Starts etcd on a socket in a folder that nobody else may enter, and returns its address. It needs no
/// port, and no waiting: the API server's readiness says that it answers.
async fn etcd(processes: &Processes, fsync: bool) -> Result<String> {
    let data = processes.dir.join("etcd");
    let mut closed = std::fs::DirBuilder::new();
    closed.recursive(true).mode(0o700).create(&data).map_err(crate::Error::write(&data))?;
    let clients = format!("unix://{}", data.join("c.sock").display());
    let peers = format!("unix://{}", data.join("p.sock").display());
    let mut args = vec![
        format!("--data-dir={}", data.join("data").display()),
        format!("--listen-client-urls={clients}"),
        format!("--advertise-client-urls={clients}"),
        format!("--listen-peer-urls={peers}"),
        format!("--initial-advertise-peer-urls={peers}"),
        format!("--initial-cluster=default={peers}"),
        "--log-level=warn".into(),
    ];
    if !fsync {
        args.push("--unsafe-no-fsync".into());
    }
    let socket = data.join("c.sock");
    processes.start(processes.spec(component::ETCD, &tool(component::ETCD)?, args), async || socket.exists()).await?;
    Ok(clients)
}

fn api_server_args(
    dir: &Path,
    port: u16,
    etcd: &str,
    authority: &Authority,
    front_proxy: &Authority,
    serving: &Pair,
    accounts: &Pair,
) -> Vec<String> {
    let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let fixed = [
        "--bind-address=127.0.0.1",
        // No endpoint of the Service "kubernetes": a loopback address is not allowed in one, and nobody needs it.
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        // Without this set there is no ConfigMap extension-apiserver-authentication, and virt-api panics.
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        "--audit-log-format=json",
        // Never rotated within a local cluster's life: readers see one file.
        "--audit-log-maxsize=10000",
        "--profiling=false",
    ];
    let mut args: Vec<String> = fixed.map(Into::into).into();
    args.extend([
        format!("--secure-port={port}"),
        format!("--etcd-servers={etcd}"),
        serving.cert_flag("tls-cert-file"),
        serving.key_flag("tls-private-key-file"),
        flag("client-ca-file", &authority.path),
        flag("requestheader-client-ca-file", &front_proxy.path),
        accounts.cert_flag("service-account-key-file"),
        accounts.key_flag("service-account-signing-key-file"),
        flag("token-auth-file", &dir.join("tokens.csv")),
        flag("audit-policy-file", &dir.join("audit-policy.yaml")),
        flag("audit-log-path", &dir.join("audit.log")),
    ]);
    args
}

/// Starts kube-controller-manager, which brings garbage collection, namespaces and service accounts.
pub(crate) async fn controller_manager(processes: &Processes, identities: &Identities) -> Result<()> {
    let pki_dir = processes.dir.join("pki");
    let accounts = pki_dir.join("service-accounts.key");
    let extra = vec![
        format!("--service-account-private-key-file={}", accounts.display()),
        format!("--root-ca-file={}", identities.authority.path.display()),
        // Each of its controllers under its own account: admission policies tell the garbage collector from the rest.
        "--use-service-account-credentials=true".to_owned(),
        "--kube-api-qps=200".to_owned(),
        "--kube-api-burst=400".to_owned(),
    ];
    manager(processes, identities, component::CONTROLLER_MANAGER, &Identity::ControllerManager, extra).await
}

/// Starts kube-scheduler, so that taints, cordons and full nodes are real.
pub(crate) async fn scheduler(processes: &Processes, identities: &Identities) -> Result<()> {
    manager(processes, identities, component::SCHEDULER, &Identity::Scheduler, Vec::new()).await
}

async fn manager(
    processes: &Processes,
    identities: &Identities,
    name: &'static str,
    who: &Identity,
    extra: Vec<String>,
) -> Result<()> {
    let program = tool(name)?;
    let authority = &identities.authority;
    let serving = authority.server(&processes.dir.join("pki"), &format!("{name}-serving"), &[])?;
    let kubeconfig = identities.kubeconfig(who, None).await?;
    processes
        .start_on_port(
            |port| {
                let mut args = extra.clone();
                args.extend(
                    ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"]
                        .map(|flag| format!("--{flag}={}", kubeconfig.display())),
                );
                args.extend([
                    "--leader-elect=false".into(),
                    "--bind-address=127.0.0.1".into(),
                    format!("--secure-port={port}"),
                    serving.cert_flag("tls-cert-file"),
                    serving.key_flag("tls-private-key-file"),
                ]);
                Ok(processes.spec(name, &program, args))
            },
            async |port| match probe::client(&format!("https://127.0.0.1:{port}"), Some(&authority.der)) {
                Some(probe) => probe::answers(&probe, "/healthz").await,
                None => false,
            },
        )
        .await?;
    Ok(())
}
