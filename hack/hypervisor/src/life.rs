//! The life of one instance on this host: one task that looks, decides one step, takes it, and looks again.

use std::sync::Arc;
use std::time::Duration;

use banlieue_crds::kubevirt::{InstancePhase, VirtualMachineInstance};
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::addresses::Addresses;
use crate::decide::{End, InstanceView, Machine, Seen, Step, decide};
use crate::index::{Known, Objects};
use crate::vm::{self, Found, Vm};
use crate::weight::Weight;
use crate::{images, instance, pod};

/// How long a write is given to come back through the watch before it is decided anew.
const ECHO: Duration = Duration::from_secs(5);
/// Pause after a failure; doubled up to the longest.
const SHORTEST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(20);

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the API server refused to {act}: {source}")]
    Api { act: &'static str, source: Box<kube::Error> },
    #[error("cannot ask the API server to {act}: {error}")]
    Request { act: &'static str, error: String },
    #[error(transparent)]
    Machine(#[from] vm::Error),
    #[error(transparent)]
    Image(#[from] images::Error),
    #[error("no pod address is free")]
    NoAddress,
}

impl Error {
    /// A write that came too late, or whose object went meanwhile: look again.
    fn is_stale(&self) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, kube::Error::Api(status) if matches!(status.code, 404 | 409)))
    }
}

fn api(act: &'static str) -> impl FnOnce(kube::Error) -> Error {
    move |source| Error::Api { act, source: Box::new(source) }
}

/// One instance on this host.
pub struct Life {
    /// Where objects come from.
    pub objects: watch::Receiver<Objects>,
    /// The machine.
    pub vm: Arc<Vm>,
    /// Writer.
    pub client: Client,
    /// Pod addresses.
    pub addresses: Arc<Addresses>,
    /// Name of our node.
    pub node: String,
    /// Namespace and name of the instance.
    pub named: (String, String),
}

/// What has been written and not yet been seen: an object as it was before.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unseen {
    object: Object,
    version: Option<String>,
    until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    Pod,
    Instance,
}

struct Loop {
    life: Life,
    machine: Machine,
    /// Ends with the machine; pending while there is none.
    end: BoxFuture<'static, End>,
    unseen: Option<Unseen>,
    pause: Duration,
    gone: bool,
}

impl Life {
    /// Lives until nothing of the instance is left on this host.
    pub async fn run(self) {
        let mut pause = SHORTEST;
        let machine = loop {
            match self.vm.find().await {
                Ok(Found::Nothing) => break self.weightless(),
                Ok(Found::Partial) => break Machine::Partial,
                Ok(Found::Running) => break Machine::Up { pressed: None },
                Ok(Found::Ended(end)) => break Machine::Ended(end),
                Err(error) => {
                    tracing::warn!(%error, instance = self.named.1, "cannot look for the machine");
                    tokio::time::sleep(pause).await;
                    pause = LONGEST.min(pause * 2);
                }
            }
        };
        let end = std::future::pending().boxed();
        let mut looping = Loop { life: self, machine, end, unseen: None, pause: SHORTEST, gone: false };
        looping.watch_machine();
        looping.run().await;
    }

    /// Nothing stands behind a weightless instance, so nothing is lost when this program restarts: it runs on.
    fn weightless(&self) -> Machine {
        let running = match &self.objects.borrow().instance {
            Known::There(instance) => instance.phase() == Some(InstancePhase::Running),
            _ => false,
        };
        if self.vm.weight() == Weight::Weightless && running { Machine::Up { pressed: None } } else { Machine::Absent }
    }
}

impl Loop {
    async fn run(mut self) {
        loop {
            let objects = self.life.objects.borrow_and_update().clone();
            if let Some(until) = self.still_unseen(&objects) {
                self.pause_until(Some(until)).await;
                continue;
            }
            let now = Timestamp::now();
            let step = decide(&self.seen(&objects), now);
            match &step {
                Step::Forget => return,
                Step::Rest => {
                    self.pause_until(None).await;
                    continue;
                }
                Step::Until(time) => {
                    let left = Duration::try_from(time.duration_since(now)).unwrap_or_default();
                    self.pause_until(Some(Instant::now() + left)).await;
                    continue;
                }
                _ => {}
            }
            tracing::debug!(instance = self.life.named.1, ?step, "step");
            match self.act(&step, &objects).await {
                Ok(()) => self.pause = SHORTEST,
                Err(error) if error.is_stale() => self.pause_until(Some(Instant::now() + SHORTEST)).await,
                Err(error) => {
                    tracing::warn!(%error, instance = self.life.named.1, ?step, "a step failed");
                    if step == Step::Start {
                        self.say(&objects, &error).await;
                    }
                    self.pause_until(Some(Instant::now() + self.pause)).await;
                    self.pause = LONGEST.min(self.pause * 2);
                }
            }
        }
    }

