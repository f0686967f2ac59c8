package main

import (
	"fmt"
	"os"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	extv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/rbac"
)

// crds returns every CustomResourceDefinition that virt-controller and virt-api wait for.
func crds() ([]runtime.Object, error) {
	var objects []runtime.Object
	for _, generate := range []func() (*extv1.CustomResourceDefinition, error){
		components.NewKubeVirtCrd,
		components.NewVirtualMachineCrd,
		components.NewVirtualMachineInstanceCrd,
		components.NewPresetCrd,
		components.NewReplicaSetCrd,
		components.NewVirtualMachineInstanceMigrationCrd,
		components.NewVirtualMachinePoolCrd,
		components.NewVirtualMachineSnapshotCrd,
		components.NewVirtualMachineSnapshotContentCrd,
		components.NewVirtualMachineRestoreCrd,
		components.NewVirtualMachineExportCrd,
		components.NewVirtualMachineBackupCrd,
		components.NewVirtualMachineBackupTrackerCrd,
		components.NewVirtualMachineInstancetypeCrd,
		components.NewVirtualMachineClusterInstancetypeCrd,
		components.NewVirtualMachinePreferenceCrd,
		components.NewVirtualMachineClusterPreferenceCrd,
		components.NewMigrationPolicyCrd,
		components.NewVirtualMachineCloneCrd,
	} {
		crd, err := generate()
		if err != nil {
			return nil, err
		}
		objects = append(objects, crd)
	}
	return objects, nil
}

// webhooks returns virt-api's webhook configurations. With a url they call url + path instead of the Service, and trust
// the PEM bundle in the file ca if one is named.
func webhooks(url, ca string) ([]runtime.Object, error) {
	mutating := components.NewVirtAPIMutatingWebhookConfiguration(Namespace)
	validating := components.NewVirtAPIValidatingWebhookConfiguration(Namespace)
	if url != "" {
		var bundle []byte
		if ca != "" {
			var err error
			if bundle, err = os.ReadFile(ca); err != nil {
				return nil, err
			}
		}
		for i := range mutating.Webhooks {
			redirect(&mutating.Webhooks[i].ClientConfig, url, bundle)
		}
		for i := range validating.Webhooks {
			redirect(&validating.Webhooks[i].ClientConfig, url, bundle)
		}
	}
	return []runtime.Object{mutating, validating}, nil
}

// redirect turns a call to a Service into a call to base + the Service's path.
func redirect(client *admissionv1.WebhookClientConfig, base string, bundle []byte) {
	path := "/"
	if client.Service != nil && client.Service.Path != nil {
		path = *client.Service.Path
	}
	target := base + path
	*client = admissionv1.WebhookClientConfig{URL: &target, CABundle: bundle}
}

// rbacFor returns the service account, roles and bindings of each named component; with no names, those of the two
// that run in a local cluster.
func rbacFor(names []string) ([]runtime.Object, error) {
	if len(names) == 0 {
		names = []string{"apiserver", "controller"}
	}
	var objects []runtime.Object
	for _, name := range names {
		switch name {
		case "apiserver":
			objects = append(objects, rbac.GetAllApiServer(Namespace)...)
		case "controller":
			// With the rule for NetworkAttachmentDefinitions, as the operator grants it by default.
			objects = append(objects, rbac.GetAllController(Namespace, true)...)
		case "handler":
			objects = append(objects, rbac.GetAllHandler(Namespace)...)
		case "cluster":
			// kubevirt.io:{default,admin,edit,view,migrate}: what people, not components, are bound to.
			objects = append(objects, rbac.GetAllCluster()...)
		default:
			return nil, fmt.Errorf("unknown component %q: name apiserver, controller, handler or cluster", name)
		}
	}
	return objects, nil
}
