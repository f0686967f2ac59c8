// Command kubevirt-manifests prints the objects that KubeVirt's operator would install, as YAML documents on standard
// output, from KubeVirt's own generators. It lets a local cluster run virt-api and virt-controller without the operator.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// Namespace is where virt-api, virt-controller and their service accounts live.
const Namespace = "kubevirt"

const usage = `usage: kubevirt-manifests COMMAND

  crds                        KubeVirt's CustomResourceDefinitions
  webhooks [-url U [-ca F]]   virt-api's webhook configurations; with -url they call U instead of the
                              Service in the cluster, and trust the certificates in the PEM file F
  rbac [COMPONENT...]         ServiceAccounts, roles and bindings; COMPONENT is apiserver, controller,
                              handler or cluster (default: apiserver controller)
`

// errUsage ends the program with the usage text and status 2.
var errUsage = errors.New("wrong arguments")

func main() {
	err := run(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, errUsage), errors.Is(err, flag.ErrHelp):
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	case err != nil:
		fmt.Fprintf(os.Stderr, "kubevirt-manifests: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	var objects []runtime.Object
	var err error
	switch command, rest := args[0], args[1:]; command {
	case "help", "-h", "-help", "--help":
		_, err = io.WriteString(out, usage)
		return err
	case "crds":
		if len(rest) != 0 {
			return errUsage
		}
		objects, err = crds()
	case "webhooks":
		flags := flag.NewFlagSet(command, flag.ContinueOnError)
		flags.Usage = func() {}
		url := flags.String("url", "", "")
		ca := flags.String("ca", "", "")
		if err := flags.Parse(rest); err != nil || flags.NArg() != 0 || (*ca != "" && *url == "") {
			return errUsage
		}
		objects, err = webhooks(strings.TrimSuffix(*url, "/"), *ca)
	case "rbac":
		objects, err = rbacFor(rest)
	default:
		return errUsage
	}
	if err != nil {
		return err
	}
	return write(out, objects)
}

// write prints each object as one YAML document, without the fields that only a server sets.
func write(out io.Writer, objects []runtime.Object) error {
	for _, object := range objects {
		text, err := json.Marshal(object)
		if err != nil {
			return err
		}
		// Numbers stay as written: schemas hold 64-bit integers that a float would round.
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		var fields map[string]any
		if err := decoder.Decode(&fields); err != nil {
			return err
		}
		delete(fields, "status")
		if metadata, ok := fields["metadata"].(map[string]any); ok && metadata["creationTimestamp"] == nil {
			delete(metadata, "creationTimestamp")
		}
		document, err := yaml.Marshal(fields)
		if err != nil {
			return err
		}
		if _, err := out.Write(slices.Concat([]byte("---\n"), document)); err != nil {
			return err
		}
	}
	return nil
}