    fn seen(&self, objects: &Objects) -> Seen {
        let instance = match &objects.instance {
            Known::There(instance) => instance::view(instance, &self.life.node),
            Known::Gone => InstanceView::Gone,
            Known::Unknown if self.gone => InstanceView::Gone,
            Known::Unknown => InstanceView::Unknown,
        };
        Seen { pod: objects.pod.as_deref().map(pod::view), instance, machine: self.machine.clone() }
    }

    /// Waits for a change of the objects, the end of the machine, or the time.
    async fn pause_until(&mut self, time: Option<Instant>) {
        let timer = async {
            match time {
                Some(time) => tokio::time::sleep_until(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The index outlives every life; a closed channel only means that the program is ending.
            changed = self.life.objects.changed() => if changed.is_err() { std::future::pending::<()>().await },
            end = &mut self.end => {
                tracing::info!(instance = self.life.named.1, ?end, "the machine ended");
                self.end = std::future::pending().boxed();
                self.machine = Machine::Ended(end);
            }
            () = timer => {}
        }
    }

    fn watch_machine(&mut self) {
        if matches!(self.machine, Machine::Up { .. }) {
            let vm = self.life.vm.clone();
            self.end = async move { vm.ended().await }.boxed();
        }
    }

    /// Until when to wait for our last write to come back through the watch; none when it has, or has taken too long.
    fn still_unseen(&mut self, objects: &Objects) -> Option<Instant> {
        let unseen = self.unseen.as_ref()?;
        let version = match unseen.object {
            Object::Pod => objects.pod.as_ref().and_then(|pod| pod.resource_version()),
            Object::Instance => match &objects.instance {
                Known::There(instance) => instance.resource_version(),
                _ => None,
            },
        };
        if version == unseen.version && unseen.until > Instant::now() {
            return Some(unseen.until);
        }
        self.unseen = None;
        None
    }

    async fn act(&mut self, step: &Step, objects: &Objects) -> Result<(), Error> {
        let instance = match &objects.instance {
            Known::There(instance) => Some(instance.clone()),
            _ => None,
        };
        let now = Timestamp::now();
        match (step, &objects.pod, instance) {
            (Step::LookUp, ..) => self.look_up().await,
            (Step::AdmitPod, Some(pod), _) => self.admit(pod, now).await,
            (Step::ReadyPod, Some(pod), _) => self.patch_pod(pod, "show a pod ready", pod::ready(now)).await,
            (Step::EndPod(end), Some(pod), _) => self.patch_pod(pod, "end a pod", pod::over(pod, end, now)).await,
            (Step::RemovePod, Some(pod), _) => self.remove(pod).await,
            (Step::Start, _, Some(instance)) => {
                // Until it is done, there may be something that wants wiping.
                self.machine = Machine::Partial;
                self.life.vm.start(&instance).await?;
                tracing::info!(instance = self.life.named.1, node = self.life.node, "started");
                self.machine = Machine::Up { pressed: None };
                self.watch_machine();
                Ok(())
            }
            (Step::ReportRunning, pod, Some(instance)) => {
                let ip = pod.as_deref().and_then(pod::ip);
                self.patch_instance(&instance, "show an instance running", instance::running(&instance, ip, now)).await
            }
            (Step::ReportEnd(end), _, Some(instance)) => {
                self.patch_instance(&instance, "show an instance's end", instance::over(&instance, end, now)).await
            }
            (Step::PressPower, ..) => {
                // Noted first: a machine that cannot be reached is not pressed in a busy loop, and is killed in time.
                self.machine = Machine::Up { pressed: Some(now) };
                Ok(self.life.vm.press_power().await?)
            }
            (Step::Kill(end), ..) => {
                self.life.vm.kill().await?;
                self.end = std::future::pending().boxed();
                self.machine = Machine::Ended(end.clone());
                Ok(())
            }
            (Step::Wipe, ..) => {
                self.life.vm.wipe().await?;
                self.machine = match &self.machine {
                    Machine::Ended(end) => Machine::Wiped(end.clone()),
                    _ => Machine::Absent,
                };
                Ok(())
            }
            // Decided on objects that are there, so these cannot be missing.
            _ => Ok(()),
        }
    }

    async fn look_up(&mut self) -> Result<(), Error> {
        let (namespace, name) = &self.life.named;
        let instances: Api<VirtualMachineInstance> = Api::namespaced(self.life.client.clone(), namespace);
        // virt-handler's role lists instances and gets none.
        let by_name = ListParams::default().fields(&format!("metadata.name={name}"));
        let there = instances.list_metadata(&by_name).await.map_err(api("list instances"))?;
        self.gone = !there.iter().any(|there| there.metadata.uid.as_deref() == Some(self.life.vm.uid()));
        if !self.gone {
            // The watch is behind and will show it.
            self.pause_until(Some(Instant::now() + ECHO)).await;
        }
        Ok(())
    }

    async fn admit(&mut self, pod: &Pod, now: Timestamp) -> Result<(), Error> {
        for image in pod::images(pod) {
            if let Err(error) = self.life.vm.check_image(image) {
                self.patch_pod(pod, "show a pod's missing image", pod::image_missing(pod, &error.to_string())).await?;
                self.unseen = None;
                return Err(error.into());
            }
        }
        let uid = pod.uid().unwrap_or_default();
        let ip = self.life.addresses.of(&uid).ok_or(Error::NoAddress)?;
        self.patch_pod(pod, "show a pod running", pod::running(pod, ip, now)).await
    }

    async fn patch_pod(&mut self, pod: &Pod, act: &'static str, patch: Value) -> Result<(), Error> {
        let pods: Api<Pod> = Api::namespaced(self.life.client.clone(), &pod.namespace().unwrap_or_default());
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch))
            .await
            .map_err(api(act))?;
        self.expect(Object::Pod, pod.resource_version());
        Ok(())
    }

