//go:build tools

// Package etcd pins the etcd that the cluster's node runs; it is built as a program, from its own module path.
package etcd

import _ "go.etcd.io/etcd/server/v3"
