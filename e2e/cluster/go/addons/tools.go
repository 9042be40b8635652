//go:build tools

// Package addons pins the programs around Kubernetes; they are built from their own module paths.
package addons

import (
	_ "github.com/rancher/local-path-provisioner"
	_ "helm.sh/helm/v3/cmd/helm"
)