    async fn remove(&mut self, pod: &Pod) -> Result<(), Error> {
        let pods: Api<Pod> = Api::namespaced(self.life.client.clone(), &pod.namespace().unwrap_or_default());
        // The uid makes sure that a new pod of the same name is not the one that goes.
        let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        pods.delete(&pod.name_any(), &params).await.map_err(api("remove a pod"))?;
        self.expect(Object::Pod, pod.resource_version());
        Ok(())
    }

    async fn patch_instance(
        &mut self,
        instance: &VirtualMachineInstance,
        act: &'static str,
        patch: Value,
    ) -> Result<(), Error> {
        let failed = |error: String| Error::Request { act, error };
        let instances: Api<VirtualMachineInstance> = Api::namespaced(self.life.client.clone(), &self.life.named.0);
        let request = http::Request::patch(format!("{}/{}", instances.resource_url(), self.life.named.1))
            .header(http::header::CONTENT_TYPE, "application/json-patch+json")
            .body(serde_json::to_vec(&patch).map_err(|error| failed(error.to_string()))?)
            .map_err(|error| failed(error.to_string()))?;
        self.life.client.request::<Value>(request).await.map_err(api(act))?;
        self.expect(Object::Instance, instance.resource_version());
        Ok(())
    }

    fn expect(&mut self, object: Object, version: Option<String>) {
        self.unseen = Some(Unseen { object, version, until: Instant::now() + ECHO });
    }

    /// Says on the instance why its machine does not start.
    async fn say(&mut self, objects: &Objects, error: &Error) {
        let Known::There(instance) = &objects.instance else { return };
        let Some(patch) = instance::not_started(instance, &error.to_string(), Timestamp::now()) else { return };
        let instance = instance.clone();
        if let Err(error) = self.patch_instance(&instance, "show why an instance does not start", patch).await {
            tracing::debug!(%error, "the failure is said at the next try");
        }
        self.unseen = None;
    }
}
