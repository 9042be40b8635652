//go:build tools

// Package server pins the NATS server that the benchmark measures; it is built as a program, from its own module path.
package server

import _ "github.com/nats-io/nats-server/v2"
