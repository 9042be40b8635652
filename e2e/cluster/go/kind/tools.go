//go:build tools

// Package kind pins the kind that makes the clusters; it is built as a program, unchanged, from its own module path.
package kind

import _ "sigs.k8s.io/kind"
