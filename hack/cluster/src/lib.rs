//! The local cluster: Kubernetes, KubeVirt and SPIRE control planes from their own binaries.
